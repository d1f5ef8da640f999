"""What this container may use, and who in it uses a GPU."""

from pathlib import Path

from rl.doctor.schema import GpuProcess, Limits


def limits(root: Path) -> Limits:
    """See `Limits`."""
    return Limits()


def gpu_processes(root: Path) -> tuple[GpuProcess, ...]:
    """The processes of this namespace that hold a node /dev/nvidia… open."""
    return ()
