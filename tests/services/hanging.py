"""A service whose requests can hang: `/hang` waits for a lock that the thread `keeper` has, until `/over`.

Says `port N` when it listens, and answers every other path at once.
"""

import threading

import answering

lock = threading.Lock()
over = threading.Event()


def keep():
    with lock:
        over.wait()


def need_the_lock():
    with lock:
        pass


class Handler(answering.Handler):
    def act(self):
        if self.path == "/hang":
            need_the_lock()
        if self.path == "/over":
            over.set()


def main():
    threading.Thread(target=keep, name="keeper").start()
    server = answering.listen(Handler)
    answering.say_port(server)
    server.serve_forever()


if __name__ == "__main__":
    main()
