"""Debian's kernels: fetched with apt, unpacked into the cache, never installed."""

import dataclasses
import lzma
import pathlib
import re
import subprocess

# Newest package of each line. A line that apt does not offer is an error, not a skip.
LINES = {
    "6.1": r"linux-image-6\.1\.\d\S*-cloud-amd64",
    "6.12": r"linux-image-6\.12\.\d\S*-cloud-amd64",
}


class Unusable(Exception):
    """Something that the test needs is missing; the text says what to do."""


@dataclasses.dataclass
class Kernel:
    line: str
    package: str
    image: pathlib.Path
    folder: pathlib.Path

    def module(self, name):
        """A module's own content."""
        for path in self.folder.glob(f"lib/modules/*/kernel/**/{name}.ko*"):
            packed = path.read_bytes()
            return lzma.decompress(packed) if path.suffix == ".xz" else packed
        raise Unusable(f"{self.package} has no module {name}")

    def modules(self, names):
        """Modules by name, each after those that it needs."""
        found = {}

        def add(name):
            if name in found:
                return
            content = self.module(name)
            needs = re.search(rb"\0depends=([^\0]*)\0", content)
            for need in filter(None, needs[1].decode().split(",")):
                add(need)
            found[name] = content

        for name in names:
            add(name)
        return found


def output(*command, cwd=None):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unusable(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def newest(line):
    names = output("apt-cache", "pkgnames", "linux-image-").split()
    found = [name for name in names if re.fullmatch(LINES[line], name)]
    if not found:
        raise Unusable(
            f"apt offers no cloud kernel {line}: run apt-get update, or add the suite that has it "
            "(Debian 12: bookworm for 6.1, bookworm-security or bookworm-backports for 6.12)"
        )
    return max(found, key=lambda name: [int(part) for part in re.findall(r"\d+", name)])


def cached(line, cache):
    for folder in sorted(cache.iterdir()) if cache.is_dir() else ():
        if re.fullmatch(LINES[line], folder.name) and (folder / "boot").is_dir():
            return folder


def fetch(line, cache):
    """The kernel of this line; one that is in the cache already is taken as it is."""
    folder = cached(line, cache)
    if not folder:
        package = newest(line)
        cache.mkdir(parents=True, exist_ok=True)
        print(f"kernels: fetching {package}", flush=True)
        output("apt-get", "download", package, cwd=cache)
        archive = max(cache.glob(f"{package}_*.deb"), key=lambda path: path.stat().st_mtime)
        unpacked = cache / f"{package}.partial"
        output("dpkg-deb", "-x", str(archive), str(unpacked))
        archive.unlink()
        folder = unpacked.rename(cache / package)
    (image,) = (folder / "boot").glob("vmlinuz-*")
    return Kernel(line, folder.name, image, folder)
