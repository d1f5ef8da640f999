"""What is said where something fails and no other rule knows why."""

from rl.doctor.rules.driver import KERNEL_LOG
from rl.doctor.rules.rule import Fix, Found, found, rule
from rl.doctor.schema import Facts

COLLECT = Fix("inside", "python -m torch.utils.collect_env")
CUDA_ERRORS = {  # cuInit's result → first suspicion
    34: "a stub library was loaded in place of the driver's: LD_LIBRARY_PATH names a folder 'stubs'",
    35: "the driver is too old",
    100: "the driver sees no GPU",
    304: "the driver could not use its device nodes: look at their permissions",
    802: "the system is not ready: on NVSwitch machines the host's fabric manager must run",
    803: "libcuda.so.1 and the kernel driver are of different versions: look for a 'compat' folder in LD_LIBRARY_PATH",
    804: "a cuda-compat library was loaded, which this GPU may not use: take 'compat' out of LD_LIBRARY_PATH",
    999: "after suspend and resume of the host, reload nvidia_uvm; else see the kernel log",
}


@rule(
    "gpu-memory-full",
    "degraded",
    cause="the GPU's memory is full: other processes hold it",
    symptom="CUDA out of memory at the first operation.",
    fixes=(Fix("host", "nvidia-smi"),),
)
def memory_full(facts: Facts) -> Found | None:
    """A sum of four numbers on the current device runs out of memory."""
    error = facts.torch.kernel_error
    return found(error) if error and "out of memory" in error.lower() else None


@rule(
    "torch-kernel-failed",
    "fatal",
    cause="torch finds the GPU, but cannot compute on it",
    symptom="`torch.cuda.is_available()` is True, and the first operation raises a CUDA error.",
    fixes=(COLLECT,),
)
def kernel_failed(facts: Facts) -> Found | None:
    """A sum of four numbers on the current device raises, or is wrong."""
    error = facts.torch.kernel_error
    if error is None or "out of memory" in error.lower():
        return None
    return found(error, f"this torch has kernels for: {facts.torch.arch_flags or 'unknown'}")


@rule(
    "torch-sees-no-gpu",
    "fatal",
    cause="the driver is ready, but torch does not find the GPU",
    symptom="nvidia-smi works, `torch.cuda.is_available()` is False.",
    fixes=(COLLECT,),
)
def sees_no_gpu(facts: Facts) -> Found | None:
    """cuInit succeeds and counts a GPU, and torch says that there is none."""
    run = facts.torch
    if run.available is not False or not facts.driver_usable:
        return None
    return found(*run.warnings, f"the driver API counts {facts.driver_api.count} GPUs, torch {run.count}")


def _circumstances(facts: Facts) -> list[str]:
    shut = [f"/dev/{node.name} cannot be opened: {node.opened}" for node in facts.nodes.found if node.opened != "ok"]
    shut += [f"{name}={value}" for name, value in sorted(facts.environment.items()) if "VISIBLE" in name]
    shut += [f"libcuda.so.1 is {facts.driver_api.path}"] if facts.driver_api.path else []
    if facts.nvml.init:
        shut.append(f"nvmlInit gives {facts.nvml.init} ({facts.nvml.init_name})")
    return shut


@rule(
    "cuda-init-failed",
    "fatal",
    cause="the driver does not start: cuInit gives <code>",
    symptom="CUDA initialization error, CUDA unknown error.",
    fixes=(KERNEL_LOG,),
)
def init_failed(facts: Facts) -> Found | None:
    """cuInit gives a number, and no rule knows the cause better."""
    api = facts.driver_api
    if facts.usable or not facts.gpu_expected or not api.init:
        return None
    first = CUDA_ERRORS.get(api.init, "this number has no explanation here")
    return found(first, *_circumstances(facts), code=f"{api.init} ({api.init_name or 'no name'})")


@rule(
    "gpu-not-usable",
    "fatal",
    cause="a GPU is expected, but the driver has none to give",
    symptom="No devices were found; no CUDA-capable device is detected.",
    fixes=(Fix("host", "nvidia-smi"), KERNEL_LOG),
)
def not_usable(facts: Facts) -> Found | None:
    """A GPU is expected, cuInit raises no error, and there is none."""
    api = facts.driver_api
    if facts.usable or not facts.gpu_expected or api.init:
        return None
    first = f"{api.load_error or f'libcuda.so.1 counts {api.count or 0} GPUs'} ({api.ended})"
    return found(first, *_circumstances(facts))


@rule(
    "nvml-failed",
    "degraded",
    cause="CUDA works, but NVML does not, so utilisation and memory cannot be shown",
    symptom="nvidia-smi: Failed to initialize NVML, while training goes on.",
    fixes=(Fix("host", "nvidia-smi"),),
)
def nvml_failed(facts: Facts) -> Found | None:
    """The driver API is ready, and NVML is not. Normal on a Jetson."""
    nvml = facts.nvml
    initialised = f"nvmlInit gives {nvml.init} ({nvml.init_name})" if nvml.init else ""
    reason = nvml.load_error or nvml.binding_error or initialised
    if not facts.driver_usable or facts.platform.tegra or not reason or facts.lacks_capability("utility"):
        return None
    return found(reason)


RULES = (memory_full, kernel_failed, sees_no_gpu, init_failed, not_usable, nvml_failed)
