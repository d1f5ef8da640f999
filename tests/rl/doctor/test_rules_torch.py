"""A torch that is missing, broken, of another build, or without kernels for this GPU; and its nearest neighbours."""

from dataclasses import replace

import pytest
from machine_facts import JETSON, QUICK, WSL, commands, cpu_machine, gpu_machine, headline, ids, nodes, without_gpu
from rule_tests import fires, silent

from rl.doctor.rules import judge, torch_fit
from rl.doctor.schema import DriverApi, Facts, TorchBuild, TorchGpu, TorchRun

NO_TORCH = TorchRun(ended="ok", error="ModuleNotFoundError: No module named 'torch'", missing=True)
BOTH = pytest.mark.parametrize("machine", [cpu_machine, gpu_machine])
CPU_BUILD = TorchBuild(True, "2.13.0+cpu")
ASKED_OR_NOT = pytest.mark.parametrize("torch", [cpu_machine().torch, QUICK], ids=["torch asked", "torch not asked"])


@fires("torch-missing", "No module named 'torch'")
@BOTH
def test_a_missing_torch(machine):
    return machine(torch=NO_TORCH, torch_build=TorchBuild())


@fires("torch-missing", "no folder named torch")
@BOTH
def test_a_missing_torch_that_was_not_asked(machine):
    return machine(torch=QUICK, torch_build=TorchBuild())


@silent("torch-missing")
@BOTH
def test_torch_itself_has_answered_and_its_folder_was_not_found(machine):
    return machine(torch_build=TorchBuild())


def failing(kind: str):
    return {
        "broken": TorchRun(ended="ok", step="import torch", error="ImportError: undefined symbol"),
        "crashed": TorchRun(ended="signal SIGSEGV", step="import torch", stderr="a\nIllegal instruction"),
        "left": TorchRun(ended="exit 3", step="import torch"),
        "hung": TorchRun(ended="timeout", step="import torch", seconds=90.0),
    }[kind]


@fires("torch-broken", "undefined symbol", "'import torch' fails")
@BOTH
def test_a_torch_that_raises(machine):
    return machine(torch=failing("broken"))


@silent("torch-broken")
@BOTH
def test_a_missing_torch_is_not_called_broken(machine):
    return machine(torch=NO_TORCH, torch_build=TorchBuild())


@fires("torch-crashed", "SIGSEGV", "Illegal instruction")
@BOTH
def test_a_torch_that_crashes(machine):
    return machine(torch=failing("crashed"))


@fires("torch-crashed", "exit 3")
@BOTH
def test_a_torch_that_ends_its_process(machine):
    return machine(torch=failing("left"))


@silent("torch-crashed")
@BOTH
def test_a_torch_that_hangs_has_not_crashed(machine):
    return machine(torch=failing("hung"))


@fires("torch-hung", "90 s")
@BOTH
def test_a_torch_that_hangs(machine):
    return machine(torch=failing("hung"))


@silent("torch-hung")
@BOTH
def test_a_torch_that_crashes_does_not_hang(machine):
    return machine(torch=failing("crashed"))


@pytest.mark.parametrize("kind", ["broken", "crashed", "left", "hung"])
def test_a_torch_that_fails_is_one_finding(kind):
    gpu, cpu = gpu_machine(torch=failing(kind)), cpu_machine(torch=failing(kind))
    assert len(ids(gpu)) == 1
    assert headline(gpu)[1] == 3
    assert headline(cpu)[1] == 1  # no GPU was expected, and yet nothing trains
    assert commands(cpu) in ("PIP_CONSTRAINT= pip install --force-reinstall torch", "rl doctor")


@fires("torch-cpu-build", "2.13.0+cpu", "/cu130")
@ASKED_OR_NOT
def test_a_cpu_only_torch_beside_a_gpu(torch):
    return gpu_machine(torch=torch, torch_build=CPU_BUILD)


@fires("torch-cpu-build")
@ASKED_OR_NOT
def test_a_cpu_only_torch_on_wsl_where_only_the_driver_api_shows_the_gpu(torch):
    return gpu_machine(platform=WSL, nodes=nodes(), torch=torch, torch_build=CPU_BUILD)


@fires("torch-cpu-build")
@ASKED_OR_NOT
def test_a_cpu_only_torch_where_only_nodes_show_the_gpu(torch):
    return gpu_machine(torch=torch, torch_build=CPU_BUILD, driver_api=DriverApi(ended="ok", init=999))


@silent("torch-cpu-build")
@ASKED_OR_NOT
@pytest.mark.parametrize("machine", [cpu_machine, without_gpu])
def test_a_cpu_only_torch_where_no_gpu_can_be_reached(torch, machine):
    return machine(torch=torch, torch_build=CPU_BUILD)


@silent("torch-cpu-build")
@pytest.mark.parametrize(
    ("torch", "build"),
    [
        (QUICK, TorchBuild(True, "2.13.0", None, "6.4")),
        (TorchRun(ended="ok", version="2.13.0", hip="6.4", available=False, count=0), TorchBuild()),
    ],
)
def test_a_rocm_torch_is_no_cpu_build(torch, build):
    return gpu_machine(torch=torch, torch_build=build)


@pytest.mark.parametrize(("version", "wheel"), [(11080, "cu118"), (12080, "cu126"), (13000, "cu130"), (14000, "cu130")])
def test_a_cpu_only_torch_is_replaced_by_the_wheel_for_this_driver(version, wheel):
    api = DriverApi(ended="ok", version=version, init=0, count=1)
    facts = gpu_machine(driver_api=api, torch=cpu_machine().torch, torch_build=CPU_BUILD)
    assert commands(facts).endswith(f"/{wheel}")


def test_a_torch_that_sees_less_than_the_driver_repeats_its_own_warning():
    torch = TorchRun(ended="ok", version="2.13.0", cuda="13.0", available=False, count=0, warnings=("unknown error",))
    facts = gpu_machine(torch=torch)
    assert headline(facts) == ("torch-sees-no-gpu", 3)
    assert "unknown error" in judge(facts)[0].evidence


def test_a_gpu_that_cannot_add_is_broken_and_one_that_is_full_only_busy():
    def failing_with(text: str) -> Facts:
        return gpu_machine(torch=replace(gpu_machine().torch, kernel_error=text))

    assert headline(failing_with("device-side assert triggered")) == ("torch-kernel-failed", 3)
    assert headline(failing_with("CUDA out of memory. Tried to allocate 2 MiB")) == ("gpu-memory-full", 1)


# Architectures. A list of capabilities stands for as many GPUs; the first is the current one.

GPUS = {
    (6, 1): "NVIDIA GeForce GTX 1080",
    (7, 0): "Tesla V100-SXM2-16GB",
    (8, 9): "NVIDIA GeForce RTX 4090",
    (9, 0): "NVIDIA H200",
    (12, 0): "NVIDIA GeForce RTX 5090",
    (3, 5): "Tesla K40c",
}
OF_2_13 = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"
OF_2_7 = "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90"
NO_KERNEL = "AcceleratorError: CUDA error: no kernel image is available for execution on the device"


def with_gpus(*capabilities, flags=OF_2_13, version="2.13.0", cuda="13.0", error=NO_KERNEL, warnings=(), **changes):
    machine = gpu_machine(gpus=len(capabilities), version=version, cuda=cuda)
    gpus = tuple(TorchGpu(GPUS.get(c, "NVIDIA GPU"), f"GPU-{i}", c) for i, c in enumerate(capabilities))
    torch = replace(machine.torch, arch_flags=flags, gpus=gpus, kernel_error=error, warnings=warnings)
    return replace(machine, torch=torch, **changes)


@pytest.mark.parametrize(
    ("flag", "gpu", "runs"),
    [
        ("sm_86", (8, 9), True),  # the same major version, a newer minor one
        ("sm_86", (8, 0), False),
        ("sm_86", (9, 0), False),
        ("sm_100", (10, 3), True),
        ("sm_120", (12, 1), True),
        ("sm_100", (12, 0), False),
        ("compute_90", (12, 0), True),  # PTX serves all that is newer
        ("compute_90", (8, 9), False),
        ("sm_90a", (9, 0), True),  # one architecture alone
        ("sm_100a", (10, 3), False),
        ("compute_90a", (10, 0), False),
        ("sm_100f", (10, 3), True),  # a family
        ("compute_100f", (12, 0), False),
        ("sm_50", (5, 3), False),  # Jetson's are for themselves
        ("sm_60", (6, 2), False),
        ("sm_70", (7, 2), False),
        ("sm_80", (8, 7), False),
        ("sm_87", (8, 9), False),
        ("sm_87", (8, 7), True),
        ("sm_100", (10, 1), False),
        ("sm_101", (11, 0), True),
        ("sm_101", (12, 0), False),
        ("sm_101", (10, 3), False),
        ("sm_53", (11, 0), False),
    ],
)
def test_which_code_runs_on_which_gpu(flag, gpu, runs):
    facts = with_gpus(gpu, flags=flag)
    assert (torch_fit.too_new(facts) is None and torch_fit.too_old(facts) is None) is runs


@pytest.mark.parametrize(
    ("flag", "cuda", "runs"),
    [
        ("sm_80", "13.0", False),
        ("sm_80", "13.2", True),
        ("sm_86", "14.0", True),
        ("sm_89", "13.2", False),
        ("sm_90", "13.2", False),
    ],
)
def test_from_cuda_13_2_on_code_for_ampere_runs_on_orin_too(flag, cuda, runs):
    facts = with_gpus((8, 7), flags=flag, cuda=cuda, platform=JETSON)
    assert (torch_fit.not_for_jetson(facts) is None) is runs


def test_from_cuda_13_2_on_code_for_ampere_runs_on_no_older_jetson():
    assert torch_fit.not_for_jetson(with_gpus((7, 2), flags="sm_80", cuda="13.2", platform=JETSON))


@fires("gpu-too-new-for-torch", "RTX 5090", "12.0", OF_2_7, "pytorch-cuda-rl:torch2.13", "7.5 to 12.x", "/cu130")
@pytest.mark.parametrize("version", ["2.7.1+cu126", "2.6.0+cu124"])
def test_a_new_gpu_in_an_older_variant(version):
    return with_gpus((12, 0), flags=OF_2_7, version=version, cuda="12.6")


@fires("gpu-too-new-for-torch", "needs driver 580 or newer", "/cu128")
def test_a_new_gpu_whose_driver_is_too_old_for_the_newest_variant():
    driver = replace(gpu_machine().driver_api, version=12080)
    return with_gpus((12, 0), flags=OF_2_7, version="2.7.1+cu126", cuda="12.6", driver_api=driver)


@fires("gpu-too-new-for-torch", "a newer", "CUDA_VISIBLE_DEVICES=")
def test_a_gpu_that_no_variant_knows():
    return replace(
        with_gpus((15, 0)), torch=replace(with_gpus((15, 0)).torch, gpus=(TorchGpu("a newer", "", (15, 0)),))
    )


@fires("gpu-too-new-for-torch", "10.3")
def test_a_new_gpu_of_a_known_kind_for_whose_first_model_alone_the_kernels_are():
    return with_gpus((10, 3), flags="sm_90 sm_100a sm_120")


@silent("gpu-too-new-for-torch")
def test_a_new_gpu_that_works_whatever_the_list_says():
    return with_gpus((12, 0), flags=OF_2_7, error=None)


@silent("gpu-too-new-for-torch")
def test_ptx_serves_a_new_gpu():
    return with_gpus((12, 0), flags=f"{OF_2_7} compute_90", error=None)


@silent("gpu-too-new-for-torch")
@pytest.mark.parametrize("flags", [None, "", "gfx90a", "sm_x"])
def test_a_torch_that_does_not_say_what_it_has_kernels_for(flags):
    return with_gpus((12, 0), flags=flags)


HINT = """Found GPU0 NVIDIA GeForce GTX 1080 which is of compute capability (CC) 6.1.
Your installed torch==2.13.0 does not include kernels for this GPU. Reinstall the same version against a CUDA build ...
  For CUDA 12.6 use pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cu126"""


@fires(
    "gpu-too-old-for-torch", "GTX 1080", "6.1", OF_2_13, "pytorch-cuda-rl:torch2.7", "5.0 to 9.x", "torch2.6", "cu126"
)
def test_an_old_gpu_in_the_newest_variant():
    return with_gpus((6, 1))


@fires("gpu-too-old-for-torch", "pip install --force-reinstall torch==2.13.0 --index-url https://download.py", "cu126")
def test_an_old_gpu_for_which_torch_itself_names_a_build():
    return with_gpus((7, 0), warnings=(HINT,))


@fires("gpu-too-old-for-torch", "CUDA_VISIBLE_DEVICES=")
def test_a_gpu_that_is_too_old_for_every_variant():
    return with_gpus((3, 5), flags=OF_2_7, version="2.7.1", cuda="12.6")


def test_no_image_is_proposed_for_a_gpu_that_is_too_old_for_every_variant():
    assert "pytorch-cuda-rl" not in commands(with_gpus((3, 5)))


@fires("gpu-too-old-for-torch")
def test_torch_dies_on_an_old_gpu():
    facts = with_gpus((6, 1), error=None)
    return replace(facts, torch=replace(facts.torch, ended="signal SIGSEGV"))


@silent("gpu-too-old-for-torch")
def test_an_old_gpu_in_the_variant_for_it():
    return with_gpus((6, 1), flags=OF_2_7, version="2.7.1", cuda="12.6", error=None)


@silent("gpu-too-old-for-torch")
def test_a_gpu_that_is_too_new_is_not_too_old():
    return with_gpus((12, 0), flags=OF_2_7)


def test_each_state_of_one_gpu_is_told_by_one_rule_even_when_all_are_asked():
    old, new = with_gpus((6, 1)), with_gpus((12, 0), flags=OF_2_7)
    assert [rule.id for rule in torch_fit.FIT if rule(old)] == ["gpu-too-old-for-torch"]
    assert [rule.id for rule in torch_fit.FIT if rule(new)] == ["gpu-too-new-for-torch"]
    orin = with_gpus((8, 7), platform=JETSON)
    assert [rule.id for rule in torch_fit.FIT if rule(orin)] == ["torch-not-for-jetson"]


def test_of_two_gpus_without_kernels_the_current_one_is_named():
    facts = with_gpus((6, 1), (12, 0), flags="sm_75 sm_90")
    assert ids(facts)[0] == "gpu-too-old-for-torch"
    assert ids(replace(facts, torch=replace(facts.torch, current_device=1)))[0] == "gpu-too-new-for-torch"


@pytest.mark.parametrize(("version", "variant"), [("2.13.0", "torch2.7"), ("2.7.1", "torch2.13")])
def test_where_two_variants_have_kernels_the_other_one_is_proposed(version, variant):
    facts = with_gpus((8, 9), flags="sm_70 sm_90", version=version)
    assert ids(facts)[0] == "gpu-too-old-for-torch"
    assert f"pytorch-cuda-rl:{variant}" in commands(facts)


def test_the_host_s_driver_is_spoken_of_only_where_the_proposed_variant_needs_a_newer_one():
    driver = replace(gpu_machine().driver_api, version=12080)
    for facts in (with_gpus((6, 1), driver_api=driver), with_gpus((12, 0), flags=OF_2_7, version="2.7.1")):
        assert "580" not in "".join(fix.note for fix in judge(facts)[0].fixes)


def test_a_gpu_without_a_name_is_this_gpu():
    facts = with_gpus((6, 1))
    nameless = replace(facts.torch, gpus=(TorchGpu("", "", (6, 1)),))
    assert "this GPU" in judge(replace(facts, torch=nameless))[0].cause
    assert "this GPU" not in judge(facts)[0].cause


@silent("gpu-too-old-for-torch")
@pytest.mark.parametrize("capability", [(), (6,), (6, 1, 0), (6, -1)])
def test_a_capability_that_is_none(capability):
    return with_gpus(capability)


def test_of_the_builds_that_torch_names_the_newest_that_the_driver_serves_is_proposed():
    line = "use pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cu{}\n"
    warnings = ("".join(line.format(tag) for tag in (126, 129, 130)),)
    for version, tag in ((12080, "cu129"), (13000, "cu130")):
        driver = replace(gpu_machine().driver_api, version=version)
        facts = with_gpus(
            (12, 0), flags=OF_2_7, version="2.13.0+cu124", cuda="12.6", driver_api=driver, warnings=warnings
        )
        assert commands(facts).splitlines()[-1].endswith(f"/{tag}")


@pytest.mark.parametrize("engine", ["docker", "podman", "kubernetes"])
def test_every_engine_is_told_the_image_that_fits(engine):
    facts = with_gpus((6, 1))
    assert "pytorch-cuda-rl:torch2.7" in commands(replace(facts, platform=replace(facts.platform, engine=engine)))


@fires("some-gpus-without-kernels", "GPU 1, NVIDIA GeForce GTX 1080", "CUDA_VISIBLE_DEVICES=0,2", severity="degraded")
def test_one_gpu_of_three_is_too_old():
    return with_gpus((9, 0), (6, 1), (8, 9), error=None)


@fires("some-gpus-without-kernels", "CUDA_VISIBLE_DEVICES=1", severity="fatal")
def test_the_gpu_that_torch_takes_is_the_one_without_kernels():
    return with_gpus((6, 1), (9, 0))


@fires("some-gpus-without-kernels", "CUDA_VISIBLE_DEVICES=3")
def test_the_proposed_number_is_that_of_the_variable():
    return with_gpus((6, 1), (9, 0), environment={"CUDA_VISIBLE_DEVICES": "2, 3"})


@fires("some-gpus-without-kernels", "CUDA_VISIBLE_DEVICES=1")
@pytest.mark.parametrize("value", ["2", ""])
def test_a_variable_that_does_not_say_which_gpus_there_are(value):
    facts = with_gpus((6, 1), (9, 0), environment={"CUDA_VISIBLE_DEVICES": value})
    return replace(facts, nvml=replace(facts.nvml, init=999))


@silent("some-gpus-without-kernels")
def test_all_gpus_of_several_have_kernels():
    return with_gpus((9, 0), (8, 9), (12, 0), error=None)


@silent("some-gpus-without-kernels")
def test_no_gpu_of_several_has_kernels():
    return with_gpus((6, 1), (7, 0))


ORIN = TorchGpu("Orin", "", (8, 7))


def jetson(**changes):
    return gpu_machine("Orin", platform=JETSON, pci=(), nodes=nodes(), **changes)


@fires("torch-not-for-jetson", "version.cuda is None", "l4t-pytorch")
@ASKED_OR_NOT
def test_the_wheel_for_arm_servers_on_a_jetson(torch):
    return jetson(torch=torch, torch_build=CPU_BUILD)


@fires("torch-not-for-jetson", "8.7", "sm_90")
def test_a_torch_without_kernels_for_orin():
    return jetson(torch=replace(gpu_machine().torch, gpus=(ORIN,), kernel_error=NO_KERNEL))


@silent("torch-not-for-jetson")
def test_a_torch_that_does_not_describe_the_gpu_of_a_jetson():
    return jetson(torch=replace(gpu_machine().torch, gpus=()))


@silent("torch-not-for-jetson")
def test_a_jetson_without_torch():
    return jetson(torch=QUICK, torch_build=TorchBuild())


@silent("torch-not-for-jetson")
def test_a_torch_for_orin():
    return jetson(torch=replace(gpu_machine().torch, gpus=(ORIN,), arch_flags="sm_87"))


@silent("torch-not-for-jetson")
def test_the_same_torch_on_another_machine():
    return gpu_machine(torch=cpu_machine().torch, torch_build=CPU_BUILD)
