"""The machine's files: busybox, a Python with its library, our binaries, what is in guest/."""

import pathlib
import re
import shutil
import stat
import subprocess

from packages import Unusable

HERE = pathlib.Path(__file__).resolve().parent
BUSYBOX = pathlib.Path("/bin/busybox")
PYTHON = pathlib.Path("/usr/bin/python3")
# The machine's file, the program here, and the package that has it. Busybox' ip makes no veth.
TOOLS = {"usr/bin/ip": "iproute2", "usr/bin/tc": "iproute2", "usr/bin/nft": "nftables"}
FOLDERS = ("bin", "dev", "mnt", "proc", "root", "run", "sys", "tmp")
NOT_NEEDED = {
    "test",
    "idlelib",
    "tkinter",
    "ensurepip",
    "lib2to3",
    "pydoc_data",
    "dist-packages",
    "site-packages",
    "turtledemo",
}


def libraries(binary):
    """Shared libraries of a binary, and its loader."""
    done = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=False)
    return {pathlib.Path(path) for path in re.findall(r"(/\S+) \(0x", done.stdout)}


def standard_library():
    code = "import sysconfig; print(sysconfig.get_path('stdlib'))"
    done = subprocess.run([PYTHON, "-I", "-c", code], capture_output=True, text=True, check=True)
    root = pathlib.Path(done.stdout.strip())
    for path in root.rglob("*"):
        top = path.relative_to(root).parts[0]
        if path.is_file() and top not in NOT_NEEDED and not top.startswith("config-"):
            yield path


def tools():
    for target, package in TOOLS.items():
        name = pathlib.PurePosixPath(target).name
        found = shutil.which(name, path="/usr/sbin:/sbin:/usr/bin:/bin")
        if not found:
            raise Unusable(f"{name} is needed: apt-get install {package}")
        yield target, pathlib.Path(found)


def contents(extra):
    """Path in the machine to file here, with the libraries that are needed."""
    if not BUSYBOX.is_file() or libraries(BUSYBOX):
        raise Unusable("a static busybox is needed: apt-get install busybox-static")
    files = {"init": HERE / "guest" / "init", "bin/busybox": BUSYBOX}
    files |= {f"guest/{path.name}": path for path in (HERE / "guest").glob("*.py")}
    files |= {path[1:]: file for path, file in extra.items()}
    files["usr/bin/python3"] = PYTHON
    files |= tools()
    files |= {str(path)[1:]: path for path in standard_library()}
    programs = (path for name, path in files.items() if name in {"usr/bin/python3", *TOOLS})
    elves = [*extra.values(), *programs, *(path for path in files.values() if path.suffix == ".so")]
    for elf in elves:
        files |= {str(path)[1:]: path for path in libraries(elf)}
    return files


class Archive:
    """cpio in its `newc` form, which is what the kernel unpacks."""

    def __init__(self, file):
        self.file = file
        self.entries = 0

    def add(self, name, mode, data=b""):
        self.entries += 1
        encoded = name.encode() + b"\0"
        fields = (self.entries, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(encoded), 0)
        header = b"070701" + b"".join(b"%08x" % field for field in fields)
        for part in (header + encoded, data):
            self.file.write(part + b"\0" * (-len(part) % 4))


def stripped(path, target):
    """Without debugging information: it would be most of the archive."""
    subprocess.run(["strip", "-o", target, path], check=True)
    return target


def build(extra, target):
    """Packs what every machine has, and `extra`: absolute path in the machine to file here."""
    files = contents(extra)
    parents = (pathlib.PurePosixPath(name).parents for name in files)
    folders = {str(folder) for up in parents for folder in up} | set(FOLDERS)
    with open(target, "wb") as file:
        archive = Archive(file)
        for folder in sorted(folders - {"."}):
            archive.add(folder, stat.S_IFDIR | 0o755)
        for name, path in sorted(files.items()):
            archive.add(name, stat.S_IFREG | 0o755, path.read_bytes())
        archive.add("TRAILER!!!", 0)


def with_modules(common, modules, target):
    """What every machine has, and one kernel's modules: the kernel unpacks one archive after the
    other."""
    with open(target, "wb") as file:
        with open(common, "rb") as first:
            shutil.copyfileobj(first, file)
        archive = Archive(file)
        archive.add("modules", stat.S_IFDIR | 0o755)
        for number, (name, content) in enumerate(modules.items()):
            archive.add(f"modules/{number:02}-{name}.ko", stat.S_IFREG | 0o644, content)
        archive.add("TRAILER!!!", 0)
