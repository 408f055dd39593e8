"""One boot: what the guest said on its serial lines."""

import dataclasses
import json
import pathlib
import shutil
import subprocess

from packages import Unusable

BOOT_LINE = "console=ttyS0 loglevel=5 panic=-1 softlockup_all_cpu_backtrace=1 softlockup_panic=1"


@dataclasses.dataclass
class Result:
    """What `doctor` printed; checks as (name, ok, detail); `problem` if it ended early."""

    doctor: dict
    checks: list
    problem: str


def boot(kernel, initramfs, folder, seconds):
    if not shutil.which("qemu-system-x86_64"):
        raise Unusable("qemu is needed: apt-get install --no-install-recommends qemu-system-x86")
    lines = {name: folder / f"{kernel.line}.{name}" for name in ("console", "result", "libbpf")}
    command = [
        "qemu-system-x86_64",
        # Software: slower than kvm, but it runs anywhere. One thread for both CPUs: with one each
        # they hung now and then while the kernel changed its code (README.md).
        *("-accel", "tcg,thread=single", "-cpu", "max", "-smp", "2", "-m", "1G"),
        *("-nodefaults", "-no-reboot", "-display", "none"),
        *("-kernel", str(kernel.image), "-initrd", str(initramfs), "-append", BOOT_LINE),
    ]
    for path in lines.values():
        path.unlink(missing_ok=True)
        command += ["-serial", f"file:{path}"]
    problem = ""
    try:
        done = subprocess.run(command, timeout=seconds, capture_output=True, text=True, check=False)
        if done.returncode:
            problem = f"qemu: {done.stderr.strip()}"
    except subprocess.TimeoutExpired:
        problem = f"it did not end within {seconds} s"
    return read(lines, problem)


def read(lines, problem):
    doctor, checks, done = {}, [], False
    for line in text(lines["result"]).splitlines():
        try:
            said = json.loads(line)
        except ValueError:
            continue
        doctor = said.get("doctor", doctor)
        done = done or "done" in said
        if "check" in said:
            checks.append((said["check"], said["ok"], said["detail"]))
    if not done:
        tail = "\n".join(text(lines["console"]).splitlines()[-15:])
        problem = f"{problem or 'it ended before the last check'}\n{tail}"
    return Result(doctor, checks, problem)


def text(path: pathlib.Path):
    return path.read_text(errors="replace") if path.exists() else ""
