"""A small HTTP service, and optionally its own clients: what the tests have watched.

Says `port N` when it listens. Paths: `/` answers at once, `/slow` after half a second, `/die` kills
the process in the middle of the answer, `/exec` becomes another program there, `/flood/N` starts N
threads.
"""

import argparse
import os
import signal
import sys
import threading
import time
import urllib.request

import answering


class Handler(answering.Handler):
    def act(self):
        if self.path.startswith("/slow"):
            time.sleep(0.5)
        if self.path.startswith("/die"):
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)
        if self.path.startswith("/exec"):
            time.sleep(0.2)
            os.execv("/bin/sleep", ["sleep", "2"])
        if self.path.startswith("/flood"):
            flood(int(self.path.rpartition("/")[2]))


def flood(count):
    """Starts so many threads at once, none of which does anything."""
    over = threading.Event()
    threading.stack_size(64 << 10)
    threads = [threading.Thread(target=over.wait) for _ in range(count)]
    for thread in threads:
        thread.start()
    over.set()
    for thread in threads:
        thread.join()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, help="ask for so many, then end")
    parser.add_argument("--every", type=float, default=0.02, help="seconds between them")
    args = parser.parse_args()
    server = answering.listen(Handler)
    answering.say_port(server)
    if args.requests is None:
        server.serve_forever()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for number in range(args.requests):
        urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/{number}").read()
        time.sleep(args.every)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
