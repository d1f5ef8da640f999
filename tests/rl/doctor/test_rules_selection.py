"""CUDA_VISIBLE_DEVICES, MIG and the order of the GPUs: what selects wrongly, and what selects rightly."""

from dataclasses import replace

import pytest
from machine_facts import gpu_machine, nvml_gpu
from rule_tests import fires, silent

from rl.doctor.schema import DriverApi, Nvml, TorchGpu, TorchRun

NONE_FOUND = DriverApi(ended="ok", version=13000, init=100, init_name="CUDA_ERROR_NO_DEVICE")
BLIND = TorchRun(ended="ok", version="2.13.0", cuda="13.0", available=False, count=0)


def selecting(value, gpus=2, seen=0, **changes):
    """The variable is set to `value`, and CUDA then counts `seen` GPUs."""
    machine = gpu_machine(gpus=gpus, environment={"CUDA_VISIBLE_DEVICES": value})
    api = replace(machine.driver_api, count=seen) if seen else NONE_FOUND
    torch = replace(machine.torch, count=seen, gpus=machine.torch.gpus[:seen]) if seen else BLIND
    return replace(machine, **({"driver_api": api, "torch": torch} | changes))


@fires("visible-devices-out-of-range", "names GPU 3", "NVML counts 1", "device=1", severity="fatal")
@pytest.mark.parametrize("value", ["3", " 3", "3,0"])
def test_a_number_of_the_host_in_a_container_with_one_gpu(value):
    return selecting(value, gpus=1)


@fires("visible-devices-out-of-range", severity="fatal")
def test_a_number_that_no_machine_has():
    return selecting("9" * 5000)


@fires("visible-devices-out-of-range", "names GPU 2", severity="degraded")
def test_the_second_number_is_out_of_range():
    return selecting("0,2", seen=1)


NO_NVML = Nvml(ended="ok", load_error="libnvidia-ml.so.1: cannot open shared object file: No such file or directory")


@fires("visible-devices-out-of-range", "nodes for 1", severity="fatal")
@pytest.mark.parametrize("value", ["6", "6" * 5000])
def test_a_number_of_the_host_where_nvml_is_not_there_to_count(value):
    return selecting(value, gpus=1, nvml=NO_NVML)


@silent("visible-devices-out-of-range")
def test_a_number_that_the_nodes_have_and_cuda_does_not_find():
    return selecting("1", nvml=NO_NVML)


@silent("visible-devices-out-of-range")
def test_a_number_beyond_the_nodes_may_be_one_of_many_mig_instances():
    return selecting("1", gpus=1, nvml=NO_NVML, driver_api=replace(NONE_FOUND, init=999))


@silent("visible-devices-out-of-range")
@pytest.mark.parametrize("value", ["0", "1", "0,1", "1,0", "1,-1,7", "0,", "1x"])
def test_numbers_that_this_container_has(value):
    return selecting(value, seen=len([part for part in value.split(",-")[0].split(",") if part]))


@silent("visible-devices-out-of-range")
@pytest.mark.parametrize(
    "nvml",
    [
        Nvml(),
        Nvml(ended="ok", init=999, count=1, gpus=(nvml_gpu(),)),
        Nvml(ended="ok", init=0, count=0),
        Nvml(ended="ok", init=0, count=4),
    ],
)
def test_without_nvml_nobody_knows_how_many_there_are(nvml):
    return selecting("3", gpus=1, nvml=nvml)


@silent("visible-devices-out-of-range")
def test_cuda_takes_a_number_that_nvml_does_not_list():
    return selecting("3", gpus=1, seen=1)


MIG = ("MIG-a", "MIG-b", "MIG-c")


def with_mig(value=None, seen=0, instances=MIG):
    machine = selecting(value or "0", gpus=1, seen=seen)
    nvml = replace(machine.nvml, gpus=(nvml_gpu("NVIDIA A100", mig=True, mig_uuids=instances),))
    return replace(machine, nvml=nvml, environment={"CUDA_VISIBLE_DEVICES": value} if value else {})


@silent("visible-devices-out-of-range")
def test_with_mig_the_instances_are_counted():
    return with_mig("2", seen=0)


@fires("visible-devices-unknown-uuid", "GPU-7", "GPU-0, GPU-1", "export CUDA_VISIBLE_DEVICES=GPU-0")
def test_a_uuid_of_another_gpu():
    return selecting("GPU-7")


@fires("visible-devices-unknown-uuid", "MIG-x", "MIG-a, MIG-b")
def test_a_mig_uuid_of_another_container():
    return with_mig("MIG-x")


@fires("visible-devices-unknown-uuid")
def test_a_mig_uuid_where_mig_is_off():
    return selecting("MIG-x")


@fires("visible-devices-unknown-uuid")
def test_the_beginning_of_two_uuids():
    return selecting("GPU-")


@silent("visible-devices-unknown-uuid")
@pytest.mark.parametrize("value", ["GPU-1", "GPU-1,GPU-0", "GPU-1,GPU-1", "MIG-GPU-0/1/0"])
def test_a_uuid_that_is_here(value):
    return selecting(value)


@silent("visible-devices-unknown-uuid")
def test_a_mig_uuid_that_is_here():
    return with_mig("MIG-b")


@silent("visible-devices-unknown-uuid")
def test_nvml_does_not_tell_the_uuids():
    machine = selecting("GPU-7", gpus=1)
    return replace(machine, nvml=replace(machine.nvml, gpus=(nvml_gpu(uuid=""),)))


@fires("visible-devices-unreadable", "'all'", severity="fatal")
def test_the_word_that_is_for_another_variable():
    return selecting("all")


@fires("visible-devices-unreadable", "1 stands in it twice", severity="fatal")
def test_a_gpu_named_twice():
    return selecting("0,1,1")


@fires("visible-devices-unreadable", "cuda:1", severity="degraded")
def test_a_word_behind_a_right_number():
    return selecting("0,cuda:1", seen=1)


@silent("visible-devices-unreadable")
@pytest.mark.parametrize("value", ["7", "GPU-7"])
def test_a_number_and_a_uuid_can_be_read(value):
    return selecting(value)


@silent("visible-devices-unreadable")
@pytest.mark.parametrize("value", ["0,7", "0,GPU-7", "0,", "0,-1,all"])
def test_what_ends_the_list_behind_a_right_number_can_be_read(value):
    return selecting(value, seen=1)


@silent("visible-devices-unreadable")
def test_the_variable_is_empty_on_purpose():
    return selecting("")


@fires("uuid-not-understood", "GPU-1", "torch 0", "export CUDA_VISIBLE_DEVICES=1")
def test_an_old_torch_counts_no_gpu_by_uuid():
    return selecting("GPU-1", seen=1, torch=replace(BLIND, available=True))


@fires("uuid-not-understood", "invalid literal", "export CUDA_VISIBLE_DEVICES=1")
def test_torch_takes_the_uuid_for_a_number():
    error = "ValueError: invalid literal for int() with base 10: 'GPU-1'"
    return selecting("GPU-1", seen=1, torch=TorchRun(ended="ok", error=error))


@fires("uuid-not-understood", "export CUDA_VISIBLE_DEVICES=1")
def test_torch_takes_the_uuid_of_an_instance_for_a_number():
    error = "ValueError: invalid literal for int() with base 10: 'MIG-b'"
    return replace(with_mig("MIG-b", seen=1), torch=TorchRun(ended="ok", error=error))


@silent("uuid-not-understood")
def test_the_driver_finds_no_gpu_by_uuid_either():
    return selecting("GPU-1", driver_api=DriverApi(ended="ok", version=13000, init=999))


@silent("uuid-not-understood")
def test_a_uuid_that_torch_understands():
    return selecting("GPU-1", seen=1)


@silent("uuid-not-understood")
def test_a_number_and_a_torch_without_gpus():
    return selecting("1", seen=1, torch=BLIND)


@fires("mig-one-instance", "of 3 MIG instances", "CUDA_VISIBLE_DEVICES=MIG-b", severity="info")
def test_three_instances_and_one_process():
    return with_mig(seen=1)


@silent("mig-one-instance")
def test_one_instance():
    return with_mig(seen=1, instances=("MIG-a",))


@silent("mig-one-instance")
def test_three_instances_that_one_process_uses():
    return with_mig(seen=3)


@silent("mig-one-instance")
def test_one_of_three_instances_was_chosen():
    return with_mig("MIG-a", seen=1)


OLD, NEW = "NVIDIA GeForce GTX 745", "NVIDIA GeForce GTX 1080 Ti"


def mixed(order, names=(OLD, NEW), **environment):
    """nvidia-smi lists `names`; torch lists them in this order."""
    machine = gpu_machine(gpus=len(names), environment=environment)
    nvml = replace(machine.nvml, gpus=tuple(nvml_gpu(name, i) for i, name in enumerate(names)))
    gpus = tuple(TorchGpu(names[i], f"GPU-{i}", (9, 0)) for i in order)
    api, torch = replace(machine.driver_api, count=len(gpus)), replace(machine.torch, gpus=gpus, count=len(gpus))
    return replace(machine, nvml=nvml, driver_api=api, torch=torch)


@fires("gpu-order-differs", f"cuda:0 is {NEW}", f"number 0 is {OLD}", "CUDA_DEVICE_ORDER=PCI_BUS_ID")
def test_the_fastest_comes_first():
    return mixed((1, 0))


@fires("gpu-order-differs", f"cuda:0 is {OLD}", f"number 1 is {NEW}")
def test_the_number_in_the_variable_means_another_gpu():
    return mixed((0,), CUDA_VISIBLE_DEVICES="1")


@silent("gpu-order-differs")
@pytest.mark.parametrize(
    ("order", "environment"),
    [
        ((0, 1), {}),
        ((1,), {"CUDA_VISIBLE_DEVICES": "1"}),
        ((1, 0), {"CUDA_VISIBLE_DEVICES": "1,0"}),
        ((1, 0), {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-0"}),
        ((1, 0), {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
    ],
)
def test_the_numbers_mean_what_they_say(order, environment):
    return mixed(order, **environment)


@silent("gpu-order-differs")
def test_gpus_of_one_model_in_any_order():
    return mixed((1, 0), names=(NEW, NEW))


@silent("gpu-order-differs")
def test_two_of_one_model_have_changed_places_beside_another():
    return mixed((1, 0, 2), names=(NEW, NEW, OLD))


@silent("gpu-order-differs")
def test_one_gpu_under_two_names():
    machine = mixed((0, 1))
    gpus = tuple(replace(gpu, name=f"{gpu.name} OEM") for gpu in machine.torch.gpus)
    return replace(machine, torch=replace(machine.torch, gpus=gpus))


@silent("gpu-order-differs")
def test_torch_finds_one_of_two():
    return mixed((1,))


@silent("gpu-order-differs")
def test_with_mig_numbers_are_those_of_instances():
    machine = mixed((0,), CUDA_VISIBLE_DEVICES="1")
    first, second = machine.nvml.gpus
    return replace(machine, nvml=replace(machine.nvml, gpus=(replace(first, mig=True), second)))


@silent("gpu-order-differs")
def test_torch_does_not_tell_the_uuids():
    machine = mixed((1, 0))
    gpus = tuple(replace(gpu, uuid="") for gpu in machine.torch.gpus)
    return replace(machine, torch=replace(machine.torch, gpus=gpus))
