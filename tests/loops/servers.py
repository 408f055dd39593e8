"""Servers whose event loops stall when they are told to: one of uvloop, and nginx, whose log goes to a pipe."""

import asyncio
import fcntl
import os
import pathlib
import subprocess
import sys
import threading
import time

STALL_S = 0.25
LONGER_S = 0.05  # somebody has what the loop wants for so long more

NGINX = """
daemon off;
user root;
worker_processes 1;
pid nginx.pid;
error_log stderr;
events {{ worker_connections 64; }}
http {{
    access_log /proc/self/fd/1;
    client_body_temp_path tmp_body;
    proxy_temp_path tmp_proxy;
    fastcgi_temp_path tmp_fastcgi;
    uwsgi_temp_path tmp_uwsgi;
    scgi_temp_path tmp_scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{ return 200 "nothing"; }}
    }}
}}
"""


class Nginx:
    """nginx as in a container: what it logs goes to whoever reads its output."""

    def __init__(self, folder: pathlib.Path, port: int) -> None:
        (folder / "nginx.conf").write_text(NGINX.format(port=port))
        self._reading, self._writing = os.pipe()
        fcntl.fcntl(self._writing, fcntl.F_SETPIPE_SZ, 4096)
        for end in (self._reading, self._writing):
            os.set_blocking(end, False)
        command = ["nginx", "-e", "stderr", "-p", folder, "-c", folder / "nginx.conf"]
        # It opens the pipe anew, and waits where it is full.
        self.process = subprocess.Popen(command, stdout=self._writing)

    def fill(self) -> None:
        """Nobody reads what it logs, and there is no room for more."""
        try:
            while True:
                os.write(self._writing, b"x")
        except BlockingIOError:
            pass

    def drain(self) -> None:
        """Somebody reads it."""
        try:
            while os.read(self._reading, 4096):
                pass
        except BlockingIOError:
            pass


lock, held = threading.Lock(), threading.Event()


def hold():
    with lock:
        held.set()
        time.sleep(STALL_S + LONGER_S)


def sleeps():
    time.sleep(STALL_S)


def computes():
    end = time.monotonic() + STALL_S
    while time.monotonic() < end:
        pass


def waits_for_a_lock():
    held.clear()
    threading.Thread(target=hold, name="holder").start()
    held.wait()
    with lock:
        pass


def is_quick():
    time.sleep(STALL_S / 5)


WORK = {f"/{work.__name__}": work for work in (sleeps, computes, waits_for_a_lock, is_quick)}


async def serve(reader, writer):
    """One connection. What it is asked to do, it does at once, on the loop."""
    while request := await reader.readline():
        while (await reader.readline()).strip():
            pass
        work = WORK.get(request.split()[1].decode(), lambda: None)
        begin = time.monotonic_ns()
        work()
        body = f"{begin} {time.monotonic_ns()}".encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
    writer.close()


async def main(port):
    async with await asyncio.start_server(serve, "127.0.0.1", port) as server:
        await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(main(int(sys.argv[1])))
