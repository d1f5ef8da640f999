"""What `rl doctor --full` saw when the GPUs were put to work. Nothing is said of what was not tried."""

from rl.doctor.rules.driver import KERNEL_LOG, lacks_ptx
from rl.doctor.rules.rule import Fix, Found, first_line, found, rule
from rl.doctor.schema import AllReduce, Facts, Work

WRONG = "the result is wrong"  # as probe_full.py begins what is no exception
LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.56}  # GB/s of one PCIe lane, by generation
WIDTHS = (1, 2, 4, 8, 16)


def _errors(facts: Facts, *names: str) -> list[str]:
    """Errors of these checks, with their GPU; memory that others hold is another finding's subject."""
    results = ((work, name, getattr(work, name)) for work in facts.full.works for name in names)
    return [f"{_gpu(work)}, {name}: {first_line(error)}" for work, name, error in results if error and not _full(error)]


def _gpu(work: Work) -> str:
    return "GPU" if work.device is None else f"GPU {work.device}"


def _full(error: str) -> bool:
    return "out of memory" in error.lower()


@rule(
    "gpu-result-wrong",
    "fatal",
    cause="a GPU computes wrong results",
    symptom="Losses are nan or differ between runs of one seed; illegal memory access at random places; runs on "
    "another GPU are fine.",
    fixes=(
        Fix("host", "nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT"),
        Fix("host", "sudo nvidia-smi -rgc && sudo nvidia-smi -rmc", "takes clocks back that were raised"),
        Fix("inside", "export CUDA_VISIBLE_DEVICES=<others>", "until it is replaced"),
    ),
)
def result_wrong(facts: Facts) -> Found | None:
    """A matrix product or a convolution on the GPU, in float32, differs from the CPU's in float64 by more than TF32
    can explain. Where another GPU is right, the machine is degraded only.
    """
    wrong = [work for work in facts.full.works if any(WRONG in (e or "") for e in (work.matmul, work.convolution))]
    if not wrong:
        return None
    evidence = [error for error in _errors(facts, "matmul", "convolution") if WRONG in error]
    others = [str(work.device) for work in facts.full.works if work not in wrong]
    fixes = result_wrong.fixes if others else result_wrong.fixes[:-1]
    return found(*evidence, severity="degraded" if others else None, fixes=fixes, others=",".join(others))


@rule(
    "gpu-work-failed",
    "degraded",
    cause="a GPU does not get through plain work: '<step>' fails",
    symptom="CUDA error: an illegal memory access was encountered; CUBLAS_STATUS_EXECUTION_FAILED; "
    "CUDNN_STATUS_EXECUTION_FAILED; training stops at its first update, or never returns.",
    fixes=(KERNEL_LOG, Fix("inside", "CUDA_LAUNCH_BLOCKING=1 rl doctor --full", "names the call that fails")),
)
def work_failed(facts: Facts) -> Found | None:
    """A matrix product or a convolution on the GPU raises, or the process that works with it is ended by a signal or
    does not return within five minutes. Memory that others hold is no fault of the GPU.
    """
    errors = [error for error in _errors(facts, "error", "matmul", "convolution") if WRONG not in error]
    ended = [work for work in facts.full.works if work.ended not in ("ok", "not run")]
    errors += [f"{_gpu(work)}, '{work.step}': {work.ended} after {work.seconds:.0f} s" for work in ended]
    if not errors:
        return None
    raised = [name for name in ("error", "matmul", "convolution") if _errors(facts, name)]
    step = ended[0].step if ended else {"error": "import torch"}.get(raised[0], raised[0])
    return found(*errors, step=step)


@rule(
    "bf16-failed",
    "degraded",
    cause="bfloat16 does not work on this GPU",
    symptom="--precision bf16 raises an error or trains to nan, while float32 trains.",
    fixes=(Fix("inside", "rl train ... --precision fp16"), Fix("inside", "rl train ... --precision fp32")),
)
def bf16_failed(facts: Facts) -> Found | None:
    """A product under autocast raises or is wrong, on a GPU that has the unit (capability 8.0 on)."""
    errors = _errors(facts, "bf16")
    return found(*errors) if errors else None


@rule(
    "cuda-graph-failed",
    "degraded",
    cause="CUDA graphs do not work here",
    symptom="cudaErrorStreamCaptureUnsupported; operation not permitted when stream is capturing.",
    fixes=(Fix("inside", "rl train ... --accelerate eager"),),
)
def graph_failed(facts: Facts) -> Found | None:
    """A layer recorded as a CUDA graph and replayed on other numbers raises, or gives another result than the CPU."""
    errors = _errors(facts, "graph")
    return found(*errors) if errors else None


@rule(
    "compile-failed",
    "degraded",
    cause="torch.compile does not work here",
    symptom="torch._inductor.exc.InductorError; BackendCompilerFailed: backend='inductor' raised; Triton's "
    "CalledProcessError or PTXASError.",
    fixes=(
        Fix("inside", "rl train ... --accelerate eager"),
        Fix("inside", "rm -r ~/.triton/cache ${TORCHINDUCTOR_CACHE_DIR:-/tmp/torchinductor_$USER}", "then try again"),
    ),
)
def compile_failed(facts: Facts) -> Found | None:
    """A compiled kernel raises or is wrong. A compiler or a cache folder that is missing is another finding's cause."""
    errors = _errors(facts, "compile")
    if not errors or facts.tools.compiler == "" or facts.tools.cache_error or lacks_ptx(facts):
        return None
    return found(*errors)


@rule(
    "driver-jit-failed",
    "degraded",
    cause="the driver does not compile PTX, the code of kernels that were not made for this very GPU",
    symptom="PTX JIT compiler library not found (CUDA_ERROR_JIT_COMPILER_NOT_FOUND); a PTX JIT compilation failed, "
    "by extensions and kernels that have no code for this very GPU.",
    fixes=(
        Fix("host", "sudo ubuntu-drivers install && sudo reboot", "on Ubuntu; elsewhere NVIDIA's newest driver"),
        Fix("wsl", "in Windows, install NVIDIA's newest driver; then: wsl --update"),
    ),
)
def jit_failed(facts: Facts) -> Found | None:
    """cuModuleLoadData refuses an empty kernel in the PTX version of torch's CUDA, for another reason than that it is
    newer than the driver (222), which is a finding of its own.
    """
    errors = _errors(facts, "jit")
    return found(*errors) if errors and not lacks_ptx(facts) else None


def _failed(ranks: tuple[AllReduce, ...]) -> list[str]:
    """Evidence of the ranks whose sum did not come out right; [] where there was nothing to sum, or nobody began."""
    said = []
    for rank in ranks:
        if rank.error == "" and rank.ended in ("ok", "not run"):
            continue
        how = first_line(rank.error) if rank.error else f"'{rank.step}': {rank.ended} after {rank.seconds:.0f} s"
        said.append(f"rank {rank.rank}, {how}" if rank.rank is not None else how)
    return said if any(rank.ended != "not run" for rank in ranks) else []


@rule(
    "nccl-needs-p2p-off",
    "degraded",
    cause="GPUs cannot reach each other's memory (P2P): NCCL works without it only, which is slower",
    symptom="torchrun, DDP or an all_reduce hangs for ever, with all GPUs at 100 %; Watchdog caught collective "
    "operation timeout.",
    fixes=(
        Fix("inside", "export NCCL_P2P_DISABLE=1", "for now"),
        Fix("host", "sudo lspci -vvv | grep ACSCtl", "shows whether ACS is on (SrcValid+): the BIOS can switch it off"),
        Fix("host", "iommu=pt", "for GRUB_CMDLINE_LINUX in /etc/default/grub, then: sudo update-grub && sudo reboot"),
    ),
)
def needs_p2p_off(facts: Facts) -> Found | None:
    """A sum over all GPUs by NCCL hangs, fails or is wrong, and comes out right with NCCL_P2P_DISABLE=1. An IOMMU alone
    proves nothing.
    """
    failed, again = _failed(facts.full.all_reduce), facts.full.all_reduce_without_p2p
    if not failed or not again or any(rank.error != "" for rank in again):
        return None
    iommu = ["an IOMMU is on: /sys/kernel/iommu_groups is not empty"] if facts.limits.iommu else []
    return found(*failed, "with NCCL_P2P_DISABLE=1 the sum is right", *iommu)


@rule(
    "nccl-failed",
    "degraded",
    cause="GPUs cannot work together: NCCL fails",
    symptom="torch.distributed.DistBackendError: NCCL error; torchrun or DDP hangs for ever.",
    fixes=(Fix("inside", "NCCL_DEBUG=INFO torchrun --nproc-per-node=<gpus> ...", "the first WARN names the reason"),),
)
def nccl_failed(facts: Facts) -> Found | None:
    """A sum over all GPUs by NCCL hangs, fails or is wrong, and so it does with NCCL_P2P_DISABLE=1."""
    failed = _failed(facts.full.all_reduce)
    if not failed or needs_p2p_off(facts):
        return None
    return found(*failed, gpus=len(facts.full.all_reduce))


@rule(
    "copies-slow",
    "info",
    cause="copies between memory and a GPU are slow for its PCIe link",
    symptom="The GPU waits for data; nvidia-smi shows it at work for a small part of the time.",
    fixes=(Fix("host", "nvidia-smi topo -m", "a job on the CPU cores nearest its GPU copies fastest"),),
)
def copies_slow(facts: Facts) -> Found | None:
    """Pinned memory is copied at less than four tenths of what the PCIe link's generation and lanes under load give.
    Other jobs may use the same link, so it is a note. WSL2, Jetson and virtual GPUs have other ways.
    """
    if facts.platform.own_way or any(gpu.virtual for gpu in facts.nvml.gpus):
        return None
    evidence = []
    for work in facts.full.works:
        lane, width = LANE.get(work.pcie_generation or 0), work.pcie_width
        if lane is None or width not in WIDTHS:
            continue
        for words, speed in {"to": work.to_gpu, "from": work.from_gpu}.items():
            if speed is not None and 0 < speed < 0.4 * lane * width:
                evidence.append(f"{speed:.1f} GB/s {words} {_gpu(work)}, whose link gives {lane * width:.0f} GB/s")
    return found(*evidence) if evidence else None


RULES = (
    result_wrong,
    work_failed,
    bf16_failed,
    graph_failed,
    compile_failed,
    jit_failed,
    needs_p2p_off,
    nccl_failed,
    copies_slow,
)
