"""How much memory can still be used: on a GPU, on the host, or within the container's own limit."""

import sys
from pathlib import Path

import torch

from rl.errors import RunError

CGROUP = {  # limit, usage, and what of the usage the kernel gives back under pressure (files read but not in use)
    "v2": ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current", "sys/fs/cgroup/memory.stat"),
    "v1": (
        "sys/fs/cgroup/memory/memory.limit_in_bytes",
        "sys/fs/cgroup/memory/memory.usage_in_bytes",
        "sys/fs/cgroup/memory/memory.stat",
    ),
}


def available_bytes(device: str, root: Path = Path("/")) -> int:
    """Bytes that can be allocated on `device`: the least of what the host has free and what the cgroup still allows.

    A container sees the host's memory, and is killed at its own limit: the cgroup decides. `root` is there for tests.
    """
    if device.startswith("cuda"):  # GPU only
        return int(torch.cuda.mem_get_info(device)[0])
    free = [_host_available(root), *(_cgroup_available(root, *files) for files in CGROUP.values())]
    return min((size for size in free if size is not None), default=sys.maxsize)


def check_fits(size: int, device: str, what: str, remedy: str) -> None:
    """Raise RunError where `size` bytes for `what` would take more than is available; `remedy` says what to give."""
    available = available_bytes(device)
    if size > available:
        raise RunError(f"{what} needs {size / 2**30:.2f} GiB, and {available / 2**30:.2f} GiB are free here: {remedy}")


def _host_available(root: Path) -> int | None:
    text = _read(root / "proc/meminfo")
    line = next((line for line in text.splitlines() if line.startswith("MemAvailable:")), None)
    return int(line.split()[1]) * 1024 if line else None


def _cgroup_available(root: Path, limit_file: str, usage_file: str, stat_file: str) -> int | None:
    limit, usage = _read(root / limit_file).strip(), _read(root / usage_file).strip()
    if not (limit.isdigit() and usage.isdigit()):  # no such cgroup, or no limit ("max")
        return None
    stat = dict(line.split() for line in _read(root / stat_file).splitlines())
    reclaimable = int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))
    return max(int(limit) - int(usage) + reclaimable, 0)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
