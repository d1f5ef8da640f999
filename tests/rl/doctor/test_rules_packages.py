"""Another torch, another cuDNN, other CUDA libraries, the old pynvml: what stands in the way, and what only lies by."""

from dataclasses import replace

import pytest
from machine_facts import TOOLS, cpu_machine, gpu_machine
from rule_tests import fires, silent

from rl.doctor.schema import DriverApi, Libraries, Nvml, Platform, TorchBuild, TorchRun

SYMBOL = "ImportError: libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12"
SHADOWED = TorchRun(ended="ok", step="import torch", error=SYMBOL)
TOOLKIT = {"LD_LIBRARY_PATH": "/usr/local/cuda/lib64:/opt/mine"}
ALONE = TorchRun(ended="ok", version="2.13.0", cuda="13.0", available=True, count=1)


@fires("cuda-libraries-shadowed", "__nvJitLinkComplete_12_4", "LD_LIBRARY_PATH=/usr/local/cuda/lib64", "~/.bashrc")
def test_torch_can_be_imported_without_the_variable_only():
    setter = Libraries(environment_files={"~/.bashrc": "/usr/local/cuda/lib64"})
    return gpu_machine(environment=TOOLKIT, torch=SHADOWED, torch_alone=ALONE, libraries=setter)


@fires("cuda-libraries-shadowed", "SIGSEGV")
def test_torch_crashes_with_the_variable_only():
    crashed = TorchRun(ended="signal SIGSEGV", step="import torch")
    return gpu_machine(environment=TOOLKIT, torch=crashed, torch_alone=ALONE)


@silent("cuda-libraries-shadowed")
@pytest.mark.parametrize(
    "alone",
    [
        TorchRun(),
        SHADOWED,
        replace(ALONE, error="RuntimeError: operator torchvision::nms does not exist"),
        TorchRun(ended="signal SIGSEGV", step="import torch", version="2.13.0"),
    ],
    ids=["not asked again", "fails the same", "fails in another way", "crashes"],
)
def test_without_the_variable_torch_fails_too(alone):
    return gpu_machine(environment=TOOLKIT, torch=SHADOWED, torch_alone=alone)


@silent("cuda-libraries-shadowed")
def test_the_variable_is_set_and_torch_works():
    return gpu_machine(environment=TOOLKIT, torch_alone=ALONE)


CUDNN = "RuntimeError: cuDNN version incompatibility: PyTorch was compiled against (9, 20, 0) but found (8, 9, 7)."


def with_cudnn(error=CUDNN, path="/opt/cudnn/lib/libcudnn.so.8", **environment):
    torch = replace(gpu_machine().torch, cudnn_error=error, cudnn_path=path)
    return gpu_machine(torch=torch, environment=environment)


@fires("cudnn-mismatch", "(8, 9, 7)", "/opt/cudnn/lib/libcudnn.so.8", "export LD_LIBRARY_PATH=/opt/mine")
def test_an_old_cudnn_comes_first():
    return with_cudnn(LD_LIBRARY_PATH="/opt/cudnn/lib/:/opt/mine")


@fires("cudnn-mismatch", "unset LD_LIBRARY_PATH")
def test_an_old_cudnn_is_all_that_the_variable_names():
    return with_cudnn(LD_LIBRARY_PATH="/opt/cudnn/lib")


@fires("cudnn-mismatch", "pip install --force-reinstall torch==2.13.0")
@pytest.mark.parametrize("environment", [{}, {"LD_LIBRARY_PATH": "/opt/mine"}])
def test_an_old_cudnn_that_no_variable_brought(environment):
    return with_cudnn(**environment)


@fires("cudnn-mismatch", "pip install --force-reinstall torch==2.13.0")
def test_an_old_cudnn_that_nobody_knows_the_place_of():
    return with_cudnn(path=None, LD_LIBRARY_PATH=":/opt/mine")


@silent("cudnn-mismatch")
def test_another_cudnn_that_torch_accepts():
    return with_cudnn(error=None, LD_LIBRARY_PATH="/opt/cudnn/lib")


IMAGES_OWN, OWN = "2.13.0 in /opt/venv/lib/python3.12/site-packages", "/tmp/rl/packages/lib/python3.12/site-packages"
BUILD = TorchBuild(True, "2.13.0+cu130", "13.0", image="2.13.0", copies=(IMAGES_OWN,))
OTHER = replace(BUILD, version="2.15.0+cu132", cuda="13.2", copies=(f"2.15.0 in {OWN}", IMAGES_OWN))


def with_build(build, **changes):
    torch = replace(gpu_machine().torch, version=build.version, cuda=build.cuda)
    return gpu_machine(**{"torch": torch, "torch_build": build} | changes)


@fires("torch-replaced", "2.15.0+cu132", "built with 2.13.0", OWN, "pip uninstall -y torch", severity="info")
def test_another_torch_beside_the_image_s_works():
    return with_build(OTHER)


@fires("torch-replaced", "pip install --force-reinstall torch==2.13.0", severity="info")
def test_another_torch_in_the_place_of_the_image_s():
    return with_build(replace(OTHER, copies=("2.15.0 in /opt/venv/lib/python3.12/site-packages",)))


@fires("torch-replaced", severity="degraded")
@pytest.mark.parametrize(
    "changes",
    [
        {"torch": TorchRun(ended="ok", error="ImportError: libcudart.so.13"), "torch_build": OTHER},
        {"torch": TorchRun(ended="signal SIGILL", step="import torch")},
        {"torch": TorchRun(ended="ok", version="2.15.0", cuda="13.2", available=False, count=0)},
        {"torch": TorchRun(), "torch_build": replace(OTHER, version="2.15.0+cpu", cuda=None)},
        {"torch": TorchRun(), "driver_api": DriverApi(ended="ok", version=12040, init=0, count=1)},
    ],
    ids=["does not load", "crashes", "sees no GPU", "CPU build", "too new for the driver"],
)
def test_another_torch_that_does_not_work(changes):
    machine = with_build(OTHER, **changes)
    old = replace(machine.kernel_driver, version="550.54.15")
    return replace(machine, kernel_driver=old) if "driver_api" in changes else machine


@silent("torch-replaced")
@pytest.mark.parametrize("version", ["2.13.0", "2.13.0+cu130", "2.13.0+cpu"])
def test_the_image_s_torch(version):
    return with_build(replace(BUILD, version=version))


@fires("torch-replaced", severity="info")
def test_another_torch_beside_a_gpu_that_is_hidden():
    blind = TorchRun(ended="ok", version="2.15.0", cuda="13.2", available=False, count=0)
    return with_build(OTHER, torch=blind, driver_api=DriverApi(ended="ok", init=100))


@silent("torch-replaced")
def test_the_torch_that_the_image_was_built_with_is_gone():
    return gpu_machine(torch=TorchRun(), torch_build=TorchBuild(image="2.13.0"))


@silent("torch-replaced")
def test_no_image_has_recorded_anything():
    return with_build(replace(OTHER, image=None))


@fires("torch-twice", "2 times", OWN, severity="info")
def test_the_same_torch_in_two_folders():
    return with_build(replace(BUILD, copies=(f"2.13.0 in {OWN}", IMAGES_OWN)))


@fires("torch-twice", severity="degraded")
def test_two_records_in_one_folder_after_an_interrupted_pip():
    torn = replace(BUILD, copies=(IMAGES_OWN.replace("2.13.0", "2.12.0"), IMAGES_OWN))
    return with_build(torn, torch=TorchRun(ended="ok", step="import torch", error="ImportError: torn"))


@silent("torch-twice")
def test_one_torch():
    return with_build(BUILD)


@silent("torch-twice")
def test_two_of_which_the_other_finding_speaks():
    return with_build(OTHER)


@fires("cuda-of-image-differs", "CUDA 13.0", "CUDA_VERSION is 11.8.0", severity="info")
def test_an_image_for_another_cuda():
    return gpu_machine(environment={"CUDA_VERSION": "11.8.0"})


@silent("cuda-of-image-differs")
@pytest.mark.parametrize("environment", [{"CUDA_VERSION": "13.2.1"}, {"CUDA_VERSION": "latest"}, {}])
def test_an_image_of_the_same_major_version_or_none(environment):
    return gpu_machine(environment=environment)


@silent("cuda-of-image-differs")
def test_the_variable_outside_a_container():
    return gpu_machine(environment={"CUDA_VERSION": "11.8.0"}, platform=Platform(kernel="6.8.0"))


@silent("cuda-of-image-differs")
def test_a_torch_for_the_cpu():
    return cpu_machine(environment={"CUDA_VERSION": "11.8.0"})


def with_packages(*packages):
    return gpu_machine(tools=replace(TOOLS, nvml_packages=packages))


@fires("pynvml-shadows", "pynvml 11.5.3", "nvidia-ml-py 13.595.45", "pip uninstall -y pynvml", severity="info")
def test_the_old_package_beside_the_new_one():
    return with_packages("nvidia-ml-py 13.595.45", "pynvml 11.5.3")


@silent("pynvml-shadows")
@pytest.mark.parametrize("version", ["12.0.0", "13.0.1", "unknown"])
def test_the_package_that_only_requires_the_new_one(version):
    return with_packages("nvidia-ml-py 13.595.45", f"pynvml {version}")


@silent("pynvml-shadows")
def test_an_old_binding_alone():
    return with_packages("nvidia-ml-py 11.525.150")


def lacking(*functions, **changes):
    nvml = Nvml(**vars(gpu_machine().nvml) | {"unknown_functions": functions} | changes)
    return gpu_machine(nvml=nvml)


@fires("nvml-functions-unknown", "nvmlDeviceGetMemoryInfo_v2", severity="info")
def test_a_binding_that_is_newer_than_the_driver():
    return lacking("nvmlDeviceGetMemoryInfo_v2")


@silent("nvml-functions-unknown")
def test_the_driver_has_all_functions():
    return lacking()


@silent("nvml-functions-unknown")
def test_nvml_does_not_start_at_all():
    return lacking("nvmlDeviceGetMemoryInfo_v2", init=9)
