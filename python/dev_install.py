"""Installs this checkout into the running interpreter without building the Rust half.

    python dev_install.py              into site-packages; `pip uninstall underspan` undoes it
    python dev_install.py --target DIR into DIR, to be put on PYTHONPATH

It writes the metadata that a wheel would bring, so that entry points are found, and a `.pth` file
that points here, so that edits take effect at once. The `underspan` binary comes from cargo.
"""

import argparse
import sysconfig
from pathlib import Path

try:
    import tomllib
except ImportError:  # Python < 3.11
    import tomli as tomllib

HERE = Path(__file__).resolve().parent


def install(target: Path) -> Path:
    """Writes the metadata into `target` and returns its folder."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    info = target / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    files = {
        f"{project['name']}.pth": f"{HERE}\n",
        f"{info.name}/INSTALLER": "dev_install\n",
        f"{info.name}/METADATA": _metadata(project),
        f"{info.name}/entry_points.txt": _entry_points(project["entry-points"]),
    }
    record = f"{info.name}/RECORD"
    files[record] = "".join(f"{name},,\n" for name in [*files, record])
    for name, text in files.items():
        (target / name).write_text(text)
    return info


def _metadata(project: dict) -> str:
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {project['name']}",
        f"Version: {project['version']}",
        f"Requires-Python: {project['requires-python']}",
        *(f"Requires-Dist: {requirement}" for requirement in project["dependencies"]),
    ]
    return "\n".join(lines) + "\n"


def _entry_points(groups: dict) -> str:
    sections = []
    for group, entries in groups.items():
        sections.append(f"[{group}]")
        sections.extend(f"{name} = {value}" for name, value in entries.items())
    return "\n".join(sections) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, default=Path(sysconfig.get_path("purelib")))
    print(install(parser.parse_args().target))
