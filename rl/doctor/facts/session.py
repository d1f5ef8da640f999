"""This process's environment, that of process 1, which a session over SSH does not get, and who was forked."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from rl.doctor.facts.files import text_of
from rl.doctor.schema import GpuProcess

# A whole list, because facts are attached to public bug reports: what is not named here is not read.
VARIABLES = (
    "CUDA_CACHE_DISABLE",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_VERSION",
    "CUDA_VISIBLE_DEVICES",
    "GPU_CHECK",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "MUJOCO_GL",
    "NCCL_P2P_DISABLE",
    "NVIDIA_DISABLE_REQUIRE",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "PATH",
    "PYOPENGL_PLATFORM",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "PYTORCH_NVML_BASED_CUDA_CHECK",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "VIRTUAL_ENV",
)


def chosen(variables: Mapping[str, str]) -> dict[str, str]:
    """What is set of `VARIABLES`."""
    return {name: variables[name] for name in VARIABLES if name in variables}


def of_init(root: Path) -> dict[str, str]:
    """The same of process 1's environment; {} where it belongs to another user."""
    try:
        entries = (root / "proc/1/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    pairs = (entry.partition("=") for entry in entries)
    return chosen({name: value for name, _, value in pairs})


def with_forks(root: Path, processes: Iterable[GpuProcess]) -> tuple[GpuProcess, ...]:
    """The processes, each with whether it was forked: then it still has its parent's command line."""

    def command(pid: int) -> str:
        return text_of(root / f"proc/{pid}/cmdline")

    return tuple(
        replace(process, forked=command(process.pid) != "" and command(process.pid) == command(process.parent))
        for process in processes
    )


def worked(root: Path) -> str | None:
    """When a GPU last worked in this container, as self_check.sh wrote it down."""
    line = text_of(root / "tmp/rl/gpu_worked").strip()
    try:
        datetime.fromisoformat(line)
    except ValueError:  # nothing, or not its line
        return None
    return line
