"""Who may use the GPUs, and who does: fabric manager, MPS, compute mode, memory that others hold, persistence."""

from dataclasses import replace

import pytest
from machine_facts import QUICK, gpu_machine, headline, nvml_gpu
from rule_tests import fires, silent
from test_rules_gpu_state import TORCH_SEES_NONE, with_gpus

from rl.doctor.rules import judge
from rl.doctor.schema import DriverApi, Facts, GpuProcess, NvmlGpu, Platform


def init(code: int, name: str, *gpus: NvmlGpu, **changes) -> Facts:
    api = DriverApi(ended="ok", version=13000, init=code, init_name=name)
    return with_gpus(*(gpus or (nvml_gpu(),)), **{"driver_api": api, "torch": TORCH_SEES_NONE} | changes)


def not_ready(*gpus: NvmlGpu, **changes) -> Facts:
    return init(802, "CUDA_ERROR_SYSTEM_NOT_READY", *gpus, **changes)


@fires("fabric-manager", "fabric in progress", "fabric not started", "exactly the same version, 580.95.05")
def test_the_fabric_is_not_ready():
    return not_ready(nvml_gpu(fabric_state=2), nvml_gpu(index=1, fabric_state=1))


@fires("fabric-manager", "NVIDIA A100-SXM4-80GB is a board with NVSwitch", "nvidia-fabricmanager")
def test_an_a100_cannot_tell_its_fabric():
    return not_ready(nvml_gpu("NVIDIA A100-SXM4-80GB", fabric_state=None))


@silent("fabric-manager")
def test_the_fabric_is_complete():
    return not_ready(nvml_gpu("NVIDIA H200", fabric_state=3))


@silent("fabric-manager")
@pytest.mark.parametrize("name", ["NVIDIA H100 PCIe", "NVIDIA H200 NVL", "NVIDIA A100-PCIE-40GB", "NVIDIA L40S", ""])
def test_a_board_without_nvswitch(name):
    return not_ready(nvml_gpu(name, fabric_state=0))


@silent("fabric-manager")
def test_a_fabric_that_is_not_started_on_a_machine_that_works():
    return with_gpus(nvml_gpu(fabric_state=1))


def mps(code: int = 805, **changes) -> Facts:
    return init(code, "CUDA_ERROR_MPS_CONNECTION_FAILED", **changes)


@fires("mps-unreachable", "805", "there is no folder /mps in here", "-v /mps:/mps", "unset CUDA_MPS_PIPE_DIRECTORY")
def test_the_variable_of_mps_came_in_without_its_folder():
    return mps(environment={"CUDA_MPS_PIPE_DIRECTORY": "/mps"})


@fires("mps-unreachable", "/tmp/nvidia-mps is here", "the MPS server is not ready")
def test_the_folder_of_mps_is_here_and_nobody_answers():
    api = replace(mps(807).driver_api, mps_folder="/tmp/nvidia-mps")
    return mps(807, driver_api=api)


@fires("mps-unreachable", "MPS client failed to connect")
def test_torch_is_the_first_to_miss_mps():
    error = "CUDA error: MPS client failed to connect to the MPS control daemon or the MPS server"
    return gpu_machine(torch=replace(gpu_machine().torch, kernel_error=error))


@silent("mps-unreachable")
def test_mps_that_works():
    works = gpu_machine().driver_api
    return gpu_machine(
        driver_api=replace(works, mps_folder="/tmp/nvidia-mps"),
        environment={"CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps"},
    )


@silent("mps-unreachable")
@pytest.mark.parametrize("code", [804, 810, 999])
def test_another_error_beside_the_variable_of_mps(code):
    return mps(code, environment={"CUDA_MPS_PIPE_DIRECTORY": "/mps"})


BUSY = replace(gpu_machine().torch, kernel_error="CUDA error: CUDA-capable device(s) is/are busy or unavailable")


@fires("compute-mode", "busy or unavailable", "one process at a time", "nvidia-smi -c 0", severity="fatal")
def test_another_process_has_the_exclusive_gpu():
    return with_gpus(nvml_gpu(compute_mode=3), torch=BUSY)


@fires("compute-mode", "nobody", severity="fatal")
def test_nobody_may_use_the_gpu():
    return with_gpus(nvml_gpu(compute_mode=2), torch=QUICK)


@fires("compute-mode", "GPU 1", severity="degraded")
def test_nobody_may_use_one_gpu_of_two():
    return with_gpus(nvml_gpu(), nvml_gpu(index=1, compute_mode=2))


@fires("compute-mode", "one process at a time", severity="info")
def test_the_gpu_is_for_one_process_and_that_works():
    return with_gpus(nvml_gpu(compute_mode=3))


@silent("compute-mode")
def test_a_busy_gpu_of_the_default_mode():
    return with_gpus(nvml_gpu(compute_mode=0), nvml_gpu(index=1, compute_mode=None), torch=BUSY)


def held(mib: int = 40_000, **changes) -> Facts:
    return with_gpus(nvml_gpu(memory_used=mib * 2**20, utilization=99), nvml_gpu(index=1), **changes)


@fires("gpu-memory-held", "40000 of 144384 MiB", "99 % busy", "export CUDA_VISIBLE_DEVICES=GPU-1", severity="degraded")
def test_somebody_outside_holds_the_gpus_memory():
    return held()


def test_no_other_gpu_is_offered_where_there_is_none():
    facts = with_gpus(nvml_gpu(memory_used=100 * 2**30), torch=QUICK)
    assert headline(facts) == ("gpu-memory-held", 1)
    assert "CUDA_VISIBLE_DEVICES" not in str(judge(facts)[0].fixes)


@silent("gpu-memory-held")
def test_a_job_of_our_own_holds_the_gpus_memory():
    return held(processes=(GpuProcess(pid=42, name="python", state="R"),))


@silent("gpu-memory-held")
@pytest.mark.parametrize(
    "gpu",
    [
        nvml_gpu(memory_used=700 * 2**20, memory_bytes=4 * 2**30),  # a desktop and a context
        nvml_gpu(memory_used=10 * 2**30),
        nvml_gpu(memory_used=100 * 2**30, mig=True),
        nvml_gpu(memory_used=100 * 2**30, memory_bytes=None),
        nvml_gpu(memory_used=None),
    ],
    ids=["desktop", "a fourteenth", "MIG", "no size", "unknown"],
)
def test_memory_that_is_no_trouble(gpu):
    return with_gpus(gpu)


@fires("gpu-shared", "set_per_process_memory_fraction", severity="info")
def test_a_pod_whose_gpu_has_other_users():
    return held(platform=Platform(engine="kubernetes"))


@silent("gpu-shared")
def test_a_container_of_docker_whose_gpu_has_other_users():
    return held()


@silent("gpu-shared")
def test_a_pod_with_a_gpu_of_its_own():
    return gpu_machine(platform=Platform(engine="kubernetes"))


def started(seconds: float | None, **changes) -> Facts:
    machine = with_gpus(nvml_gpu(**changes))
    return replace(machine, nvml=replace(machine.nvml, init_seconds=seconds))


@fires("persistence-off", "took 12 s", "nvidia-persistenced", severity="info")
def test_a_slow_first_call_without_persistence():
    return started(12.3, persistence=False)


@silent("persistence-off")
@pytest.mark.parametrize("seconds", [None, 0.3, 5.0])
def test_a_fast_first_call_without_persistence(seconds):
    return started(seconds, persistence=False)


@silent("persistence-off")
@pytest.mark.parametrize("persistence", [True, None])
def test_a_slow_first_call_that_persistence_would_not_help(persistence):
    return started(12.3, persistence=persistence)
