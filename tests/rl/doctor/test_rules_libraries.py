"""Another libcuda than the driver's own was loaded, or something stands in front of it."""

from dataclasses import replace

import pytest
from machine_facts import JETSON, LIBRARIES, QUICK, gpu_machine, nvml_gpu
from rule_tests import fires, silent

from rl.doctor.rules import judge
from rl.doctor.schema import DriverApi, Facts, KernelDriver, Libraries, Nvml, Platform, TorchRun

STUBS = "/usr/local/cuda/lib64/stubs"
STUB_FILE = "/usr/local/cuda-13.0/targets/x86_64-linux/lib/stubs/libcuda.so"
COMPAT = "/usr/local/cuda-13.0/compat"
COMPAT_FILE = f"{COMPAT}/libcuda.so.580.95.05"
FAILED = TorchRun(ended="ok", version="2.13.0", cuda="13.0", available=False, count=0)
ALONE = DriverApi(ended="ok", version=12020, init=0, count=1)


def loaded(path: str, code: int, name: str, folder: str = "", **changes) -> Facts:
    """libcuda came from `path`, by way of `folder` in LD_LIBRARY_PATH."""
    version = {804: 13000, 803: 13000}.get(code)
    api = DriverApi(ended="ok", version=version, init=code, init_name=name, path=path)
    own = f"{LIBRARIES}/libcuda.so.535.54.03"
    libraries = Libraries(libcuda={f"{folder or '/x'}/libcuda.so.1": path, f"{LIBRARIES}/libcuda.so.1": own})
    environment = {"LD_LIBRARY_PATH": f"{folder}:/opt/lib"} if folder else {}
    kernel = KernelDriver(True, "535.54.03", False, True)
    parts = {"driver_api": api, "libraries": libraries, "environment": environment, "kernel_driver": kernel}
    return gpu_machine(**{"torch": FAILED} | parts | changes)


def stub(**changes) -> Facts:
    return loaded(STUB_FILE, 34, "CUDA_ERROR_STUB_LIBRARY", STUBS, **changes)


@fires("stub-library", f"loaded was {STUB_FILE}", f"LD_LIBRARY_PATH names {STUBS}", "export LD_LIBRARY_PATH=/opt/lib")
def test_a_folder_of_stubs_stands_in_the_search_path():
    return stub()


@fires("stub-library", "set by ~/.bashrc, the container's own environment")
def test_whoever_put_the_stubs_into_the_search_path_is_named():
    libraries = replace(stub().libraries, environment_files={"~/.bashrc": f"{STUBS}:$LD_LIBRARY_PATH", "/etc/x": "/y"})
    return stub(libraries=libraries, init_environment={"LD_LIBRARY_PATH": STUBS})


@fires("stub-library", "unset LD_LIBRARY_PATH")
def test_the_stubs_are_all_there_is_in_the_search_path():
    return stub(environment={"LD_LIBRARY_PATH": f"{STUBS}/"})


@fires("stub-library", "ldconfig -p")
def test_a_link_to_the_stub_among_the_systems_libraries():
    return loaded(STUB_FILE, 34, "CUDA_ERROR_STUB_LIBRARY")


def test_a_variable_that_is_not_set_is_not_to_be_unset():
    assert "LD_LIBRARY_PATH" not in str(judge(loaded(STUB_FILE, 34, "CUDA_ERROR_STUB_LIBRARY"))[0].fixes)


@fires("stub-library", "libnvidia-ml.so.1", "nvmlInit gives 9", severity="degraded")
def test_nvml_alone_is_a_stub():
    stubs = Nvml(ended="ok", path=f"{STUBS}/libnvidia-ml.so", init=9, init_name="Driver Not Loaded")
    return gpu_machine(nvml=stubs, environment={"LD_LIBRARY_PATH": STUBS})


@silent("stub-library")
def test_stubs_in_the_search_path_that_the_loader_passed_over():
    return gpu_machine(environment={"LD_LIBRARY_PATH": STUBS})  # toolkits have libcuda.so there, not libcuda.so.1


@fires("stub-library", STUB_FILE, "999")
def test_a_stub_that_gives_another_number():
    return loaded(STUB_FILE, 999, "CUDA_ERROR_UNKNOWN", STUBS)


@silent("stub-library")
def test_a_true_driver_in_a_folder_of_that_name():
    return loaded("/opt/stubs/libcuda.so.535.54.03", 802, "CUDA_ERROR_SYSTEM_NOT_READY", "/opt/stubs")


@silent("stub-library")
def test_a_driver_that_works_from_a_folder_of_that_name():
    machine = gpu_machine()
    return replace(machine, driver_api=replace(machine.driver_api, path="/opt/stubs/libcuda.so.580.95.05"))


def unsupported(**changes) -> Facts:
    return loaded(COMPAT_FILE, 804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", COMPAT, **changes)


@fires("compat-unsupported", COMPAT_FILE, "driver is 535.54.03", "pytorch-cuda-rl:torch2.7", "LD_LIBRARY_PATH=/opt/lib")
def test_cuda_compat_on_a_geforce():
    return unsupported()


@fires("compat-unsupported", "without LD_LIBRARY_PATH, cuInit succeeds")
def test_cuda_compat_is_certain_where_the_driver_answers_without_it():
    return unsupported(driver_api_alone=ALONE)


@fires("compat-unsupported", "cuda-compat-mode=disabled", f"rm -rf {COMPAT}")
def test_cuda_compat_by_the_loaders_configuration():
    return unsupported(environment={}, libraries=Libraries(compat=COMPAT))


def test_no_image_is_offered_to_a_driver_that_serves_none():
    facts = unsupported(kernel_driver=KernelDriver(True, "470.82.01", False, True))
    assert judge(facts)[0].id == "compat-unsupported"
    assert "pytorch-cuda-rl" not in str(judge(facts)[0].fixes)


@silent("compat-unsupported")
def test_cuda_compat_on_a_data_center_gpu():
    works = DriverApi(ended="ok", version=13000, init=0, count=1, path=COMPAT_FILE)
    return gpu_machine("NVIDIA A100", driver_api=works, kernel_driver=KernelDriver(True, "535.54.03", False, True))


@silent("compat-unsupported")
def test_cuda_compat_with_another_error():
    return loaded(COMPAT_FILE, 999, "CUDA_ERROR_UNKNOWN", COMPAT)


def mixed(path: str = COMPAT_FILE, folder: str = COMPAT, **changes) -> Facts:
    return loaded(path, 803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", folder, **changes)


@fires("libcuda-mismatch", "803", COMPAT_FILE, "driver 535.54.03", "export LD_LIBRARY_PATH=/opt/lib")
def test_cuda_compat_that_does_not_fit_the_kernels_driver():
    return mixed(libraries=Libraries(libcuda={f"{COMPAT}/libcuda.so.1": COMPAT_FILE}))


@fires("libcuda-mismatch", "without LD_LIBRARY_PATH, cuInit succeeds", "LD_LIBRARY_PATH names /opt/old")
def test_a_left_over_library_is_certain_where_the_driver_answers_without_it():
    files = {"/opt/old/libcuda.so.1": "/opt/old/libcuda.so.1"}
    return mixed("/opt/old/libcuda.so.1", "/opt/old", libraries=Libraries(libcuda=files), driver_api_alone=ALONE)


@fires("libcuda-mismatch", f"in the order of search: {LIBRARIES}/libcuda.so.1 is {LIBRARIES}/libcuda.so.535.54.03")
def test_the_library_of_the_kernels_version_stands_behind_another_one():
    return mixed("/opt/old/libcuda.so.520.61.05", "/opt/old")


@silent("libcuda-mismatch")
def test_the_only_library_there_is_differs_from_the_kernels_driver():
    path = f"{LIBRARIES}/libcuda.so.580.95.05"  # the host was upgraded: not a matter of the search path
    return mixed(path, "", libraries=Libraries(libcuda={f"{LIBRARIES}/libcuda.so.1": path}))


@silent("libcuda-mismatch")
def test_the_library_of_the_kernels_version_is_the_one_that_fails():
    path = f"{LIBRARIES}/libcuda.so.535.54.03"
    return mixed(path, "", libraries=Libraries(libcuda={f"{LIBRARIES}/libcuda.so.1": path}))


@silent("libcuda-mismatch")
def test_nvml_does_not_fit_the_kernels_driver_either():
    return mixed(nvml=Nvml(ended="ok", init=18, init_name="Driver/library version mismatch"))


@silent("libcuda-mismatch")
def test_two_libraries_of_which_the_right_one_is_loaded():
    files = {f"{LIBRARIES}/libcuda.so.1": f"{LIBRARIES}/libcuda.so.580.95.05", f"{COMPAT}/libcuda.so.1": COMPAT_FILE}
    return gpu_machine(libraries=Libraries(libcuda=files))


def too_old(name: str = "NVIDIA A100-SXM4-80GB", **changes) -> Facts:
    """Driver 535, and an image with cuda-compat, which nobody loads."""
    api = DriverApi(ended="ok", version=12020, init=0, count=1, path=f"{LIBRARIES}/libcuda.so.535.54.03")
    nvml = replace(gpu_machine().nvml, gpus=(nvml_gpu(name),))
    kernel = KernelDriver(True, "535.54.03", False, True)
    parts = {"driver_api": api, "nvml": nvml, "kernel_driver": kernel, "libraries": Libraries(compat=COMPAT)}
    return gpu_machine(**{"torch": FAILED} | parts | changes)


@fires("compat-not-loaded", f"-e LD_LIBRARY_PATH={COMPAT}", "cuda-compat-mode=ldconfig", "driver 580 or newer")
@pytest.mark.parametrize("name", ["NVIDIA A100-SXM4-80GB", "Tesla T4", "NVIDIA H100 80GB HBM3", "NVIDIA L40S"])
def test_compat_that_was_not_loaded_on_a_data_center_gpu(name):
    return too_old(name)


@fires("compat-not-loaded")
def test_compat_that_was_not_loaded_is_found_without_torch():
    return too_old(torch=QUICK)


@silent("compat-not-loaded")
@pytest.mark.parametrize("name", ["NVIDIA GeForce RTX 4090", "NVIDIA RTX A2000", "Quadro T1000", "NVIDIA T400 4GB", ""])
def test_compat_is_not_offered_to_other_boards(name):
    return too_old(name)


@silent("compat-not-loaded")
def test_compat_that_is_loaded_and_still_too_old():
    api = DriverApi(ended="ok", version=12020, init=0, count=1, path="/usr/local/cuda-12.2/compat/libcuda.so.535.54.03")
    return too_old(driver_api=api)


@silent("compat-not-loaded")
def test_compat_of_a_cuda_that_is_older_than_torchs():
    return too_old(libraries=Libraries(compat="/usr/local/cuda-12.6/compat"))


@silent("compat-not-loaded")
def test_an_image_without_compat():
    return too_old(libraries=Libraries())


@silent("compat-not-loaded")
def test_compat_that_nobody_needs():
    return gpu_machine("NVIDIA A100", libraries=Libraries(compat=COMPAT))


HAMI = "/usr/local/vgpu/libvgpu.so"


@fires("gpu-sharing-layer", HAMI, severity="info")
def test_a_gpu_sharing_layer_is_named_without_blame():
    return gpu_machine(libraries=Libraries(preload=(HAMI,)), platform=Platform(engine="kubernetes"))


@fires("gpu-sharing-layer", "can't find library libcuda.so.418", severity="fatal")
def test_a_gpu_sharing_layer_that_says_why_it_fails():
    stderr = "other words\n/tmp/cuda-control/src/loader.c:972 can't find library libcuda.so.418\n"
    api = DriverApi(ended="signal SIGABRT", step="cuInit", stderr=stderr)
    return gpu_machine(libraries=Libraries(preload=("/lib/libcuda-control.so",)), driver_api=api, torch=FAILED)


@fires("gpu-sharing-layer", severity="info")
def test_a_gpu_sharing_layer_beside_an_error_that_does_not_name_it():
    api = DriverApi(ended="ok", version=13000, init=999, init_name="CUDA_ERROR_UNKNOWN")
    return gpu_machine(libraries=Libraries(preload=(HAMI,)), driver_api=api, torch=FAILED)


@silent("gpu-sharing-layer")
@pytest.mark.parametrize("library", ["/usr/lib/libjemalloc.so.2", "libtcmalloc.so"])
def test_another_library_is_preloaded(library):
    return gpu_machine(libraries=Libraries(preload=(library,)))


@silent("stub-library")
def test_a_jetsons_library_has_a_folder_of_its_own():
    path = "/usr/lib/aarch64-linux-gnu/tegra/libcuda.so.1.1"
    return gpu_machine(platform=JETSON, driver_api=DriverApi(ended="ok", version=12060, init=0, count=1, path=path))
