"""NVML's figures of the GPU that trains, beside the training curves: whether it is busy, full, hot or slowed down."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

INTERVAL = 1.0  # seconds between readings: NVML averages over about as much, and a short row must not wait for it
POWER_CAP = 0x4  # of nvmlClocksEventReasons (nvml.h); idle clocks and clocks that the user has set are no slowdown
HEAT = 0x20 | 0x40  # by software, by the hardware
BRAKE = 0x8 | 0x80  # by the hardware, for whatever reason; by the power supply


def _throttled(nvml: Any, gpu: Any) -> float:  # noqa: ANN401 - the module pynvml and its handle have no types
    """0 full speed, 1 at its power limit (usual under load), 2 too hot, 3 slowed down by the hardware."""
    reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)
    return 2.0 if reasons & HEAT else 3.0 if reasons & BRAKE else 1.0 if reasons & POWER_CAP else 0.0


FIGURES: dict[str, Callable[[Any, Any], float]] = {
    "utilization_percent": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
    "memory_gib": lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used / 2**30,  # of all processes
    "power_watts": lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
    "temperature_celsius": lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
    "throttled": _throttled,
}


class GpuFigures:
    """Figures of one CUDA device. On the CPU there are none, and nothing is imported; no failure of NVML is raised."""

    def __init__(self, device: str) -> None:
        self.nvml: Any = None
        self.gpu: Any = None
        self.read_at = -INTERVAL
        if device.startswith("cuda"):  # GPU only
            import torch

            self.open(str(torch.cuda.get_device_properties(device).uuid))

    def open(self, uuid: str) -> None:
        """Find the GPU, or the MIG instance: by its UUID, since CUDA_VISIBLE_DEVICES numbers the devices anew."""
        for kind in ("GPU", "MIG"):
            with suppress(Exception):  # no library, no such package, an old driver: training does without
                import pynvml

                pynvml.nvmlInit()
                self.gpu = pynvml.nvmlDeviceGetHandleByUUID(f"{kind}-{uuid}")
                self.nvml = pynvml
                return

    def read(self) -> dict[str, float]:
        """`gpu/…` → figure, without those that the GPU does not know; {} within a second of the last reading."""
        now = time.monotonic()
        if self.nvml is None or now - self.read_at < INTERVAL:
            return {}
        self.read_at = now
        figures = {}
        for name, ask in FIGURES.items():
            with suppress(Exception):  # each alone; NVMLLibraryMismatchError is not even an NVMLError
                figures[f"gpu/{name}"] = float(ask(self.nvml, self.gpu))
        return figures
