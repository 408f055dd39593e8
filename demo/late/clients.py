"""Clients: so many requests a second, whether answered or not, each on a connection of its own."""

import asyncio
import sys
import time

TIMEOUT_S = 30


async def ask(host: str, port: int) -> bool:
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), TIMEOUT_S)
        writer.write(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        answer = await asyncio.wait_for(reader.read(), TIMEOUT_S)
        writer.close()
    except (OSError, asyncio.TimeoutError):
        return False
    return answer.startswith(b"HTTP/1.1 200")


async def main(host: str, port: int, rate: float, seconds: float) -> int:
    start = time.monotonic()
    asked = []
    for number in range(int(rate * seconds)):
        await asyncio.sleep(start + number / rate - time.monotonic())
        asked.append(asyncio.create_task(ask(host, port)))
    answered = sum(await asyncio.gather(*asked))
    print(f"{answered} of {len(asked)} answered")
    return 0 if answered else 1


if __name__ == "__main__":
    host, port, rate, seconds = sys.argv[1:]
    sys.exit(asyncio.run(main(host, int(port), float(rate), float(seconds))))
