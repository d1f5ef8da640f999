"""A torch that is missing, broken, of another build or blind: each state, and its nearest neighbour."""

from dataclasses import replace

import pytest
from machine_facts import QUICK, WSL, commands, cpu_machine, gpu_machine, headline, ids, nodes, without_gpu

from rl.doctor.rules import judge
from rl.doctor.schema import DriverApi, Facts, TorchBuild, TorchRun


@pytest.mark.parametrize("machine", [cpu_machine, gpu_machine])
def test_a_missing_torch_is_found_with_and_without_asking_it(machine):
    code = 3 if machine is gpu_machine else 1
    asked = TorchRun(ended="ok", error="ModuleNotFoundError: No module named 'torch'", missing=True)
    assert headline(machine(torch=asked, torch_build=TorchBuild())) == ("torch-missing", code)
    assert headline(machine(torch=QUICK, torch_build=TorchBuild())) == ("torch-missing", code)
    assert ids(machine(torch=asked, torch_build=TorchBuild()))[0:1] == ["torch-missing"]
    assert "torch-broken" not in ids(machine(torch=asked, torch_build=TorchBuild()))
    assert "torch-missing" not in ids(machine(torch_build=TorchBuild()))  # torch itself has answered


@pytest.mark.parametrize(
    ("run", "finding"),
    [
        (TorchRun(ended="ok", step="import torch", error="ImportError: undefined symbol"), "torch-broken"),
        (TorchRun(ended="signal SIGSEGV", step="import torch"), "torch-crashed"),
        (TorchRun(ended="exit 3", step="import torch"), "torch-crashed"),
        (TorchRun(ended="timeout", step="import torch", seconds=90.0), "torch-hung"),
    ],
)
def test_a_torch_that_fails_is_one_finding_of_its_own_kind(run, finding):
    assert ids(gpu_machine(torch=run)) == [finding]
    assert headline(gpu_machine(torch=run)) == (finding, 3)
    assert headline(cpu_machine(torch=run)) == (finding, 1)  # no GPU was expected, and yet nothing trains
    assert commands(cpu_machine(torch=run)) in ("pip install --force-reinstall torch", "rl doctor")


@pytest.mark.parametrize("torch", [cpu_machine().torch, QUICK], ids=["torch asked", "torch not asked"])
def test_a_cpu_only_torch_is_a_fault_only_where_a_gpu_is(torch):
    build = TorchBuild(True, "2.13.0+cpu")
    assert headline(gpu_machine(torch=torch, torch_build=build)) == ("torch-cpu-build", 3)
    wsl = gpu_machine(
        platform=WSL, nodes=nodes(), torch=torch, torch_build=build
    )  # no nodes: the driver API shows the GPU
    assert headline(wsl) == ("torch-cpu-build", 3)
    stuck = gpu_machine(
        torch=torch, torch_build=build, driver_api=DriverApi(ended="ok", init=999)
    )  # only nodes show it
    assert "torch-cpu-build" in ids(stuck)
    assert "torch-cpu-build" not in ids(cpu_machine(torch=torch, torch_build=build))
    assert "torch-cpu-build" not in ids(without_gpu(torch=torch, torch_build=build))


def test_a_rocm_torch_is_not_called_a_cpu_build():
    build = TorchBuild(True, "2.13.0", None, "6.4")
    asked = TorchRun(ended="ok", version="2.13.0", hip="6.4", available=False, count=0)
    assert "torch-cpu-build" not in ids(gpu_machine(torch=QUICK, torch_build=build))
    assert "torch-cpu-build" not in ids(gpu_machine(torch=asked, torch_build=TorchBuild()))


def test_a_torch_that_sees_less_than_the_driver_repeats_its_own_warning():
    torch = TorchRun(ended="ok", version="2.13.0", cuda="13.0", available=False, count=0, warnings=("unknown error",))
    facts = gpu_machine(torch=torch)
    assert headline(facts) == ("torch-sees-no-gpu", 3)
    assert "unknown error" in judge(facts)[0].evidence


def test_a_gpu_that_cannot_add_is_broken_and_one_that_is_full_only_busy():
    def failing(text: str) -> Facts:
        return gpu_machine(torch=replace(gpu_machine().torch, kernel_error=text))

    assert headline(failing("no kernel image is available for execution")) == ("torch-kernel-failed", 3)
    assert headline(failing("CUDA out of memory. Tried to allocate 2 MiB")) == ("gpu-memory-full", 1)


@pytest.mark.parametrize(("version", "wheel"), [(11080, "cu118"), (12080, "cu126"), (13000, "cu130"), (14000, "cu130")])
def test_a_cpu_only_torch_is_replaced_by_the_wheel_for_this_driver(version, wheel):
    api = DriverApi(ended="ok", version=version, init=0, count=1)
    facts = gpu_machine(driver_api=api, torch=cpu_machine().torch, torch_build=TorchBuild(True, "2.13.0+cpu"))
    assert commands(facts).endswith(f"/{wheel}")
