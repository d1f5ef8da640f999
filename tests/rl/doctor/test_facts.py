"""What is gathered: files from a fake root, driver answers from the stub libraries, torch from fake packages."""

import json
import os
import signal
import socket
import subprocess
import time
from dataclasses import asdict

import pytest
import torch
from fake_machine import REPO, build_stubs, clean_environment, fake_torch, make_root
from machine_facts import cpu_machine, gpu_machine, without_gpu

from rl.doctor.child import Child
from rl.doctor.facts import gather
from rl.doctor.report import as_json, as_text
from rl.doctor.schema import Facts, decode


@pytest.fixture(scope="module")
def stubs(tmp_path_factory):
    return build_stubs(tmp_path_factory.mktemp("stubs"))


@pytest.fixture
def root(tmp_path):
    return make_root(tmp_path / "root")


@pytest.fixture(autouse=True)
def only_our_variables(monkeypatch):
    for name in set(os.environ) - set(clean_environment()):
        monkeypatch.delenv(name)


def quick(root, **limits) -> Facts:
    return gather(root, with_torch=False, **limits)


def test_an_empty_tree_yields_facts_and_no_error(tmp_path):
    facts = quick(tmp_path / "nothing")
    assert facts.platform.engine is None
    assert not facts.hardware_visible
    assert facts.nodes.ended == "ok"


def test_a_kernel_module_is_read_with_its_version_and_flavour(tmp_path):
    driver = quick(make_root(tmp_path / "root", kernel_module=True)).kernel_driver
    assert (driver.loaded, driver.version, driver.open_module, driver.uvm_loaded) == (True, "580.95.05", True, True)


def test_a_proprietary_kernel_module_is_told_from_the_open_one(tmp_path):
    root = make_root(tmp_path / "root", kernel_module=True)
    line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC 2023\n"
    (root / "proc/driver/nvidia/version").write_text(line)
    driver = quick(root).kernel_driver
    assert (driver.version, driver.open_module) == ("535.54.03", False)


@pytest.mark.parametrize("owner", ["nvidia", "nouveau", None])
def test_a_gpu_on_the_bus_is_found_with_whoever_drives_it(tmp_path, owner):
    root = make_root(tmp_path / "root", pci=True, pci_driver=owner)
    audio = root / "sys/bus/pci/devices/0000:01:00.1"  # every NVIDIA card has one
    audio.mkdir()
    (audio / "vendor").write_text("0x10de\n")
    (audio / "class").write_text("0x040300\n")
    assert [(gpu.address, gpu.driver) for gpu in quick(root).nvidia_pci] == [("0000:01:00.0", owner)]


def test_nodes_are_opened_and_their_error_is_named(tmp_path):
    root = make_root(tmp_path / "root", device_nodes=("nvidia0", "nvidiactl"))
    (root / "dev/nvidia-caps").mkdir()
    with socket.socket(socket.AF_UNIX) as unopenable:  # the kernel refuses to open a socket: ENXIO
        here = os.open(root / "dev", os.O_RDONLY)
        unopenable.bind(f"/proc/self/fd/{here}/nvidia-uvm")
        os.close(here)
    (root / "dev/nvidia1").symlink_to("gone")
    found = {node.name: node.opened for node in quick(root).nodes.found}
    assert found == {"nvidia0": "ok", "nvidia1": "ENOENT", "nvidia-uvm": "ENXIO", "nvidiactl": "ok"}


@pytest.mark.parametrize("engine", ["docker", "podman", "apptainer", None])
def test_the_engine_is_known_by_its_mark(tmp_path, engine):
    assert quick(make_root(tmp_path / "root", engine=engine)).platform.engine == engine


def test_a_container_of_another_engine_is_known_by_its_root_file_system(tmp_path):
    root = make_root(tmp_path / "root", engine=None)
    line = "537 522 0:63 / / rw,relatime master:205 - overlay overlay rw,lowerdir=/a:/b\n"
    (root / "proc/self/mountinfo").write_text(line)
    assert quick(root).platform.engine == "container"


def test_kubernetes_and_wsl_are_recognised(tmp_path):
    root = make_root(tmp_path / "root", kernel="5.15.153.1-microsoft-standard-WSL2")
    (root / "dev/dxg").touch()
    platform = gather(root, with_torch=False, environment={"KUBERNETES_SERVICE_HOST": "10.0.0.1"}).platform
    assert (platform.engine, platform.wsl, platform.dxg) == ("kubernetes", True, True)


def test_only_listed_variables_are_kept(root):
    secrets = {"JUPYTER_TOKEN": "hunter2", "AWS_SECRET_ACCESS_KEY": "hunter2", "CUDA_VISIBLE_DEVICES": "0"}
    facts = gather(root, with_torch=False, environment=secrets)
    assert facts.environment == {"CUDA_VISIBLE_DEVICES": "0"}
    assert "hunter2" not in json.dumps(asdict(facts))


def test_without_libraries_the_loaders_own_words_are_kept(root):
    facts = quick(root)
    assert "libcuda.so.1: cannot open shared object file" in facts.driver_api.load_error
    assert "libnvidia-ml.so.1: cannot open shared object file" in facts.nvml.load_error


def test_a_file_that_is_no_library_is_told_from_a_missing_one(root, tmp_path, monkeypatch):
    (tmp_path / "libcuda.so.1").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert "file too short" in quick(root).driver_api.load_error


def test_driver_api_and_nvml_are_asked_through_the_true_binding(root, stubs, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(stubs))
    monkeypatch.setenv("STUB_GPU_COUNT", "2")
    monkeypatch.setenv("STUB_CUDA_VERSION", "12080")
    monkeypatch.setenv("STUB_DRIVER_VERSION", "570.26")
    facts = quick(root)
    api, nvml = facts.driver_api, facts.nvml
    assert (api.ended, api.init, api.version, api.count) == ("ok", 0, 12080, 2)
    assert api.path == str(stubs / "libcuda.so.1")
    assert (nvml.ended, nvml.init, nvml.driver_version, nvml.cuda_version, nvml.count) == ("ok", 0, "570.26", 12080, 2)
    assert [gpu.name for gpu in nvml.gpus] == ["NVIDIA H200", "NVIDIA H200"]
    assert nvml.gpus[1].memory_bytes == 141 * 2**30
    assert nvml.gpus[0].uuid != nvml.gpus[1].uuid


def test_a_failed_initialisation_keeps_its_number_and_name(root, stubs, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(stubs))
    monkeypatch.setenv("STUB_CUINIT", "803")
    monkeypatch.setenv("STUB_NVML_INIT", "18")
    facts = quick(root)
    assert (facts.driver_api.init, facts.driver_api.init_name) == (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH")
    assert facts.driver_api.count is None
    assert (facts.nvml.init, facts.nvml.driver_version) == (18, None)
    assert "version mismatch" in facts.nvml.init_name.lower()


@pytest.mark.parametrize(("call", "probe", "limit"), [("cuInit", "driver_api", 1.0), ("nvmlInit", "nvml", 2.0)])
def test_a_hung_driver_call_is_a_fact_and_costs_only_its_limit(root, stubs, monkeypatch, call, probe, limit):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(stubs))
    monkeypatch.setenv("STUB_HANG", call)
    began = time.monotonic()
    facts = quick(root, driver_limit=limit)
    assert time.monotonic() - began < limit + 2.0
    hung = getattr(facts, probe)
    assert (hung.ended, hung.step, hung.stuck) == ("timeout", call, False)
    assert facts.driver_api.version == 13000  # what was said before the hang is kept


@pytest.mark.parametrize(("call", "probe"), [("cuDeviceGetCount", "driver_api"), ("nvmlDeviceGetCount", "nvml")])
def test_a_crashing_driver_call_is_a_fact(root, stubs, monkeypatch, call, probe):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(stubs))
    monkeypatch.setenv("STUB_CRASH", call)
    crashed = getattr(quick(root), probe)
    assert (crashed.ended, crashed.step, crashed.init) == ("signal SIGSEGV", call, 0)


def test_a_child_that_ended_while_a_hung_one_was_waited_for_has_not_hung():
    child = Child("nodes", "/nowhere", limit=0.0)
    time.sleep(2)  # the hung one
    said = child.collect()
    assert (said["ended"], said["found"]) == ("ok", [])


def test_a_child_that_not_even_sigkill_ends_is_left_behind():
    # A process inside a wedged driver cannot be made here: this stands in for the standard library's view of one.
    class Unkillable:
        pid, returncode, stdout, stderr = 2**22 + 1, None, None, None  # no such process

        def communicate(self, timeout):
            raise subprocess.TimeoutExpired("probe", timeout, b'{"step": "cuInit"}\n', b"")

        def wait(self, timeout):
            raise subprocess.TimeoutExpired("probe", timeout)

    child = Child("nodes", "/nowhere", limit=5.0)
    child.collect()
    child.process = Unkillable()
    said = child.collect()
    assert (said["step"], said["ended"], said["stuck"]) == ("cuInit", "timeout", True)
    assert child.process.returncode == -signal.SIGKILL


def run_torch(packages, monkeypatch, **limits):
    monkeypatch.setenv("PYTHONPATH", f"{packages}{os.pathsep}{REPO}")
    monkeypatch.syspath_prepend(packages)
    facts = gather(packages / "no-root", **limits)
    return facts.torch_build, facts.torch


def test_a_torch_with_a_gpu_is_asked_everything(tmp_path, monkeypatch):
    build, run = run_torch(fake_torch(tmp_path, gpus=2), monkeypatch)
    assert (build.installed, build.version, build.cuda) == (True, "2.13.0", "13.0")
    assert (run.ended, run.error, run.version, run.cuda) == ("ok", None, "2.13.0", "13.0")
    assert (run.available, run.count, run.current_device, run.kernel_error) == (True, 2, 0, None)
    assert run.names == ("NVIDIA H200", "NVIDIA H200")
    assert run.arch_flags == "sm_80 sm_90"


def test_a_wrong_sum_on_the_gpu_is_an_error(tmp_path, monkeypatch):
    _, run = run_torch(fake_torch(tmp_path, gpus=1, total="3.0"), monkeypatch)
    assert run.kernel_error == "1 + 1 + 1 + 1 gave 3.0"


def test_what_torch_prints_does_not_disturb_the_facts(tmp_path, monkeypatch):
    _, run = run_torch(fake_torch(tmp_path, body="print('{\"available\": true}', flush=True)"), monkeypatch)
    assert (run.ended, run.available) == ("ok", False)


@pytest.mark.parametrize(
    ("body", "ended", "error"),
    [
        ("raise ImportError('libcudnn.so.9: cannot open')", "ok", "ImportError: libcudnn.so.9: cannot open"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "signal SIGSEGV", None),
        ("import os; os._exit(3)", "exit 3", None),
        ("import time; time.sleep(60)", "timeout", None),
    ],
)
def test_a_broken_torch_is_a_fact(tmp_path, monkeypatch, body, ended, error):
    build, run = run_torch(fake_torch(tmp_path, body=body), monkeypatch, torch_limit=1.0)
    assert (run.ended, run.error, run.step) == (ended, error, "import torch")
    assert not run.missing
    assert build.cuda == "13.0"  # read without importing it


def test_a_torn_torch_is_a_fact(tmp_path, monkeypatch):
    package = fake_torch(tmp_path) / "torch"
    (package / "version.py").write_text("__version__ = '2.13")
    build, run = run_torch(tmp_path, monkeypatch)
    assert (build.installed, build.version) == (True, None)
    assert "SyntaxError" in run.error


def test_the_installed_torch_is_found_without_importing_it(root):
    build = quick(root).torch_build
    assert (build.version, build.cuda, build.hip) == (torch.__version__, torch.version.cuda, torch.version.hip)


def test_facts_survive_being_saved_and_read(tmp_path):
    facts = quick(make_root(tmp_path / "root", kernel_module=True, pci_driver="nvidia", device_nodes=("nvidia0",)))
    assert decode(Facts, json.loads(json.dumps(asdict(facts)))) == facts


GARBAGE = ["9" * 5000, None, 7, -1, 10**30, "x", "\0é" * 5000, [], [None, 7, [[]]], {}, {"x": 1}, True, 1.5]


MACHINES = {"healthy": gpu_machine(gpus=2), "without --gpus": without_gpu(), "CPU": cpu_machine()}


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES.keys())
@pytest.mark.parametrize("garbage", GARBAGE, ids=[repr(value)[:12] for value in GARBAGE])
def test_facts_of_the_wrong_type_never_make_a_rule_or_the_report_fail(garbage, machine):
    whole = json.loads(json.dumps(asdict(machine)))

    def spoil(part):  # every field in turn, at every depth
        for key in range(len(part)) if isinstance(part, list) else list(part):
            kept, part[key] = part[key], garbage
            facts = decode(Facts, whole)
            assert as_text(facts).startswith(as_json(facts)["verdict"]["line"])
            part[key] = kept
            if isinstance(kept, dict | list):
                spoil(kept)

    spoil(whole)
    assert decode(Facts, garbage) == Facts()
