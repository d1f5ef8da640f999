"""The questions that probe.py puts to NVML, of which it runs this file: in the child, nothing of rl can be imported."""

import ctypes
from collections.abc import Callable
from typing import Any


class Nvml:
    """Questions to NVML. None for what it does not answer: most are not for every board and driver."""

    NOT_FOUND, LOST, RESET_REQUIRED = 13, 15, 16

    def __init__(self, pynvml: Any, say: Callable[..., None]) -> None:  # noqa: ANN401 - the package
        self.pynvml = pynvml
        self.say = say  # announces each step to the parent
        self.unknown: set[str] = set()  # functions that this driver's library does not have

    def __call__(self, name: str, *arguments: object) -> Any:  # noqa: ANN401 - as the function answers
        """The function's answer; raises where it says that the GPU is lost, or has to be reset."""
        self.say(step=name)
        try:
            answer = getattr(self.pynvml, name)(*arguments)
        except self.pynvml.NVMLError as error:
            if error.value in (self.LOST, self.RESET_REQUIRED):
                raise
            if error.value == self.NOT_FOUND:
                self.unknown.add(name)
            return None
        except AttributeError:  # an older nvidia-ml-py
            return None
        except Exception:  # noqa: BLE001 - NVMLLibraryMismatchError is no NVMLError
            self.unknown.add(name)
            return None
        return _text(answer)

    def handle(self, index: int) -> Any:  # noqa: ANN401 - a handle, or the number of an error
        """The GPU's handle, or the error's number as an int."""
        self.say(step=f"nvmlDeviceGetHandleByIndex {index}")
        try:
            return self.pynvml.nvmlDeviceGetHandleByIndex(index)
        except self.pynvml.NVMLError as error:
            return int(error.value)

    def gpu(self, handle: Any) -> dict[str, object]:  # noqa: ANN401
        """`schema.NvmlGpu` of one GPU, as far as it answers."""
        if isinstance(handle, int):
            return {"error": handle}
        facts: dict[str, object] = {}
        try:
            for part in (self._board, self._state, self._errors, self._mig):
                facts |= part(handle)
        except self.pynvml.NVMLError as error:
            facts["error"] = error.value
        return {name: value for name, value in facts.items() if value is not None}

    def _board(self, handle: object) -> dict[str, object]:
        pci, memory = self("nvmlDeviceGetPciInfo", handle), self("nvmlDeviceGetMemoryInfo", handle)
        virtualization = self("nvmlDeviceGetVirtualizationMode", handle)
        return {
            "name": self("nvmlDeviceGetName", handle),
            "uuid": self("nvmlDeviceGetUUID", handle),
            "pci": pci and _text(pci.busId),
            "minor": self("nvmlDeviceGetMinorNumber", handle),
            "memory_bytes": memory and memory.total,
            "memory_used": memory and memory.used,
            "capability": self("nvmlDeviceGetCudaComputeCapability", handle),
            "virtual": None if virtualization is None else virtualization == 2,  # a vGPU; 1 is a GPU passed through
        }

    def _state(self, handle: object) -> dict[str, object]:
        persistence, load = self("nvmlDeviceGetPersistenceMode", handle), self("nvmlDeviceGetUtilizationRates", handle)
        power, reasons = self("nvmlDeviceGetPowerUsage", handle), self("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None:  # its name before driver 535
            reasons = self("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        return {
            "compute_mode": self("nvmlDeviceGetComputeMode", handle),
            "persistence": None if persistence is None else bool(persistence),
            "utilization": load and load.gpu,
            "temperature": self("nvmlDeviceGetTemperature", handle, 0),
            "power": None if power is None else power / 1000,
            "clock_reasons": reasons,
            "pcie_width": self("nvmlDeviceGetCurrPcieLinkWidth", handle),
            "pcie_width_max": self("nvmlDeviceGetMaxPcieLinkWidth", handle),
        }

    def _errors(self, handle: object) -> dict[str, object]:
        rows = self("nvmlDeviceGetRemappedRows", handle)  # since Ampere: corrected, uncorrected, pending, failed
        pending = rows[2] if rows else self("nvmlDeviceGetRetiredPagesPendingStatus", handle)  # before
        recovery = self("nvmlDeviceGetFieldValues", handle, [230])  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
        known = recovery is not None and recovery[0].nvmlReturn == 0
        fabric: Any = getattr(self.pynvml, "c_nvmlGpuFabricInfoV_t", ctypes.c_int)()  # not in an old nvidia-ml-py
        asked = self("nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(fabric)) == 0
        return {
            "remap_pending": None if pending is None else bool(pending),
            "remap_failed": bool(rows[3]) if rows else None,
            "recovery_action": recovery[0].value.uiVal if known else None,
            "fabric_state": getattr(fabric, "state", None) if asked else None,
        }

    def _mig(self, handle: object) -> dict[str, object]:
        mode = self("nvmlDeviceGetMigMode", handle)
        if not mode or mode[0] != 1:
            return {"mig": None if mode is None else False}
        most = self("nvmlDeviceGetMaxMigDeviceCount", handle) or 0
        instances = [self("nvmlDeviceGetMigDeviceHandleByIndex", handle, index) for index in range(most)]
        return {"mig": True, "mig_uuids": [self("nvmlDeviceGetUUID", one) for one in instances if one is not None]}


def _text(answer: Any) -> Any:  # noqa: ANN401 - anything that is not bytes stays as it is
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer
