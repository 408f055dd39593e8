"""Servers on event loops, and a client that has each stall while another of its requests is on its way.

Says, as its last line, when each stall began and ended by the monotonic clock, and which processes these are.
"""

import http.client
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from common.ports import free_port
from servers import STALL_S, WORK, Nginx

# A loop is known as one after so many turns, and its code after so long.
TURNS, KNOWN_S = 100, 2.5


def connection(port):
    """A client's, as soon as somebody listens."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    for _ in range(200):
        try:
            client.connect()
            return client
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"nobody listens at {port}")


def ask(client, path):
    """The answer."""
    client.request("GET", path)
    return client.getresponse().read()


def warm(client, each=lambda: None):
    """What is asked of it is answered at once."""
    for _ in range(TURNS):
        ask(client, "/warm")
        each()
        time.sleep(KNOWN_S / TURNS)


def later(client, path):
    """A request that comes in the middle of the stall, on a connection that was accepted long ago."""

    def wait():
        time.sleep(STALL_S / 5)
        ask(client, path)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def of_uvloop(port):
    """Each stall of it: begin and end."""
    server = subprocess.Popen([sys.executable, HERE / "servers.py", str(port)])
    try:
        client, other = connection(port), connection(port)
        ask(other, "/warm")
        warm(client)
        stalls = {"pid": server.pid}
        for path in WORK:
            victim = later(other, f"/during{path}")
            stalls[path] = [int(word) for word in ask(client, path).split()]
            victim.join()
            time.sleep(0.1)
        time.sleep(1)  # what functions are called is read while there is a process
        return stalls
    finally:
        server.terminate()
        server.wait()


def of_nginx(port):
    """Its stall, while nobody reads what it logs."""
    with tempfile.TemporaryDirectory() as folder:
        nginx = Nginx(pathlib.Path(folder), port)
        try:
            client, other = connection(port), connection(port)
            ask(other, "/warm")
            warm(client, each=nginx.drain)
            nginx.fill()
            begin = time.monotonic_ns()
            ask(client, "/logs")
            victim = later(other, "/during/logs")
            time.sleep(STALL_S)
            end = time.monotonic_ns()
            nginx.drain()
            victim.join()
            time.sleep(1)
            return {"pid": nginx.process.pid, "/logs": [begin, end]}
        finally:
            nginx.process.terminate()
            nginx.process.wait()


def main():
    print(json.dumps({"uvloop": of_uvloop(free_port()), "nginx": of_nginx(free_port())}), flush=True)


if __name__ == "__main__":
    main()
