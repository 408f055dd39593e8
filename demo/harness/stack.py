"""nginx → gunicorn → Django → PostgreSQL, each the real program, in one temporary folder."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import signal
import socket
import sys
import urllib.request
from pathlib import Path

from harness.processes import DemoError, Process, Processes

DEMO = Path(__file__).resolve().parent.parent
SERVICE = DEMO / "service"
BIN = Path(sys.executable).parent


class Stack:
    """The service and what it needs. PostgreSQL and nginx run throughout; gunicorn is started for each scene."""

    def __init__(self, folder: Path, processes: Processes) -> None:
        self._folder = folder
        self._processes = processes
        self._db_port = free_port()
        self._gunicorn_socket = folder / "gunicorn.sock"
        self._gunicorn: Process | None = None
        self.port = free_port()

    def start_database(self) -> None:
        """A new PostgreSQL cluster, and in it the service's tables."""
        start_postgres(self._folder, self._processes, self._db_port)
        self._processes.run([sys.executable, "-m", "django", "migrate", "-v0"], env=self._service_environment({}))

    def start_nginx(self) -> None:
        """The proxy in front."""
        folder = self._folder / "nginx"
        folder.mkdir()
        user = unprivileged_user("www-data", "nginx", "nobody")
        values = {
            "user": f"user {user} {group_of(user)};" if user else "",
            "port": str(self.port),
            "gunicorn_socket": str(self._gunicorn_socket),
        }
        text = (SERVICE / "nginx.conf").read_text()
        for name, value in values.items():
            text = text.replace(f"@{name}@", value)
        config = folder / "nginx.conf"
        config.write_text(text)
        program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
        if program is None:
            raise DemoError("nginx is not installed: run `make setup`")
        argv = [program, "-p", folder, "-c", config, "-e", folder / "error.log", "-g", "daemon off;"]
        nginx = self._processes.start("nginx", argv)
        nginx.wait_until(lambda: listens(self.port), 10)

    def start_gunicorn(self, settings: dict[str, str], otlp_port: int | None) -> Process:
        """The service, with OpenTelemetry as its documentation says to add it."""
        telemetry = {
            "OTEL_SERVICE_NAME": "shop",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
            "OTEL_TRACES_EXPORTER": "otlp" if otlp_port else "none",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{otlp_port}",
            "OTEL_BSP_SCHEDULE_DELAY": "500",
        }
        self._gunicorn = gunicorn = self._processes.start(
            "gunicorn",
            [BIN / "opentelemetry-instrument", BIN / "gunicorn", "shop.wsgi"],
            cwd=SERVICE,  # where gunicorn finds gunicorn.conf.py
            env=self._service_environment({**telemetry, **settings, "SHOP_BIND": f"unix:{self._gunicorn_socket}"}),
        )
        gunicorn.wait_until(self._answers, 60)
        return gunicorn

    def stop_gunicorn(self) -> None:
        """End the service, if it runs."""
        if self._gunicorn:
            self._processes.stop(self._gunicorn)
            self._gunicorn = None

    def worker(self, gunicorn: Process) -> int:
        """The pid of gunicorn's one worker."""
        children = Path(f"/proc/{gunicorn.pid}/task/{gunicorn.pid}/children").read_text().split()
        if len(children) != 1:
            raise DemoError(f"gunicorn has {len(children)} workers instead of one; see {gunicorn.log}")
        return int(children[0])

    def get(self, path: str, timeout: float = 30) -> bytes:
        """One request through nginx."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=timeout) as answer:
            return answer.read()

    def _answers(self) -> bool:
        try:
            self.get("/products/0/")
        except OSError:
            return False
        return True

    def _service_environment(self, extra: dict[str, str]) -> dict[str, str]:
        return {
            "DJANGO_SETTINGS_MODULE": "shop.settings",
            "PYTHONPATH": str(SERVICE),
            "PYTHONDONTWRITEBYTECODE": "1",
            "SHOP_DB_PORT": str(self._db_port),
            **extra,
        }


def free_port() -> int:
    """A TCP port of the loopback interface that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def listens(port: int) -> bool:
    """Whether somebody accepts connections there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def group_of(user: str) -> str:
    """The name of a user's own group."""
    return grp.getgrgid(pwd.getpwnam(user).pw_gid).gr_name


def unprivileged_user(*candidates: str) -> str | None:
    """Whom to become when we are root; None when we are not."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    for name in candidates or ("postgres", "nobody"):
        if name in known:
            return name
    raise DemoError("no unprivileged user to run PostgreSQL and nginx as: create one named postgres")


def start_postgres(folder: Path, processes: Processes, port: int) -> None:
    """A new cluster of PostgreSQL with user `shop`, that listens on this port of the loopback device."""
    programs = postgres_programs()
    user = unprivileged_user()  # PostgreSQL refuses to run as root
    home = folder / "postgres"
    home.mkdir(mode=0o700)
    if user:
        shutil.chown(home, user)
    data = home / "data"
    initdb = [programs / "initdb", "-D", data, "-U", "shop", "--auth=trust", "--encoding=UTF8", "--no-sync"]
    processes.run([*initdb, "--locale=C"], user=user, cwd=home)
    server = processes.start(
        "postgres",
        [programs / "postgres", "-D", data, "-k", home, "-h", "127.0.0.1", "-p", str(port)],
        cwd=home,
        user=user,
        stop_signal=signal.SIGINT,  # "fast": do not wait for clients to leave
    )
    server.wait_until(lambda: "ready to accept connections" in server.tail(), 30)


def postgres_programs() -> Path:
    """The folder with initdb and postgres. Debian keeps them out of PATH, by version."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name))
    on_path = shutil.which("initdb")
    if on_path:
        folders.append(Path(on_path).resolve().parent)
    for folder in reversed(folders):
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise DemoError("PostgreSQL's server programs are not installed: run `make setup`")
