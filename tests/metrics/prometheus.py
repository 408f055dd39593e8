"""A real Prometheus, for as long as a test lasts."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.parse
import urllib.request

from common.ports import free_port

LIMIT_S = 60


class Prometheus:
    """Its HTTP API."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def api(self, path: str, **parameters) -> dict:
        """What it answers."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=10) as answer:
            said = json.load(answer)
        assert said["status"] == "success", said
        return said["data"]

    def values(self, query: str) -> list[tuple[dict, float]]:
        """Labels and values now."""
        found = self.api("query", query=query)["result"]
        return [(one["metric"], float(one["value"][1])) for one in found]

    def value(self, query: str) -> float:
        """The one value."""
        found = self.values(query)
        assert len(found) == 1, f"{query}: {found}"
        return found[0][1]

    def targets(self) -> dict[str, dict]:
        """How the last scrape of each job went."""
        return {one["labels"]["job"]: one for one in self.api("targets")["activeTargets"]}

    def wait_for(self, what: str, is_so, limit: float = LIMIT_S):
        """Waits until something is so, and returns it."""
        deadline = time.monotonic() + limit
        found = error = None
        while time.monotonic() < deadline:
            try:
                found = is_so(self)
            except (OSError, AssertionError, KeyError) as failed:
                error = failed
            else:
                if found:
                    return found
            time.sleep(0.2)
        raise AssertionError(f"not so after {limit} s: {what}: {found!r} {error!r}")


@contextlib.contextmanager
def running(folder, targets: dict[str, str], *, native: bool):
    """Prometheus that scrapes each target (`host:port`) once a second, as a job of the given name."""
    name = "native" if native else "classic"
    config = folder / f"{name}.yml"
    jobs = [{"job_name": job, "static_configs": [{"targets": [at]}]} for job, at in targets.items()]
    # JSON is YAML.
    config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}))
    port = free_port()
    command = [
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / name}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    if native:
        command.append("--enable-feature=native-histograms")
    with open(folder / f"{name}.log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        prometheus = Prometheus(port)
        prometheus.wait_for(
            "every target is up",
            lambda it: all(one["health"] == "up" for one in it.targets().values()) and it.targets(),
        )
        yield prometheus
    finally:
        process.terminate()
        process.wait(30)
