"""GPUs at work (`rl doctor --full`): what each rule makes of it. test_full.py has the work itself."""

from dataclasses import replace

import pytest
from machine_facts import OWN_WAYS, gpu_machine, nvml_gpu
from rule_tests import fires, silent

from rl.doctor.schema import AllReduce, Full, Limits, Nvml, Tools, Work

RIGHT = Work(
    ended="ok",
    device=0,
    matmul="",
    convolution="",
    bf16="",
    graph="",
    compile="",
    jit="",
    to_gpu=52.0,
    from_gpu=53.0,
    clock_reasons=(0, 0, 0),
    pcie_generation=5,
    pcie_width=16,
    pcie_width_max=16,
)
WRONG = "the result is wrong by 0.8 of its largest number"
FULL_MEMORY = "OutOfMemoryError: CUDA out of memory. Tried to allocate 20 MiB"
ILLEGAL = "AcceleratorError: CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be …"
SUM = tuple(AllReduce(ended="ok", rank=rank, error="") for rank in (0, 1))
HANGS = tuple(AllReduce(ended="timeout", rank=rank, step="all_reduce", seconds=90.0) for rank in (0, 1))


def at_work(*changes: dict[str, object], **machine):
    works = tuple(replace(RIGHT, device=index, **change) for index, change in enumerate(changes))
    return gpu_machine(gpus=len(works), full=Full(works=works), **machine)


def together(ranks, again=(), **machine):
    return gpu_machine(gpus=2, full=Full(all_reduce=ranks, all_reduce_without_p2p=again), **machine)


@fires("gpu-result-wrong", "GPU 0, matmul: the result is wrong by 0.8", severity="fatal")
def test_the_only_gpu_multiplies_wrongly():
    return at_work({"matmul": WRONG})


@fires("gpu-result-wrong", "GPU 1, convolution", "CUDA_VISIBLE_DEVICES=0", severity="degraded")
def test_one_of_two_gpus_convolves_wrongly():
    return at_work({}, {"convolution": WRONG})


@silent("gpu-result-wrong")
@pytest.mark.parametrize("result", ["", None, ILLEGAL, FULL_MEMORY])
def test_a_result_that_is_right_or_missing_is_not_wrong(result):
    return at_work({"matmul": result, "convolution": result})


@fires("gpu-work-failed", "'matmul' fails", "illegal memory access", severity="degraded")
def test_a_product_raises():
    return at_work({"matmul": ILLEGAL})


@fires("gpu-work-failed", "GPU 1, 'convolution': timeout after 300 s", "'convolution' fails")
def test_a_gpu_does_not_return():
    return at_work({}, {"ended": "timeout", "step": "convolution", "seconds": 300.0})


@fires("gpu-work-failed", "signal SIGSEGV")
def test_a_gpu_takes_its_process_along():
    return at_work({"ended": "signal SIGSEGV", "step": "matmul"})


@fires("gpu-work-failed", "'import torch' fails")
def test_torch_cannot_be_imported_a_second_time():
    return at_work({"error": "ImportError: torn"})


@silent("gpu-work-failed")
@pytest.mark.parametrize("result", ["", None, WRONG, FULL_MEMORY])
def test_memory_that_others_hold_is_no_fault_of_the_gpu(result):
    return at_work({"matmul": result, "convolution": result})


@silent("gpu-work-failed")
def test_nothing_was_tried():
    return gpu_machine(full=Full(works=(Work(),)))


@fires("bf16-failed", "--precision fp32")
@pytest.mark.parametrize("error", [WRONG, ILLEGAL])
def test_bfloat16_fails(error):
    return at_work({"bf16": error})


@silent("bf16-failed")
@pytest.mark.parametrize("result", ["", None, FULL_MEMORY])
def test_bfloat16_works_or_is_not_there(result):
    return at_work({"bf16": result})


@fires("cuda-graph-failed", "--accelerate eager")
def test_a_graph_fails():
    return at_work({"graph": "RuntimeError: operation not permitted when stream is capturing"})


@silent("cuda-graph-failed")
@pytest.mark.parametrize("result", ["", None, FULL_MEMORY])
def test_a_graph_works_or_was_not_tried(result):
    return at_work({"graph": result})


@fires("compile-failed", "PTXASError", "--accelerate eager")
def test_compiling_fails():
    return at_work({"compile": "PTXASError: ptxas failed"})


@silent("compile-failed")
@pytest.mark.parametrize("result", ["", None, FULL_MEMORY])
def test_compiling_works_or_was_not_tried(result):
    return at_work({"compile": result})


@silent("compile-failed")
@pytest.mark.parametrize("tools", [Tools(compiler=""), Tools(cache_error="Read-only file system")])
def test_compiling_fails_for_a_known_reason(tools):
    return at_work({"compile": "InductorError: no compiler"}, tools=tools)


TOO_NEW = "cuModuleLoadData gives 222 (CUDA_ERROR_UNSUPPORTED_PTX_VERSION)"


@fires("driver-jit-failed", "CUDA_ERROR_JIT_COMPILER_NOT_FOUND")
def test_the_driver_has_no_compiler():
    return at_work({"jit": "cuModuleLoadData gives 221 (CUDA_ERROR_JIT_COMPILER_NOT_FOUND)"})


@silent("driver-jit-failed")
def test_the_driver_refuses_newer_code_which_is_a_finding_of_its_own():
    return at_work({"jit": TOO_NEW})


@silent("compile-failed")
def test_compiling_fails_since_the_driver_refuses_newer_code():
    return at_work({"jit": TOO_NEW, "compile": "RuntimeError: CUDA error 222"})


@silent("driver-jit-failed")
@pytest.mark.parametrize("result", ["", None])
def test_the_driver_compiles_or_was_not_asked(result):
    return at_work({"jit": result})


@fires(
    "nccl-needs-p2p-off", "rank 0, 'all_reduce': timeout after 90 s", "export NCCL_P2P_DISABLE=1", severity="degraded"
)
def test_gpus_hang_together_and_not_without_p2p():
    return together(HANGS, SUM)


@fires("nccl-needs-p2p-off", "the result is wrong", "an IOMMU is on")
def test_gpus_sum_wrongly_with_p2p_under_an_iommu():
    wrong = tuple(replace(rank, error=WRONG) for rank in SUM)
    return together(wrong, SUM, limits=Limits(iommu=True))


@silent("nccl-needs-p2p-off")
def test_gpus_hang_together_in_any_case():
    return together(HANGS, HANGS)


@silent("nccl-needs-p2p-off")
def test_an_iommu_alone_proves_nothing():
    return together(SUM, limits=Limits(iommu=True))


@fires("nccl-failed", "--nproc-per-node=2", severity="degraded")
def test_gpus_cannot_work_together():
    return together(HANGS, HANGS)


@fires("nccl-failed", "rank 1, DistBackendError: NCCL error")
def test_one_rank_fails_and_nothing_else_was_tried():
    return together((SUM[0], replace(SUM[1], error="DistBackendError: NCCL error")))


@silent("nccl-failed")
def test_p2p_alone_is_to_blame():
    return together(HANGS, SUM)


@silent("nccl-failed")
@pytest.mark.parametrize("ranks", [SUM, (), (AllReduce(), AllReduce())], ids=["right", "one GPU", "not tried"])
def test_gpus_that_sum_rightly_or_need_not(ranks):
    return together(ranks)


@fires("copies-slow", "6.0 GB/s from GPU 0, whose link gives 63 GB/s", severity="info")
def test_copies_take_a_tenth_of_the_link():
    return at_work({"from_gpu": 6.0})


@silent("copies-slow")
@pytest.mark.parametrize(
    "change", [{}, {"to_gpu": 25.3}, {"to_gpu": None}, {"to_gpu": 2.0, "from_gpu": 2.0, "pcie_generation": 1}]
)
def test_copies_that_fit_their_link(change):
    return at_work(change)


@silent("copies-slow")
@pytest.mark.parametrize("unknown", ["pcie_generation", "pcie_width"])
def test_a_link_that_is_not_known(unknown):
    return at_work({"to_gpu": 1.0, unknown: None})


@silent("copies-slow")
@OWN_WAYS
def test_wsl_and_jetson_copy_in_their_own_way(platform):
    return at_work({"to_gpu": 1.0}, platform=platform)


@silent("copies-slow")
def test_a_virtual_gpu_has_no_link_of_its_own():
    return at_work({"to_gpu": 1.0}, nvml=Nvml(ended="ok", init=0, count=1, gpus=(nvml_gpu(virtual=True),)))
