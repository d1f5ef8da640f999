"""Facts of `rl doctor --full`: what happens when the GPUs are put to work."""

from dataclasses import dataclass

from rl.doctor.schema.driver import Probe


@dataclass(frozen=True)
class Work(Probe):
    """One GPU at work, in a process of its own. An error of "" means that the result was right."""

    device: int | None = None
    matmul: str | None = None  # None: not tried
    convolution: str | None = None
    bf16: str | None = None
    graph: str | None = None
    compile: str | None = None
    jit: str | None = None  # PTX compiled by the driver
    to_gpu: float | None = None  # GB/s from pinned memory
    from_gpu: float | None = None
    clock_reasons: tuple[int, ...] = ()  # NVML's bits, sampled under load
    pcie_width: int | None = None  # under load
    pcie_width_max: int | None = None


@dataclass(frozen=True)
class Full(Probe):
    """All GPUs together."""

    works: tuple[Work, ...] = ()
    all_reduce: str | None = None  # error, or "" where the sum was right; None: one GPU, not tried
    all_reduce_without_p2p: str | None = None  # tried where that failed
    egl: str | None = None  # error of rendering without a screen, "" where it worked
    egl_vendor: str | None = None  # who rendered: NVIDIA, Mesa
