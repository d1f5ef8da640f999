"""Facts of `rl doctor --full`: what happens when the GPUs are put to work.

A result of "" is right; anything else is the error, in words; None: not tried.
"""

from dataclasses import dataclass, field

from rl.doctor.schema.driver import Probe


@dataclass(frozen=True)
class Work(Probe):
    """One GPU at work, in a process of its own."""

    device: int | None = None  # the number of the GPU, as torch counts
    error: str | None = None  # torch itself cannot be imported
    matmul: str | None = None
    convolution: str | None = None
    bf16: str | None = None
    graph: str | None = None  # a CUDA graph
    compile: str | None = None  # torch.compile
    jit: str | None = None  # PTX compiled by the driver
    to_gpu: float | None = None  # GB/s from pinned memory
    from_gpu: float | None = None
    clock_reasons: tuple[int, ...] = ()  # NVML's bits, sampled under load
    pcie_generation: int | None = None  # under load
    pcie_width: int | None = None  # lanes, under load
    pcie_width_max: int | None = None


@dataclass(frozen=True)
class AllReduce(Probe):
    """One rank of a sum over all GPUs by NCCL."""

    rank: int | None = None
    error: str | None = None


@dataclass(frozen=True)
class Rendering(Probe):
    """A picture drawn by EGL, without a screen."""

    error: str | None = None
    by: str = ""  # mujoco; eglQueryDevicesEXT where MuJoCo is not installed: then no picture was drawn
    vendor: str = ""  # who drew: NVIDIA Corporation, Mesa/X.org
    renderer: str = ""  # NVIDIA H200/PCIe/SSE2, llvmpipe (LLVM 15.0.6, 256 bits)


@dataclass(frozen=True)
class Full:
    """All of it."""

    works: tuple[Work, ...] = ()  # one for each GPU that torch sees
    all_reduce: tuple[AllReduce, ...] = ()  # one for each GPU, where there are several
    all_reduce_without_p2p: tuple[AllReduce, ...] = ()  # again with NCCL_P2P_DISABLE=1, where that failed
    rendering: Rendering = field(default_factory=Rendering)
