"""Nodes that are missing or shut."""

from dataclasses import replace

from machine_facts import OWN_WAYS, gpu_machine, nodes
from rule_tests import fires, silent

from rl.doctor.schema import DriverApi, KernelDriver

UNKNOWN = DriverApi(ended="ok", version=13000, init=999, init_name="CUDA_ERROR_UNKNOWN")


def without_uvm(**changes):
    return gpu_machine(**{"nodes": nodes("nvidiactl", "nvidia0"), "driver_api": UNKNOWN, **no_torch()} | changes)


def no_torch():
    return {"torch": replace(gpu_machine().torch, available=False, count=0, current_device=None, names=())}


@fires("uvm-missing", "--device /dev/nvidia-uvm", "999")
def test_devices_passed_by_hand_lack_uvm():
    return without_uvm()


@silent("uvm-missing")
def test_uvm_is_there_and_cuda_fails_all_the_same():
    return gpu_machine(driver_api=UNKNOWN, **no_torch())


@silent("uvm-missing")
@OWN_WAYS
def test_wsl_and_jetson_have_no_uvm(platform):
    return without_uvm(platform=platform)


@silent("uvm-missing")
def test_cuda_works_without_uvm():
    return without_uvm(driver_api=gpu_machine().driver_api)


@fires("uvm-not-loaded", "nvidia-modprobe")
def test_the_module_is_not_loaded():
    return without_uvm(kernel_driver=KernelDriver(loaded=True, version="580.95.05", open_module=True))


@silent("uvm-not-loaded")
def test_the_module_is_loaded_and_was_not_passed():
    return without_uvm()
