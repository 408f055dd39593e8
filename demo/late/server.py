"""A web page that waits 25 ms for something. It sleeps, so that workers are what runs short, not CPUs."""

import time


def application(_environ, start_response):
    time.sleep(0.025)
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "3")])
    return [b"ok\n"]
