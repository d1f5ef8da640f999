"""`rl doctor` as it is typed: its exit codes, its first line, its JSON and its files, each in a process of its own."""

import json
import os
import subprocess
import sys
import venv

import pytest
from fake_machine import REPO, build_stubs, clean_environment, doctor, fake_torch, make_root

HOST = {"kernel_module": True, "pci_driver": "nvidia"}
GIVEN = {**HOST, "device_nodes": ("nvidiactl", "nvidia0", "nvidia-uvm")}


@pytest.fixture(scope="module")
def stubs(tmp_path_factory):
    return build_stubs(tmp_path_factory.mktemp("stubs"))


def test_a_cpu_machine_says_so_and_exits_0(tmp_path):
    torch = fake_torch(tmp_path / "packages", cuda=None)
    done = doctor(make_root(tmp_path / "root"), python_path=torch, NVIDIA_VISIBLE_DEVICES="all")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("CPU only: no NVIDIA GPU is visible on this machine; training runs on the CPU\n")
    assert "available: no; GPUs: 0; current device: cpu" in done.stdout


def test_a_healthy_gpu_exits_0(tmp_path, stubs):
    torch = fake_torch(tmp_path / "packages", gpus=1)
    done = doctor(make_root(tmp_path / "root", **GIVEN), python_path=torch, LD_LIBRARY_PATH=stubs)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("GPU ready: NVIDIA H200, driver 580.95.05, torch 2.13.0\n")


def test_a_degraded_gpu_exits_1(tmp_path, stubs):
    torch = fake_torch(tmp_path / "packages", gpus=1)
    root = make_root(tmp_path / "root", **GIVEN)
    done = doctor(root, python_path=torch, LD_LIBRARY_PATH=stubs, STUB_NVML_INIT=18)
    assert done.returncode == 1
    assert done.stdout.startswith("GPU degraded: CUDA works, but NVML does not")


@pytest.mark.parametrize("flags", [(), ("--quick",)], ids=["default", "quick"])
@pytest.mark.parametrize(
    ("machine", "variables", "finding"),
    [
        ({"pci": True}, {}, "no-host-driver"),
        ({"pci_driver": "nouveau"}, {}, "nouveau-driver"),
        (HOST, {}, "container-without-gpu"),
        (GIVEN, {"STUB_CUDA_VERSION": "12040", "STUB_CUINIT": "0"}, "driver-too-old"),
        (GIVEN, {"STUB_CUINIT": "999"}, "cuda-init-failed"),
        (GIVEN, {"STUB_CRASH": "cuInit"}, "driver-call-crashed"),
        ({}, {"GPU_CHECK": "strict"}, "no-nvidia-gpu"),
    ],
)
def test_an_expected_gpu_that_is_not_usable_exits_3(tmp_path, stubs, machine, variables, finding, flags):
    root = make_root(tmp_path / "root", **machine)
    if machine.get("kernel_module"):
        old = {"12040": "550.54.15"}.get(variables.get("STUB_CUDA_VERSION"), "580.95.05")
        (root / "proc/driver/nvidia/version").write_text(f"NVRM version: NVIDIA UNIX Kernel Module  {old}  x\n")
    libraries = {"LD_LIBRARY_PATH": stubs} if machine.get("device_nodes") else {}
    torch = fake_torch(tmp_path / "packages")
    done = doctor(root, "--json", *flags, python_path=torch, **libraries, **variables)
    report = json.loads(done.stdout)
    assert (done.returncode, done.stderr, report["findings"][0]["id"]) == (3, "", finding)


def test_a_hidden_gpu_is_the_cpu_by_choice(tmp_path, stubs):
    root, torch = make_root(tmp_path / "root", **GIVEN), fake_torch(tmp_path / "packages")
    done = doctor(root, python_path=torch, LD_LIBRARY_PATH=stubs, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0
    assert done.stdout.startswith("CPU only: CUDA_VISIBLE_DEVICES hides every GPU; training runs on the CPU\n")


@pytest.mark.parametrize(
    ("body", "finding"),
    [
        ("raise ImportError('torn')", "torch-broken"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "torch-crashed"),
    ],
)
def test_a_broken_torch_on_a_cpu_machine_exits_1_with_a_report(tmp_path, body, finding):
    torch = fake_torch(tmp_path / "packages", body=body)
    done = doctor(make_root(tmp_path / "root"), "--json", python_path=torch)
    assert (done.returncode, json.loads(done.stdout)["findings"][0]["id"]) == (1, finding)


@pytest.mark.parametrize("flags", [(), ("--quick",)], ids=["default", "quick"])
def test_a_python_without_any_package_gets_a_report(tmp_path, stubs, flags):
    venv.create(tmp_path / "bare", symlinks=True, with_pip=False)
    command = [tmp_path / "bare/bin/python", "-m", "rl.doctor", "--json", *flags]
    environment = clean_environment(LD_LIBRARY_PATH=stubs)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=REPO, check=False)
    report = json.loads(done.stdout)
    assert (done.returncode, done.stderr, report["findings"][0]["id"]) == (3, "", "torch-missing")
    assert report["summary"]["nvml"] == "ModuleNotFoundError: No module named 'pynvml'"


def test_the_json_holds_schema_verdict_summary_and_findings(tmp_path):
    done = doctor(make_root(tmp_path / "root", **HOST), "--quick", "--json")
    report = json.loads(done.stdout)
    assert report["schema"] == 1
    assert report["verdict"]["status"] == "unusable"
    assert report["verdict"]["exit_code"] == done.returncode == 3
    assert report["verdict"]["line"].startswith("No usable GPU: ")
    summary = report["summary"]
    assert (summary["cuda_available"], summary["gpu_count"], summary["current_device"]) == (False, 0, None)
    assert {"torch_version", "torch_cuda_version", "gpu_names", "nvml"} <= set(summary)
    finding = report["findings"][0]
    assert (finding["id"], finding["severity"]) == ("container-without-gpu", "fatal")
    assert {"where": "docker", "command": "docker run --gpus all ...", "note": ""} in finding["fixes"]


def test_saved_facts_are_judged_as_the_machine_was(tmp_path):
    file = tmp_path / "facts.json"
    there = doctor(make_root(tmp_path / "root", **HOST), "--quick", "--save-facts", file, JUPYTER_TOKEN="hunter2")
    here = doctor(make_root(tmp_path / "other"), "--facts", file)
    assert here.returncode == there.returncode == 3
    assert here.stdout == there.stdout
    assert "hunter2" not in file.read_text()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--fully"], "unrecognized arguments: --fully"),
        (["--full", "--quick"], "not allowed with argument"),
        (["--facts", "a", "--full"], "--full says how to gather facts"),
        (["--facts"], "argument --facts: expected one argument"),
        (["--facts", "a", "--save-facts", "b"], "not allowed with argument"),
        (["--facts", "a", "--quick"], "give one of the two"),
    ],
)
def test_wrong_usage_exits_2_with_two_lines(tmp_path, flags, said):
    done = doctor(tmp_path, *flags)
    assert (done.returncode, done.stdout) == (2, "")
    usage, error = done.stderr.splitlines()
    assert usage.startswith("usage: rl doctor")
    assert said in error


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"schema": 99}', "\0\udcff"])
def test_a_facts_file_that_is_none_exits_4_with_one_line(tmp_path, content):
    file = tmp_path / "facts.json"
    if content is not None:
        file.write_bytes(content.encode(errors="surrogateescape"))
    done = doctor(tmp_path, "--facts", file)
    assert (done.returncode, done.stdout) == (4, "")
    assert len(done.stderr.splitlines()) == 1
    assert "facts.json" in done.stderr


def test_facts_that_cannot_be_saved_exit_4_after_the_report(tmp_path):
    done = doctor(make_root(tmp_path / "root"), "--quick", "--save-facts", tmp_path / "no" / "such" / "folder")
    assert done.returncode == 4
    assert done.stdout.startswith("CPU only")
    assert len(done.stderr.splitlines()) == 1


def test_a_reader_that_takes_one_line_gets_the_verdict_and_no_complaint(tmp_path):
    command = [sys.executable, "-m", "rl.doctor", "--quick"]
    shell = 'set -o pipefail; "$@" | head -n 1'
    environment = clean_environment(PYTHONUNBUFFERED=1)  # each write reaches the pipe on its own
    done = subprocess.run(
        ["bash", "-c", shell, "-", *command], capture_output=True, text=True, env=environment, cwd=REPO, check=True
    )
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1


def test_the_doctor_itself_never_imports_torch_or_the_rest_of_rl():
    code = (
        "import sys, rl.doctor; from rl.doctor import rules, report, facts\n"
        "print(*sorted(m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy', 'pynvml', 'tyro')))\n"
        "print(*sorted(m for m in sys.modules if m.startswith('rl.') and not m.startswith('rl.doctor')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=clean_environment(), check=True
    )
    assert done.stdout.split() == []


@pytest.mark.skipif(os.path.exists("/proc/driver/nvidia"), reason="this machine has an NVIDIA driver of its own")
def test_the_doctor_runs_on_this_very_machine_by_module_name():
    command = [sys.executable, "-m", "rl.doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), cwd=REPO, check=False)
    report = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (report["verdict"]["exit_code"], "")
    assert report["summary"]["torch_asked"]
