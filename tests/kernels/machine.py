"""One boot: what the guest said on its serial lines."""

import dataclasses
import json
import pathlib
import shutil
import subprocess
import threading

from packages import Unusable

# The second CPU is switched on by `guest/init`: 6.1 waits for ever for one that starts while it
# boots if time is counted in instructions.
BOOT_LINE = (
    "console=ttyS0 loglevel=5 panic=-1 softlockup_all_cpu_backtrace=1 softlockup_panic=1 maxcpus=1"
)


@dataclasses.dataclass
class Result:
    """What `doctor` printed; checks as (name, ok, detail); `problem` if it ended early."""

    doctor: dict = dataclasses.field(default_factory=dict)
    checks: list = dataclasses.field(default_factory=list)
    problem: str = ""


def command(kernel, initramfs, only, console, libbpf):
    if not shutil.which("qemu-system-x86_64"):
        raise Unusable("qemu is needed: apt-get install --no-install-recommends qemu-system-x86")
    # What the kernel does not know, it hands to init.
    boot_line = f"{BOOT_LINE} ONLY={','.join(only)}" if only else BOOT_LINE
    return [
        # It ends with us, however we end.
        *("setpriv", "--pdeathsig", "KILL"),
        "qemu-system-x86_64",
        # Software: slower than kvm, but it runs anywhere. One thread for both CPUs: with one each
        # they hung now and then while the kernel changed its code (README.md).
        *("-accel", "tcg,thread=single", "-cpu", "max", "-smp", "2", "-m", "1G"),
        # Time is counted in instructions, 1 ns each, and does not pass while the host does
        # something else (README.md).
        *("-icount", "shift=0,sleep=off"),
        *("-nodefaults", "-no-reboot", "-display", "none"),
        *("-kernel", str(kernel.image), "-initrd", str(initramfs), "-append", boot_line),
        *("-serial", f"file:{console}", "-serial", "stdio", "-serial", f"file:{libbpf}"),
    ]


def boot(kernel, initramfs, folder, only, seconds, tell):
    """Boots, and calls `tell` with each of the guest's answers as it comes. Runs all, or of the
    trackers' tests those whose names contain one of `only`."""
    console, libbpf = (folder / f"{kernel.line}.{name}" for name in ("console", "libbpf"))
    for path in (console, libbpf):
        path.unlink(missing_ok=True)
    late = threading.Event()
    with subprocess.Popen(
        command(kernel, initramfs, only, console, libbpf),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as qemu:

        def end():
            late.set()
            qemu.kill()

        timer = threading.Timer(seconds, end)
        timer.start()
        try:
            with open(folder / f"{kernel.line}.result", "w") as copy:
                result, during = listen(qemu.stdout, copy, tell)
        finally:
            timer.cancel()
            qemu.kill()
    if during:
        why = f"did not end within {seconds} s" if late.is_set() else "ended early"
        tail = "\n".join(text(console).splitlines()[-15:])
        result.problem = f"it {why}: {during}\n{tail}"
    return result


def listen(lines, copy, tell):
    """What the guest answered, and what it was doing last unless it came to its end."""
    result, during = Result(), "before the first test"
    for line in lines:
        copy.write(line)
        copy.flush()
        try:
            said = json.loads(line)
        except ValueError:
            continue
        result.doctor = said.get("doctor", result.doctor)
        if "begin" in said:
            during = f"during {said['begin']}"
        if "check" in said:
            during = f"after {said['check']}"
            result.checks.append((said["check"], said["ok"], said["detail"]))
        if "done" in said:
            during = ""
        tell(said)
    return result, during


def text(path: pathlib.Path):
    return path.read_text(errors="replace") if path.exists() else ""
