"""How gunicorn runs the shop. The environment holds what the demo changes from run to run."""

import gc
import os

bind = os.environ.get("SHOP_BIND", "127.0.0.1:8000")
worker_class = "gthread"
workers = 1
threads = int(os.environ.get("SHOP_THREADS", "8"))
# The catalogue is loaded once, in the master; workers share its memory.
preload_app = True
accesslog = None
graceful_timeout = 10  # seconds that requests in flight get when it is told to end
# Nothing outside the demo's folder: by default this is a socket in the home directory.
control_socket_disable = True


def post_fork(server, worker):
    """The fix of the second story: take what start-up made, and never frees, out of the collector's sight."""
    if os.environ.get("SHOP_GC_FREEZE") == "1":
        gc.freeze()


def worker_exit(server, worker):
    """Spare the last collections of the interpreter: the process ends anyway."""
    gc.freeze()


def on_exit(server):
    """The same for the master."""
    gc.freeze()
