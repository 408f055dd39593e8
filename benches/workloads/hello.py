"""The smallest service that gunicorn runs."""

BODY = b"hello\n"


def application(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(BODY)))])
    return [BODY]
