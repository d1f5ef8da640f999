"""What this container may use, and who in it uses a GPU."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from rl.doctor.facts.files import text_of
from rl.doctor.schema import GpuProcess, Limits

NO_LIMIT = 2**60  # cgroup v1 writes "none" as the largest multiple of a page that fits 63 bits
# What multiprocessing's and torch's workers are called: they serve their parent, and are of no use without it.
WORKER = re.compile(r"multiprocessing\.(spawn|forkserver)|--multiprocessing-fork|^pt_data_worker")


def limits(root: Path) -> Limits:
    """See `Limits`."""
    total, free = _space(root / "dev/shm")
    pids_max, pids_current = _pids(root)
    return Limits(
        shm_total=total,
        shm_free=free,
        shm_stale=_stale(root),
        memlock=_rlimit(root, "Max locked memory"),
        open_files=_rlimit(root, "Max open files"),
        processes=_rlimit(root, "Max processes") if _uid(root) else None,  # it does not bind root
        pids_max=pids_max,
        pids_current=pids_current,
        memory=_memory(root),
        out_of_memory_kills=_kills(root),
        cores=_cores(root),
        infiniband=(root / "dev/infiniband").exists(),
        iommu=bool(_names(root / "sys/kernel/iommu_groups")),
    )


def gpu_processes(root: Path) -> tuple[GpuProcess, ...]:
    """The processes of this namespace that hold a node /dev/nvidia… open."""
    if not any(re.fullmatch(r"nvidia\d+|dxg", name) for name in _names(root / "dev")):
        return ()  # nothing to hold: spare the walk through all open files
    found = (_gpu_process(root, pid) for pid in _pid_folders(root))
    return tuple(process for process in found if process and os.getpid() not in (process.pid, process.parent))


def _gpu_process(root: Path, pid: int) -> GpuProcess | None:
    folder = root / f"proc/{pid}"
    if not any(re.fullmatch(r"/dev/(nvidia\d+|dxg)", target) for target in _links(folder / "fd")):
        return None
    name, _, rest = text_of(folder / "stat").partition("(")[2].rpartition(")")  # a name may hold any character
    fields = rest.split()
    state, parent = (fields[0], fields[1]) if len(fields) > 1 else ("", "")
    try:
        age = float(text_of(root / "proc/uptime").split()[0]) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (IndexError, ValueError):
        age = 0.0
    worker = bool(WORKER.search(name) or WORKER.search(text_of(folder / "cmdline")))
    name = re.sub(r"[^\w .:+-]", "?", name)  # it is printed
    return GpuProcess(pid, name, state, int(parent) if parent.isdecimal() else 0, round(max(age, 0.0)), worker=worker)


def _stale(root: Path) -> tuple[str, ...]:
    """Shared memory of torch whose process is gone, and of NCCL that no process has mapped or open."""
    names = _names(root / "dev/shm")
    stale = [name for name in names if (made := re.fullmatch(r"torch_(\d+)_\w+", name)) and not _alive(root, made[1])]
    nccl = [name for name in names if re.fullmatch(r"nccl-\w+", name)]
    if nccl:
        used = "\n".join(
            text for pid in _pid_folders(root) for text in (text_of(root / f"proc/{pid}/maps"), *_links_of(root, pid))
        )
        stale += [name for name in nccl if f"/dev/shm/{name}" not in used]
    return tuple(sorted(stale))


def _alive(root: Path, pid: str) -> bool:
    return (root / "proc" / pid).exists()


def _links_of(root: Path, pid: int) -> Iterator[str]:
    return _links(root / f"proc/{pid}/fd")


def _links(folder: Path) -> Iterator[str]:
    for name in _names(folder):
        try:
            yield os.readlink(folder / name)
        except OSError:  # closed meanwhile
            continue


def _pid_folders(root: Path) -> list[int]:
    return sorted(int(name) for name in _names(root / "proc") if name.isdecimal())


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # not there, or another user's
        return []


def _space(folder: Path) -> tuple[int | None, int | None]:
    try:
        status = os.statvfs(folder)
    except OSError:
        return None, None
    return status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize


def _rlimit(root: Path, name: str) -> int | None:
    """The soft limit, which children inherit; None: unlimited."""
    line = re.search(rf"^{name} +(\d+)", text_of(root / "proc/self/limits"), re.MULTILINE)
    return int(line[1]) if line else None


def _uid(root: Path) -> int:
    line = re.search(r"^Uid:\s+\d+\s+(\d+)", text_of(root / "proc/self/status"), re.MULTILINE)
    return int(line[1]) if line else 0


def _cores(root: Path) -> int | None:
    line = re.search(r"^Cpus_allowed_list:\s+([\d,-]+)", text_of(root / "proc/self/status"), re.MULTILINE)
    parts = [part.split("-") for part in line[1].split(",")] if line else []
    return sum(int(part[-1]) - int(part[0]) + 1 for part in parts) if parts and all(map(all, parts)) else None


def _cgroups(root: Path, controller: str) -> list[Path]:
    """Folders of this process's cgroup and of those around it, the innermost first: v2's, and the controller's of v1.

    A container sees its own cgroup as the root, either by a namespace or by the mount: then its path leads nowhere.
    """
    folders = []
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, names, path = (*line.split(":", 2), "", "")[:3]
        if names and controller not in names.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if names else "")
        parts = [part for part in path.split("/") if part not in ("", "..")]
        folders += [mount.joinpath(*parts[:length]) for length in range(len(parts), -1, -1)]
    return folders or [root / "sys/fs/cgroup", root / "sys/fs/cgroup" / controller]


def _number(path: Path) -> int | None:
    text = text_of(path).strip()
    return int(text) if text.isdecimal() and len(text) < 20 else None


def _pids(root: Path) -> tuple[int | None, int | None]:
    """Limit and use where the least is left."""
    pairs = ((_number(folder / "pids.max"), _number(folder / "pids.current")) for folder in _cgroups(root, "pids"))
    known = [(most, current) for most, current in pairs if most is not None and current is not None]
    return min(known, key=lambda pair: pair[0] - pair[1], default=(None, None))


def _memory(root: Path) -> int | None:
    files = [folder / name for folder in _cgroups(root, "memory") for name in ("memory.max", "memory.limit_in_bytes")]
    return min((size for file in files if (size := _number(file)) is not None and size < NO_LIMIT), default=None)


def _kills(root: Path) -> int:
    """How often the kernel killed a process of this very cgroup for its memory."""
    for folder in _cgroups(root, "memory"):
        for name in ("memory.events", "memory.oom_control"):
            line = re.search(r"^oom_kill (\d{1,18})$", text_of(folder / name), re.MULTILINE)
            if line:
                return int(line[1])
    return 0
