"""A service whose threads hand requests to and fro: a given rate of context switches, with work in between.

    handoffs.py LIBRARY

LIBRARY is handoffs.c, compiled. Each line on standard input is one JSON object, a turn to play: `work` (passes over the
data for each handoff), `rate` (requests a second; 0: as many as there can be) and `seconds`. Each turn is answered by a
line with what was done: `requests`, `seconds`, `cpu_s`, `switches`, and with a rate `p50` and `p99` in nanoseconds.
"""

import ctypes
import json
import resource
import sys
import threading
import time

PAIRS = 4


def load(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    library.pair_new.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_double, ctypes.c_double, ctypes.c_ulong]
    library.pair_new.restype = ctypes.c_void_p
    for name in ("pair_free", "pair_lead", "pair_follow", "pair_requests", "pair_latency"):
        getattr(library, name).argtypes = [ctypes.c_void_p]
    library.pair_requests.restype = ctypes.c_long
    library.pair_latency.restype = ctypes.POINTER(ctypes.c_uint)
    return library


# A few frames of Python under each thread, as a service has.
def handle(function, pair) -> None:
    return function(pair)


def dispatch(function, pair) -> None:
    return handle(function, pair)


def worker(function, pair, depth: int = 8) -> None:
    if depth:
        worker(function, pair, depth - 1)
    else:
        dispatch(function, pair)


def play(library: ctypes.CDLL, work: int, rate: float, seconds: float) -> dict:
    # Half of the pairs wake each other by futexes, half by eventfds.
    pairs = [library.pair_new(i % 2, work, rate / PAIRS, seconds, i + 1) for i in range(PAIRS)]
    if not all(pairs):
        sys.exit("handoffs: no memory or no file descriptors left")
    threads = [
        threading.Thread(target=worker, args=(function, pair), name=name)
        for pair in pairs
        for name, function in (("follow", library.pair_follow), ("lead", library.pair_lead))
    ]
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_SELF)
    counts = [library.pair_requests(pair) for pair in pairs]
    answer = {
        "requests": sum(counts),
        "seconds": wall,
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "switches": after.ru_nvcsw + after.ru_nivcsw - before.ru_nvcsw - before.ru_nivcsw,
    }
    if rate:
        latencies = sorted(ns for pair, count in zip(pairs, counts) for ns in library.pair_latency(pair)[:count])
        answer["p50"], answer["p99"] = (latencies[int(len(latencies) * share)] for share in (0.5, 0.99))
    for pair in pairs:
        library.pair_free(pair)
    return answer


def main(path: str) -> None:
    library = load(path)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(play(library, **json.loads(line))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
