"""This process's environment, and that of process 1, which a session over SSH does not get."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from rl.doctor.facts.files import text_of

# A whole list, because facts are attached to public bug reports: what is not named here is not read.
VARIABLES = (
    "CUDA_DEVICE_ORDER",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_VERSION",
    "CUDA_VISIBLE_DEVICES",
    "GPU_CHECK",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "MUJOCO_GL",
    "NVIDIA_DISABLE_REQUIRE",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_VISIBLE_DEVICES",
)


def chosen(variables: Mapping[str, str]) -> dict[str, str]:
    """What is set of `VARIABLES`."""
    return {name: variables[name] for name in VARIABLES if name in variables}


def of_init(root: Path) -> dict[str, str]:
    """The same of process 1's environment; {} where it belongs to another user."""
    return {}


def worked(root: Path) -> str | None:
    """When a GPU last worked in this container, as self_check.sh wrote it down."""
    line = text_of(root / "tmp/rl/gpu_worked").strip()
    try:
        datetime.fromisoformat(line)
    except ValueError:  # nothing, or not its line
        return None
    return line
