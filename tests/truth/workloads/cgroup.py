"""A control group with a CPU quota, under cgroup v1 or v2."""

import os


def _v1():
    with open("/proc/self/cgroup") as lines:
        for line in lines:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if "cpu" in controllers.split(","):
                for root in ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"):
                    if os.path.exists(root + path + "/cpu.cfs_quota_us"):
                        return root + path
    return None


def _v2():
    root = "/sys/fs/cgroup"
    if "cpu" not in open(root + "/cgroup.controllers").read().split():
        raise RuntimeError(
            "cgroup v2 offers no cpu controller here, so there is no CPU quota to test"
        )
    with open(root + "/cgroup.subtree_control", "w") as control:
        control.write("+cpu")
    return root


class Group:
    def __init__(self, name, quota_us, period_us):
        v1 = _v1()
        self.path = os.path.join(v1 or _v2(), f"{name}-{os.getpid()}")
        self._v1 = v1 is not None
        os.mkdir(self.path)
        # The highest share: beside others that compute, too, it shall come to its quota.
        if self._v1:
            self._write("cpu.cfs_period_us", period_us)
            self._write("cpu.cfs_quota_us", quota_us)
            self._write("cpu.shares", 262_144)
        else:
            self._write("cpu.max", f"{quota_us} {period_us}")
            self._write("cpu.weight", 10_000)

    def _write(self, file, value):
        with open(os.path.join(self.path, file), "w") as out:
            out.write(str(value))

    def join(self):
        self._write("cgroup.procs", os.getpid())

    def throttled_ns(self):
        """How long it was throttled, as both of the kernel's counters have it: that of the quota,
        and, since Linux 6.6, that of the group's own queues."""
        whole = self._counter("cpu.stat")
        local = os.path.exists(os.path.join(self.path, "cpu.stat.local"))
        return (whole, self._counter("cpu.stat.local") if local else whole)

    def _counter(self, file):
        with open(os.path.join(self.path, file)) as lines:
            stat = dict(line.split() for line in lines)
        return int(stat["throttled_time"]) if self._v1 else int(stat["throttled_usec"]) * 1000

    def remove(self):
        os.rmdir(self.path)
