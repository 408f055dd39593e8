"""Servers read and write through many system calls; every one must be seen for what it is."""

import os
import tempfile
import time

from clock import Child
from httpclock import Server, accept, ask, connect, listen, text

HEAD = b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n"
BODY = b"no"


def recv_into(connection):
    buffer = bytearray(65536)
    return buffer[: connection.recv_into(buffer)]


def readv(connection):
    buffers = [bytearray(7), bytearray(65536)]
    os.readv(connection.fileno(), buffers)
    return b"".join(buffers)


def sendfile(connection):
    connection.sendall(HEAD)
    with tempfile.TemporaryFile() as file:
        file.write(BODY)
        file.flush()
        os.sendfile(connection.fileno(), file.fileno(), 0, len(BODY))


READS = {
    "recv": lambda connection: connection.recv(65536),
    "recv_into": recv_into,
    "recvmsg": lambda connection: connection.recvmsg(65536)[0],
    "read": lambda connection: os.read(connection.fileno(), 65536),
    "readv": readv,
    "makefile": lambda connection: connection.makefile("rb").readline(),
}
WRITES = {
    "sendall": lambda connection: connection.sendall(HEAD + BODY),
    "two sends": lambda connection: (connection.sendall(HEAD), connection.sendall(BODY)),
    "sendmsg": lambda connection: connection.sendmsg([HEAD, BODY]),
    "write": lambda connection: os.write(connection.fileno(), HEAD + BODY),
    "writev": lambda connection: os.writev(connection.fileno(), [HEAD, BODY]),
    "sendfile": sendfile,
}


def play(path, read, write):
    listener = listen()

    def serve():
        exchange = accept(listener)
        exchange.read(read)
        time.sleep(0.02)
        exchange.write(write, 404)
        exchange.connection.close()
        return exchange

    asking = Child(lambda: ask(connect(listener), text(path)))
    exchange = server.do(serve)
    exchange.claim(os.getpid(), path, asking.result(), bytes_out=len(HEAD + BODY))


with Server() as server:
    for name, read in READS.items():
        play("/read/" + name, read, WRITES["sendall"])
    for name, write in WRITES.items():
        play("/write/" + name.replace(" ", "-"), READS["recv"], write)
