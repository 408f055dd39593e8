"""Small services to load: nginx alone, gunicorn alone, and the demo's whole stack."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from harness.processes import Processes
from harness.stack import BIN, Stack, free_port, listens

from bench.observers import WORKLOADS, BenchError

NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{ access_log off; keepalive_requests 100000000;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  server {{ listen 127.0.0.1:{port}; location / {{ return 200 "hello\\n"; }} }} }}
"""


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Processes]:
    """Processes that end with the block; their logs are in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    processes = Processes(folder)
    try:
        yield processes
    finally:
        processes.stop_all()


@contextlib.contextmanager
def nginx(folder: Path) -> Iterator[int]:
    """nginx that answers by itself. Yields its port."""
    folder = folder / "nginx"
    with running(folder) as processes:
        port = free_port()
        config = folder / "nginx.conf"
        config.write_text(NGINX.format(folder=folder, port=port))
        program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
        if program is None:
            raise BenchError("nginx is not installed: run `make setup`")
        server = processes.start("nginx", [program, "-c", config, "-e", folder / "error.log"])
        server.wait_until(lambda: listens(port), 10)
        yield port


@contextlib.contextmanager
def gunicorn(folder: Path) -> Iterator[int]:
    """gunicorn with a service that answers at once. Yields its port."""
    with running(folder / "gunicorn") as processes:
        port = free_port()
        argv = [BIN / "gunicorn", "--worker-class", "gthread", "--workers", "1", "--threads", "8"]
        argv += ["--bind", f"127.0.0.1:{port}", "--no-control-socket", "hello:application"]
        server = processes.start("gunicorn", argv, cwd=WORKLOADS, env={"PYTHONDONTWRITEBYTECODE": "1"})
        server.wait_until(lambda: listens(port), 30)
        yield port


@contextlib.contextmanager
def stack(folder: Path) -> Iterator[tuple[Stack, int]]:
    """nginx, gunicorn, Django and PostgreSQL, as the demo runs them. Yields them and the worker's pid."""
    folder = folder / "stack"
    with running(folder) as processes:
        service = Stack(folder, processes)
        service.start_database()
        service.start_nginx()
        server = service.start_gunicorn({"SHOP_THREADS": "8"}, None)
        yield service, service.worker(server)
