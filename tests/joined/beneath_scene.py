"""The services of beneath.py under gunicorn, and clients that get each into trouble, one after the other.

Says, as its last line, what each measured. Usage: beneath_scene.py NETNS ADDRESS (of the peer that is far away)
"""

import json
import pathlib
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from common.cgroup import Cgroup, on_one_cpu
from common.netns import inside
from stage import HERE, answer, ended_at_last, gunicorn

# Clients find the accept queue full when one is served, as many as this and one more wait.
BACKLOG = 2
# For each packet so many rules are looked at, so many times.
RULES, TIMES = 1_000, 250
EXCHANGES, EXCHANGES_WITHOUT = 100, 2_000
# So often an answer is read late, for the other peer takes so long.
LATE, SLOW_S = 50, 0.02
# One row of a histogram is a second.
SECONDS_OF_ROWS = 2.5


def echo(delay_s=0.0):
    """Answers each byte, and takes so long for it. Returns its port."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            connection, _ = server.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection:
                while byte := connection.recv(1):
                    if delay_s:
                        time.sleep(delay_s)
                    connection.sendall(byte)

    threading.Thread(target=serve, name="echoes", daemon=True).start()
    return server.getsockname()[1]


def nft(text):
    subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True)


def behind_rules(address):
    """The same exchange without rules, and with more than a firewall should have."""
    measured = {"without": answer(address, f"/exchange/{EXCHANGES_WITHOUT}")}
    rules = "\n".join(f"ip saddr 192.0.2.{n % 250} tcp dport {n} drop" for n in range(RULES))
    jumps = "jump rules\n" * TIMES
    hook = "type filter hook input priority 0;"
    nft(f"table inet useless {{\nchain rules {{\n{rules}\n}}\nchain in {{\n{hook}\n{jumps}\n}}\n}}\n")
    try:
        # Rows of the time without rules end before.
        time.sleep(SECONDS_OF_ROWS)
        measured["with"] = answer(address, f"/exchange/{EXCHANGES}")
    finally:
        nft("delete table inet useless\n")
    return measured


def fill(address):
    """One is served, those that fit wait, and one more is dropped. When each asked, connected, and was served."""
    measured = {}
    names = ["served", *(f"waits-{n}" for n in range(BACKLOG)), "last", "dropped"]
    is_connected = {name: threading.Event() for name in names}

    def ask(name):
        host, port = address.split(":")
        asked = time.monotonic_ns()
        with socket.create_connection((host, int(port))) as connection:
            connected = time.monotonic_ns()
            is_connected[name].set()
            connection.sendall(f"GET /hold/{name} HTTP/1.0\r\n\r\n".encode())
            said = b"".join(iter(lambda: connection.recv(4096), b""))
        measured[name] = {"asked": asked, "connected": connected, **json.loads(said.rpartition(b"\n")[2])}

    clients = [threading.Thread(target=ask, args=(name,)) for name in names]
    for name, client in zip(names, clients, strict=True):
        client.start()
        # One after the other, and the first is accepted before the next comes.
        is_connected[name].wait(0.5)
        time.sleep(0.05)
    for client in clients:
        client.join()
    return measured


def main():
    netns, far = sys.argv[1:]
    peer = subprocess.Popen([*inside(netns), sys.executable, HERE / "far.py", far], stdout=subprocess.PIPE, text=True)
    port = peer.stdout.readline().strip()
    with Cgroup("joined") as cgroup:
        environment = {"FAR": f"{far}:{port}", "ECHO": str(echo()), "SLOW": str(echo(SLOW_S))}
        environment["CPU_STAT"] = str(cgroup.cpu_stat)
        threads, at_threads = gunicorn("beneath:app", environment, "--worker-class", "gthread", "--threads", "2")
        single, at_single = gunicorn("beneath:app", environment, "--backlog", str(BACKLOG))
        with cgroup.inside(), on_one_cpu():
            limited, at_limited = gunicorn("beneath:app", environment)
        measured = {"cgroup": cgroup.path, "pids": {"single": single.pid}}
        with ended_at_last(threads, single, limited, peer):
            for address in (at_threads, at_single, at_limited):
                answer(address, "/quiet", attempts=100)
            time.sleep(1.5)
            measured["reconnect"] = answer(at_threads, "/reconnect")
            measured["ask"] = answer(at_threads, "/ask")
            measured["hold"] = fill(at_single)
            # Rows of histograms are seconds: what is before and after has its own.
            time.sleep(SECONDS_OF_ROWS)
            measured["late"] = answer(at_threads, f"/late/{LATE}")
            time.sleep(SECONDS_OF_ROWS)
            measured["exchange"] = behind_rules(at_threads)
            # Less than it gets on a loaded machine.
            cgroup.limit(0.08)
            measured["burn"] = answer(at_limited, "/burn")
            cgroup.limit(1.0)
            # What the host counted in this second is told at its end.
            time.sleep(1.5)
    print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main()
