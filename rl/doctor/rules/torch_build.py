"""torch: whether it is there, whole, built for CUDA, and able to use the GPU that the driver has."""

from rl.doctor.rules.driver import WHEEL_FOR
from rl.doctor.rules.finding import Finding, Fix
from rl.doctor.schema import Facts


def missing(facts: Facts) -> Finding | None:
    """There is no torch for this Python."""
    asked = facts.torch.ended != "not run"
    if not facts.torch.missing if asked else facts.torch_build.installed:
        return None
    cause = "torch is not installed for this Python"
    evidence = (facts.torch.error or "no folder named torch on Python's search path",)
    return Finding("torch-missing", "fatal", cause, evidence, (_reinstall(facts),))


def broken(facts: Facts) -> Finding | None:
    """Importing torch, or the first question to it, raises."""
    if facts.torch.error is None or facts.torch.missing:
        return None
    cause = f"torch is installed but broken: '{facts.torch.step}' fails"
    return Finding("torch-broken", "fatal", cause, (facts.torch.error,), (_reinstall(facts),))


def died(facts: Facts) -> Finding | None:
    """The process that asked torch crashed."""
    if facts.torch.ended in ("ok", "not run", "timeout"):
        return None
    evidence = (f"'{facts.torch.step}' ended the process: {facts.torch.ended}", *facts.torch.stderr.splitlines()[-3:])
    return Finding("torch-crashed", "fatal", "torch crashes", evidence, (_reinstall(facts),))


def hung(facts: Facts) -> Finding | None:
    """Torch did not answer within its limit."""
    if facts.torch.ended != "timeout":
        return None
    evidence = (f"'{facts.torch.step}' had not returned after {facts.torch.seconds:.0f} s",)
    again = Fix("inside", "rl doctor", "again: the first import from a slow disk may take minutes")
    return Finding("torch-hung", "fatal", "torch does not answer", evidence, (again,))


def cpu_build(facts: Facts) -> Finding | None:
    """A torch without CUDA where a GPU is there to be used."""
    reachable = facts.driver_usable or any(node.opened == "ok" for node in facts.gpu_nodes)
    version, hip = facts.torch_version, facts.torch.hip or facts.torch_build.hip
    if not reachable or version is None or facts.torch_cuda or hip:
        return None
    cause = f"torch {version} is a CPU-only build, although a GPU is here"
    evidence = ("torch.version.cuda is None",)
    return Finding("torch-cpu-build", "fatal", cause, evidence, (_reinstall(facts),))


def sees_no_gpu(facts: Facts) -> Finding | None:
    """The driver has a GPU, and torch says that there is none."""
    run = facts.torch
    if run.available is not False or not facts.driver_usable:
        return None
    cause = "the driver is ready, but torch does not find the GPU"
    evidence = (*run.warnings, f"the driver API counts {facts.driver_api.count} GPUs, torch {run.count}")
    return Finding("torch-sees-no-gpu", "fatal", cause, evidence, (Fix("inside", "python -m torch.utils.collect_env"),))


def kernel_failed(facts: Facts) -> Finding | None:
    """Torch finds the GPU but cannot add on it; a GPU whose memory others fill is only busy."""
    error = facts.torch.kernel_error
    if error is None:
        return None
    if "out of memory" in error.lower():
        cause = "the GPU's memory is full: other processes hold it"
        return Finding("gpu-memory-full", "degraded", cause, (error,), (Fix("host", "nvidia-smi"),))
    evidence = (error, f"this torch has kernels for: {facts.torch.arch_flags or 'unknown'}")
    cause = "torch finds the GPU, but cannot compute on it"
    return Finding(
        "torch-kernel-failed", "fatal", cause, evidence, (Fix("inside", "python -m torch.utils.collect_env"),)
    )


def _reinstall(facts: Facts) -> Fix:
    """The wheel for this driver's CUDA; the newest one where that is not known."""
    if not facts.hardware_visible:
        return Fix("inside", "pip install --force-reinstall torch")
    newest = max(WHEEL_FOR)
    return Fix("inside", WHEEL_FOR.get((facts.driver_api.version or 0) // 1000, WHEEL_FOR[newest]))
