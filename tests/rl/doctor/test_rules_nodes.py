"""Nodes that are missing, or that lead nowhere."""

from dataclasses import replace

import pytest
from machine_facts import OWN_WAYS, commands, gpu_machine, nodes
from rule_tests import fires, silent

from rl.doctor.schema import DriverApi, KernelDriver, Node, Nodes, Platform

UNKNOWN = DriverApi(ended="ok", version=13000, init=999, init_name="CUDA_ERROR_UNKNOWN")
LOADED = KernelDriver(True, "580.95.05", True, uvm_loaded=True)
NO_UVM = KernelDriver(True, "580.95.05", True, uvm_loaded=False)
LXC = Platform(kernel="6.8.12-4-pve", engine="lxc")


def no_torch():
    return {"torch": replace(gpu_machine().torch, available=False, count=0, current_device=None, names=())}


def without_uvm(**changes):
    return gpu_machine(**{"nodes": nodes("nvidiactl", "nvidia0"), "driver_api": UNKNOWN, **no_torch()} | changes)


@fires("uvm-missing", "--device /dev/nvidia-uvm", "999")
def test_devices_passed_by_hand_lack_uvm():
    return without_uvm()


def test_an_lxc_container_gets_the_line_for_uvm():
    assert "/dev/nvidia-uvm dev/nvidia-uvm none bind" in commands(without_uvm(platform=LXC))


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


@fires("uvm-not-loaded", "nvidia-modprobe", "does not exist")
def test_the_module_is_not_loaded():
    return without_uvm(kernel_driver=NO_UVM)


@fires("uvm-not-loaded", "nvidia-modprobe", "answers ENXIO")
def test_a_node_of_a_module_that_was_unloaded_has_no_driver():
    found = (*nodes("nvidiactl", "nvidia0").found, *nodes("nvidia-uvm", opened="ENXIO").found)
    return without_uvm(nodes=Nodes(ended="ok", found=found), kernel_driver=NO_UVM)


@silent("uvm-not-loaded")
def test_the_module_is_loaded_and_was_not_passed():
    return without_uvm()


@silent("uvm-not-loaded")
def test_a_sandbox_that_shows_no_modules_says_nothing_of_them():
    return without_uvm(kernel_driver=KernelDriver())


def numbered(opened: str = "ENXIO", *, uvm: int | None = 510, majors: dict[str, int] | None = None, **changes):
    """Its nvidia-uvm has `uvm` for a number and cannot be opened; the driver has 508."""
    found = (*nodes("nvidiactl", "nvidia0").found, Node("nvidia-uvm", "0666", 0, uvm, opened))
    known = {"nvidia": 195, "nvidia-uvm": 508} if majors is None else majors
    return without_uvm(
        **{"nodes": Nodes(ended="ok", found=found), "kernel_driver": replace(LOADED, majors=known)} | changes
    )


@fires("stale-node", "/dev/nvidia-uvm", "its number is 510", "has 508", "docker rm -f")
def test_a_container_keeps_the_number_that_uvm_had_before():
    return numbered()


@fires("stale-node", "/dev/nvidiactl", "its number is 196", "lxc restart")
@pytest.mark.parametrize("name", ["nvidia", "nvidia-frontend"])
def test_nodes_made_by_hand_in_lxc_have_a_wrong_number(name):
    found = (Node("nvidiactl", "0666", 0, 196, "ENXIO"), Node("nvidia0", "0666", 0, 196, "ENXIO"))
    return numbered(nodes=Nodes(ended="ok", found=found), majors={name: 195}, platform=LXC)


@silent("stale-node")
def test_a_node_with_the_drivers_number_is_not_stale():
    return numbered(uvm=508)


@silent("stale-node")
@pytest.mark.parametrize(("uvm", "majors"), [(None, None), (510, {}), (510, {"nvidia": 195})])
def test_unknown_numbers_are_not_compared(uvm, majors):
    return numbered(uvm=uvm, majors=majors)


@silent("stale-node")
def test_another_error_than_enxio_is_not_the_numbers_fault():
    return numbered("EIO")


@silent("stale-node")
def test_a_stale_node_that_cuda_does_without_is_no_fault():
    return numbered(driver_api=gpu_machine().driver_api)
