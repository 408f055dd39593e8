"""The data folder: its lock, its token and the address it is served at."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from pathlib import Path

# What the host makes; the agents' spools lie beside it.
OWN = ("data", "lock", "token", "endpoint.json")


class FolderInUse(Exception):
    """Another process serves this folder."""


class ForeignFolder(Exception):
    """The folder holds files of others: a store would be put among them, or write over one."""


class Folder:
    """A data folder, held by this process until it ends.

    ``lock`` holds the owner's pid and its lock, ``token`` the password (mode 0600),
    ``endpoint.json`` the address while the folder is served, ``data`` what the engine keeps.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_foreign(path)
        self._lock = self._take_lock()
        self.data = path / "data"
        self.data.mkdir(mode=0o700, exist_ok=True)

    def _take_lock(self) -> int:
        lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(lock)
            raise FolderInUse(
                f"data folder {self.path} is in use by process {owner}. Connect to that one (its"
                f" address is in {self.path / 'endpoint.json'}), stop it, or choose another folder"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        return lock

    def token(self) -> str:
        """The folder's token, made on first use."""
        path = self.path / "token"
        try:
            token = path.read_text().strip()
        except FileNotFoundError:
            token = ""
        if not token:
            token = secrets.token_hex(24)
            _write(path, token + "\n")
        return token

    def advertise(self, url: str) -> None:
        """Writes where the folder is served, for other commands to find."""
        _write(self.path / "endpoint.json", json.dumps({"url": url, "pid": os.getpid()}) + "\n")

    def withdraw(self) -> None:
        """Takes the address back."""
        (self.path / "endpoint.json").unlink(missing_ok=True)


def _refuse_foreign(path: Path) -> None:
    """Writes nothing. The command checks before it: `Contents` in crates/store/src/embedded."""
    lock = path / "lock"
    held = None
    if lock.is_symlink() or lock.exists():
        held = lock.read_bytes().strip() if lock.is_file() and not lock.is_symlink() else b"?"
        if held and not held.isdigit():
            raise _foreign(path, "lock")
    if (path / "data").is_dir() and (held or (path / "token").is_file()):
        return  # a store; what others put beside it is theirs
    for name in os.listdir(path):
        spool = name == "spool" or (name.startswith("spool-") and name[6:].isdigit())
        own = name[:-4] if name.endswith(".new") else name
        # A file system of its own begins with lost+found.
        if name != "lost+found" and not spool and (held is None or own not in OWN):
            raise _foreign(path, name)


def _foreign(path: Path, name: str) -> ForeignFolder:
    text = f"cannot keep a store in {path}: it holds other files ({name}) and is no store"
    return ForeignFolder(f"{text}. Choose an empty or a new folder")


def _write(path: Path, text: str) -> None:
    """Writes a private file in one step, so that no reader sees half of it."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(file, "w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    os.replace(new, path)
