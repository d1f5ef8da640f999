"""The session in which somebody works: SSH, notebook kernels, variables that slow torch down, forked workers."""

from rl.doctor.rules.rule import Fix, Found, Severity, found, rule
from rl.doctor.schema import Facts, Kernel

# Set for a whole container by images and engines, and lost together.
OF_THE_CONTAINER = (
    "CUDA_DEVICE_ORDER",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_VERSION",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "MUJOCO_GL",
    "NVIDIA_DISABLE_REQUIRE",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_VISIBLE_DEVICES",
    "TORCHINDUCTOR_CACHE_DIR",
    "VIRTUAL_ENV",
)
FROM_INIT = "tr '\\0' '\\n' </proc/1/environ | grep -E '^(<names>)='"


@rule(
    "ssh-without-environment",
    "degraded",
    cause="this SSH session lacks the container's environment (<lost>)",
    symptom="In `docker exec` the GPU works, over SSH it does not: nvidia-smi: command not found; libcuda.so.1: cannot "
    "open shared object file; `torch.cuda.is_available()` is False.",
    fixes=(
        Fix("inside", f"export $({FROM_INIT})", "for this session"),
        Fix("inside", f"{FROM_INIT} | sudo tee -a /etc/environment", "for all that come later"),
    ),
)
def ssh_without_environment(facts: Facts) -> Found | None:
    """In an SSH session, of the container's variables that process 1 has (two at least) not a single one is set. Fatal
    where LD_LIBRARY_PATH or LD_PRELOAD is among them and libcuda.so.1 cannot be loaded, although nodes are there. Who
    unset one of them on purpose still has the others.
    """
    before = [name for name in OF_THE_CONTAINER if name in facts.init_environment]
    lost = [name for name in before if name not in facts.environment]
    if not facts.ssh or facts.platform.engine is None:
        return None
    given = facts.platform.dxg or any(node.opened == "ok" for node in facts.nodes.found)
    explains = bool(facts.driver_api.load_error and given and {"LD_LIBRARY_PATH", "LD_PRELOAD"} & set(lost))
    if not explains and (len(lost) < 2 or len(lost) < len(before)):
        return None
    here = facts.environment.get("PATH", "").split(":")
    gone = [folder for folder in facts.init_environment.get("PATH", "").split(":") if folder and folder not in here]
    evidence = [f"process 1 has {name}={facts.init_environment[name]}, this session has none" for name in lost]
    evidence += [f"PATH lacks {', '.join(gone)}"] if gone else []
    names = [*lost, *(["PATH"] if gone else [])]
    severity: Severity | None = "fatal" if explains else None if facts.hardware_visible else "info"
    return found(*evidence, severity=severity, lost=", ".join(lost), names="|".join(names))


@rule(
    "kernel-without-torch",
    "info",
    cause="the notebook kernel '<name>' is another Python, without torch: <python>",
    symptom="ModuleNotFoundError: No module named 'torch' in a notebook, while `python -c 'import torch'` works.",
    fixes=(
        Fix("inside", "python -m ipykernel install --user --name rl", "then choose the kernel rl"),
        Fix("inside", "jupyter kernelspec remove -y <name>", "if nobody needs it"),
    ),
)
def kernel_without_torch(facts: Facts) -> Found | None:
    """A notebook kernel starts another Python than the doctor's, and no folder torch lies where that one looks for
    packages. Degraded if it is python3, which notebooks ask for; kernels of other languages do not count.
    """
    kernels = [kernel for kernel in facts.kernels if kernel.torch is False]
    if not kernels or not facts.torch_build.installed:
        return None
    return _of_kernels(kernels)


@rule(
    "kernel-gone",
    "info",
    cause="the notebook kernel '<name>' cannot start: there is no <python>",
    symptom="Jupyter: Kernel died before replying to kernel_info; No such file or directory: '.../bin/python'.",
    fixes=(
        Fix("inside", "jupyter kernelspec remove -y <name>"),
        Fix("inside", "python -m ipykernel install --user --name <name>", "to give the name to this Python"),
    ),
)
def kernel_gone(facts: Facts) -> Found | None:
    """A notebook kernel names an interpreter that is not there, say that of a deleted environment. Degraded if it is
    python3, which notebooks ask for.
    """
    gone = [kernel for kernel in facts.kernels if not kernel.found]
    return _of_kernels(gone) if gone else None


def _of_kernels(kernels: list[Kernel]) -> Found:
    first = next((kernel for kernel in kernels if kernel.name == "python3"), kernels[0])
    evidence = [f"kernel {kernel.name}: {kernel.python}" for kernel in kernels]
    severity: Severity | None = "degraded" if first.name == "python3" else None
    return found(*evidence, severity=severity, name=first.name, python=first.python)


SLOW = {  # variable → values by which it does nothing, and what it does
    "CUDA_LAUNCH_BLOCKING": (("", "0"), "every kernel is waited for"),
    "CUDA_MODULE_LOADING": (("", "LAZY", "DEFAULT"), "all kernels are loaded at the start, for time and memory"),
    "CUDA_CACHE_DISABLE": (("", "0"), "what the driver compiles is compiled again in each process"),
    "NCCL_P2P_DISABLE": (("", "0"), "GPUs exchange data through CPU memory"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": (("", "0"), "every tensor is allocated by the driver"),
    "PYTORCH_NVML_BASED_CUDA_CHECK": (("", "0"), "is_available() asks NVML only: True does not mean that CUDA works"),
}


@rule(
    "slow-variables",
    "info",
    cause="variables for debugging are set: <names>",
    symptom="Training is slow for no visible reason.",
    fixes=(Fix("inside", "unset <names>", "unless you have set them on purpose"),),
)
def slow_variables(facts: Facts) -> Found | None:
    """One of six variables that slow torch down or weaken its checks is set, on a machine whose GPU is used;
    NCCL_P2P_DISABLE counts with several GPUs only.
    """
    several = (facts.driver_api.count or 0) > 1
    on = [
        name
        for name, (off, _) in SLOW.items()
        if facts.environment.get(name, "") not in off and (several or name != "NCCL_P2P_DISABLE")
    ]
    if not on or not facts.usable:
        return None
    return found(*(f"{name}={facts.environment[name]}: {SLOW[name][1]}" for name in on), names=" ".join(on))


@rule(
    "forked-from-gpu-process",
    "info",
    cause="processes were forked from one that uses the GPU, and cannot use it themselves",
    symptom="RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must "
    "use the 'spawn' start method; CUDA error: initialization error (3).",
    fixes=(Fix("inside", "multiprocessing.set_start_method('forkserver')", "in Python, before the first worker"),),
)
def forked_from_gpu_process(facts: Facts) -> Found | None:
    """A process that holds a GPU's node has the command line of its parent, which holds one too. torch's DataLoader
    forks as well, but names its workers pt_data_worker; harmless where the workers leave CUDA alone.
    """
    holders = {process.pid for process in facts.processes}
    forks = [
        process
        for process in facts.processes
        if process.forked and process.parent in holders and not process.name.startswith("pt_data")
    ]
    return found(*(f"process {fork.pid} ({fork.name}), forked from {fork.parent}" for fork in forks)) if forks else None


SSH = (ssh_without_environment,)
RULES = (kernel_without_torch, kernel_gone, slow_variables, forked_from_gpu_process)
