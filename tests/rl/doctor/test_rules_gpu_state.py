"""The state of the GPUs: lost, worn, waiting for a reset, throttled, on a narrow link."""

from dataclasses import replace

import pytest
from machine_facts import QUICK, WSL, gpu_machine, headline, nodes, nvml_gpu
from rule_tests import fires, silent

from rl.doctor.rules import judge
from rl.doctor.schema import DriverApi, Facts, Full, NvmlGpu, TorchRun, Work

NO_DEVICE = DriverApi(ended="ok", version=13000, init=100, init_name="CUDA_ERROR_NO_DEVICE")
TORCH_SEES_NONE = TorchRun(ended="ok", version="2.13.0", cuda="13.0", available=False, count=0)


def with_gpus(*gpus: NvmlGpu, **changes) -> Facts:
    machine = gpu_machine(gpus=len(gpus))
    return replace(machine, nvml=replace(machine.nvml, gpus=gpus), **changes)


def unusable(*gpus: NvmlGpu, **changes) -> Facts:
    return with_gpus(*gpus, **{"driver_api": NO_DEVICE, "torch": TORCH_SEES_NONE} | changes)


@fires("gpu-off-the-bus", "NVML gives 15 for GPU 0", "dmesg", severity="fatal")
def test_the_only_gpu_is_lost():
    return unusable(NvmlGpu(error=15))


@fires("gpu-off-the-bus", "NVML gives 15 for GPU 1 (NVIDIA H200, PCI 00000000:01:00.0)", severity="degraded")
def test_one_gpu_is_lost_while_others_work():
    return with_gpus(nvml_gpu(), nvml_gpu(index=1, error=15))


@fires("gpu-off-the-bus", "NVML gives 999 for GPU 0", "export CUDA_VISIBLE_DEVICES=GPU-1,GPU-2")
def test_one_gpu_of_three_cannot_be_asked():
    return with_gpus(NvmlGpu(error=999), nvml_gpu(index=1), nvml_gpu(index=2))


@fires("gpu-off-the-bus", "/dev/nvidia1 is here all the same", severity="degraded")
@pytest.mark.parametrize("opened", ["ok", "EIO"])
def test_a_node_of_a_gpu_that_nvml_does_not_count(opened):
    there, failing = nodes("nvidiactl", "nvidia-uvm", "nvidia0"), nodes("nvidia1", opened=opened)
    return gpu_machine(nodes=replace(there, found=there.found + failing.found))


@silent("gpu-off-the-bus")
def test_all_gpus_answer_999():
    return unusable(NvmlGpu(error=999))  # whatever it is, it is not one GPU


@silent("gpu-off-the-bus")
@pytest.mark.parametrize("code", [3, 4, 13])
def test_a_gpu_that_may_not_be_asked(code):
    return with_gpus(nvml_gpu(), NvmlGpu(error=code))


@silent("gpu-off-the-bus")
def test_fewer_gpus_than_the_host_has():
    return gpu_machine(pci=gpu_machine(gpus=8).pci)


@silent("gpu-off-the-bus")
@pytest.mark.parametrize("opened", ["EPERM", "ENXIO", "ENODEV"])
def test_a_node_that_this_container_may_not_use(opened):
    there, shut = nodes("nvidiactl", "nvidia-uvm", "nvidia0"), nodes("nvidia1", opened=opened)
    return gpu_machine(nodes=replace(there, found=there.found + shut.found))


@silent("gpu-off-the-bus")
def test_gpus_whose_nodes_nvml_does_not_tell():
    return with_gpus(nvml_gpu(minor=None), nodes=nodes("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1"))


@silent("gpu-off-the-bus")
def test_a_node_that_nvml_counts_by_another_number():
    return gpu_machine(nodes=nodes("nvidiactl", "nvidia-uvm", "nvidia1"))


@fires("gpu-memory-failed", "GPU 0 (NVIDIA H200", "ROW_REMAPPER", severity="fatal")
def test_the_only_gpu_has_no_spare_memory_left():
    return with_gpus(nvml_gpu(remap_failed=True))


@fires("gpu-memory-failed", "GPU 1", "--gpu-reset -i 1", severity="degraded")
def test_one_gpu_of_two_has_no_spare_memory_left():
    return with_gpus(nvml_gpu(), nvml_gpu(index=1, remap_failed=True))


@fires("gpu-memory-failed", "uncorrectable ECC error encountered", severity="fatal")
def test_torch_meets_an_error_of_the_memory():
    return gpu_machine(
        torch=replace(gpu_machine().torch, kernel_error="CUDA error: uncorrectable ECC error encountered")
    )


@silent("gpu-memory-failed")
def test_rows_wait_to_be_remapped_and_none_has_failed():
    return with_gpus(nvml_gpu(remap_pending=True))


@fires("gpu-reset-pending", "GPU 1", "nvidia-smi --gpu-reset -i 1", severity="degraded")
def test_rows_wait_to_be_remapped():
    return with_gpus(nvml_gpu(), nvml_gpu(index=1, remap_pending=True))


@silent("gpu-reset-pending")
def test_no_row_waits_to_be_remapped():
    return with_gpus(nvml_gpu(remap_pending=False), nvml_gpu(index=1, remap_pending=None))


@fires("gpu-needs-reset", "reset the GPU", "recovery action 1", severity="degraded")
def test_the_driver_asks_for_a_reset_of_a_gpu_that_still_works():
    return with_gpus(nvml_gpu(recovery_action=1))


@fires("gpu-needs-reset", "NVML gives 16 for GPU 0", severity="fatal")
def test_a_gpu_that_requires_a_reset():
    return unusable(NvmlGpu(error=16))


@fires("gpu-needs-reset", "recover the GPU")
def test_a_recovery_action_that_the_doctor_does_not_know():
    return with_gpus(nvml_gpu(recovery_action=99))


@silent("gpu-needs-reset")
@pytest.mark.parametrize("action", [0, None])
def test_no_recovery_action(action):
    return with_gpus(nvml_gpu(recovery_action=action))


@silent("gpu-needs-reset")
def test_the_reset_that_remapped_rows_wait_for_is_said_once():
    return with_gpus(nvml_gpu(recovery_action=4, remap_pending=True))


@fires("gpu-throttled", "GPU 0 is slowed down: hardware thermal slowdown", "at 93 °C", severity="degraded")
def test_the_hardware_slows_the_gpu_down():
    return with_gpus(nvml_gpu(clock_reasons=0x40, temperature=93), torch=QUICK)


def at_work(*samples: int, **changes) -> Facts:
    return gpu_machine(full=Full(works=(Work(device=0, clock_reasons=samples),)), **changes)


@fires("gpu-throttled", "GPU 0 at work: hardware slowdown, software thermal slowdown")
def test_heat_slows_the_gpu_down_under_load():
    return at_work(0x28, 0x28, 0x04)


@silent("gpu-throttled")
@pytest.mark.parametrize("reasons", [0x0, 0x1, 0x2, 0x4, 0x10, 0x20, 0x100, None])
def test_an_idle_gpu_and_one_at_its_power_cap(reasons):
    return with_gpus(nvml_gpu(clock_reasons=reasons))


@silent("gpu-throttled")
@pytest.mark.parametrize("samples", [(0x4, 0x4, 0x4), (0x40, 0x4, 0x4), (0x40, 0x8, 0x20), (), (0x8,)])
def test_one_sample_of_a_slowdown_under_load(samples):
    return at_work(*samples)


def link(width: int, most: int = 16, **changes) -> Facts:
    return gpu_machine(full=Full(works=(Work(device=0, pcie_width=width, pcie_width_max=most),)), **changes)


@fires("pcie-link-narrow", "4 PCIe lanes of the 16", severity="degraded")
def test_a_card_on_a_riser_of_four_lanes():
    return link(4)


@fires("pcie-link-narrow", severity="info")
def test_a_card_with_half_its_lanes():
    return link(8)


def test_a_note_of_lanes_leaves_the_gpu_ready():
    assert headline(link(8)) == ("pcie-link-narrow", 0)


@silent("pcie-link-narrow")
def test_a_card_with_all_its_lanes():
    return link(8, most=8)


@silent("pcie-link-narrow")
def test_an_idle_link_that_saves_power():
    return with_gpus(nvml_gpu(pcie_width=4))


@silent("pcie-link-narrow")
def test_a_virtual_gpu_has_no_lanes_of_its_own():
    return replace(link(4), nvml=with_gpus(nvml_gpu(virtual=True)).nvml)


@silent("pcie-link-narrow")
def test_wsl_tells_no_lanes():
    return link(4, platform=WSL)


def test_two_troubles_of_one_gpu_are_both_told():
    facts = with_gpus(nvml_gpu(clock_reasons=0x8), nvml_gpu(index=1, error=15))
    assert [finding.id for finding in judge(facts)] == ["gpu-off-the-bus", "gpu-throttled"]
