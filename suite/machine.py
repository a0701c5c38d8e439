"""The machine a campaign runs on, as far as its numbers depend on it."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

import psutil

from suite.results.model import Machine

CPUINFO = Path("/proc/cpuinfo")
GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def read_machine() -> Machine:
    """Reads kernel, CPU, affinity and memory; never user or host names."""
    fields = _cpuinfo()
    flags = fields.get("flags")
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    online = os.cpu_count() or 1
    return Machine(
        os_kernel=f"{platform.system()} {platform.release()}",
        cpu_model=cpu_model(fields),
        cpu_flags_sha256=(
            hashlib.sha256(" ".join(sorted(flags.split())).encode()).hexdigest() if flags else None
        ),
        cpus_online=online,
        cpus_allowed=tuple(allowed or range(online)),
        governor=GOVERNOR.read_text().strip() if GOVERNOR.is_file() else None,
        memory_bytes=psutil.virtual_memory().total,
    )


def load_average() -> float:
    """Processes running or waiting, averaged over one minute."""
    return os.getloadavg()[0]


def cpu_model(fields: dict[str, str]) -> str:
    """Model name, with family, model and stepping where a hypervisor hides the name."""
    name = fields.get("model name", platform.processor() or platform.machine())
    numbers = [fields.get(key) for key in ("cpu family", "model", "stepping")]
    if all(numbers):
        return f"{name} (family {numbers[0]}, model {numbers[1]}, stepping {numbers[2]})"
    return name


def _cpuinfo() -> dict[str, str]:
    """The fields of the first CPU."""
    if not CPUINFO.is_file():
        return {}
    first = CPUINFO.read_text().split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
