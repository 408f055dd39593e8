"""Carries frames between two interfaces; each takes so long on its way. Loses the first few that say `lose me`.

Says `ready`, and ends with its input. Usage: relay.py INTERFACE INTERFACE MILLISECONDS
"""

import queue
import socket
import sys
import threading
import time

ETH_P_ALL = 3
# From linux/if_packet.h: frames come with what their sender left to do (checksums), and go so.
PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 15, 23
SOL_PACKET = 263
# The segment, the tail loss probe, and what the first timeout sends.
LOST = 3


def opened(interface):
    """All frames that come in by it."""
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    for option in (PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING):
        end.setsockopt(SOL_PACKET, option, 1)
    end.bind((interface, ETH_P_ALL))
    return end


def read(end, way, delay_s):
    lost = 0
    while True:
        frame = end.recv(1 << 17)
        if b"lose me" in frame and lost < LOST:
            lost += 1
            continue
        way.put((time.monotonic() + delay_s, frame))


def write(end, way):
    while True:
        due, frame = way.get()
        time.sleep(max(0.0, due - time.monotonic()))
        end.send(frame)


def main():
    ends = [opened(interface) for interface in sys.argv[1:3]]
    delay_s = float(sys.argv[3]) / 1e3
    for one, other in (ends, ends[::-1]):
        way = queue.SimpleQueue()
        threading.Thread(target=read, args=(one, way, delay_s), daemon=True).start()
        threading.Thread(target=write, args=(other, way), daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
