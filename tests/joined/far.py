"""A server that answers whatever it is told. Says its port.

Usage: far.py ADDRESS
"""

import socket
import sys


def main():
    with socket.create_server((sys.argv[1], 0), backlog=64) as server:
        print(server.getsockname()[1], flush=True)
        while True:
            connection, _ = server.accept()
            with connection:
                while connection.recv(4096):
                    connection.sendall(b"so it is")


if __name__ == "__main__":
    main()
