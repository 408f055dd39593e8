"""The clients: a process of its own that sends requests at fixed times and writes down what each one saw.

Arrivals do not wait for answers (an open loop), and a latency counts from the moment its request was due. A slow
server therefore cannot slow its clients down and so hide its own queue.

Writes one JSON object a line: method, path, status, trace_id, due_ns (Unix time) and latency_ns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import time
from dataclasses import asdict, dataclass
from pathlib import Path

TIMEOUT_S = 60


@dataclass(frozen=True)
class Seen:
    """What one client saw."""

    method: str
    path: str
    status: int
    trace_id: str
    due_ns: int
    latency_ns: int


async def send(port: int, method: str, path: str) -> tuple[int, str]:
    """One request on a connection of its own. Returns status (0: no answer) and trace id."""
    trace_id = secrets.token_hex(16)
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\nContent-Length: 0\r\n"
        f"traceparent: 00-{trace_id}-{secrets.token_hex(8)}-01\r\n\r\n"
    )
    try:
        answer = await asyncio.wait_for(exchange(port, head.encode()), TIMEOUT_S)
        status = int(answer.split(b" ", 2)[1])
    except (OSError, asyncio.TimeoutError, IndexError, ValueError):
        status = 0
    return status, trace_id


async def exchange(port: int, request: bytes) -> bytes:
    """Send the request, read to the end of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        await writer.drain()
        return await reader.read(-1)
    finally:
        writer.close()


async def client(port: int, method: str, path: str, due: float, epoch_ns: int) -> Seen:
    """Wait until the request is due (seconds after the start), send it, and tell what was seen."""
    start = time.monotonic_ns()
    await asyncio.sleep(due)
    status, trace_id = await send(port, method, path)
    due_ns = int(due * 1e9)
    return Seen(method, path, status, trace_id, epoch_ns + due_ns, time.monotonic_ns() - start - due_ns)


async def run(arguments: argparse.Namespace) -> None:
    arrivals = [
        ("GET", arguments.get.replace("{n}", str(number)), number / arguments.rate)
        for number in range(int(arguments.rate * arguments.seconds))
    ]
    if arguments.post:
        arrivals += [("POST", arguments.post, float(at)) for at in arguments.post_at.split(",")]
    epoch_ns = time.time_ns()
    seen = await asyncio.gather(*(client(arguments.port, *arrival, epoch_ns) for arrival in arrivals))
    with arguments.out.open("w") as out:
        out.writelines(json.dumps(asdict(one)) + "\n" for one in seen)


def main() -> None:
    parser = argparse.ArgumentParser(description="Send HTTP requests at fixed times to 127.0.0.1.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--get", required=True, metavar="PATH", help="{n} in it becomes 0, 1, 2 …")
    parser.add_argument("--rate", type=float, required=True, help="requests a second")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--post", metavar="PATH")
    parser.add_argument("--post-at", metavar="S,S,…", default="0", help="seconds after the start")
    parser.add_argument("--out", type=Path, required=True)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
