"""The self-check in the real image: failures that `docker run --gpus all` can show on the simulated runtime, and a GPU
that is lost while a job runs.
"""

import json
import os
import shutil
import subprocess

import pytest
from workbench import IMAGE, REPO, docker, wait_until

NODES = [part for name in ("nvidia0", "nvidiactl") for part in ("--device", f"/dev/null:/dev/{name}")]
UVM = ["--device", "/dev/null:/dev/nvidia-uvm"]


def variables(**given):
    return [part for name, value in given.items() for part in ("-e", f"{name}={value}")]


@pytest.fixture
def shut_nodes(tmp_path):
    """Mounts of nodes that the container's device cgroup does not allow, as NVIDIA's are after a daemon-reload."""
    mounts = []
    for minor, name in {0: "nvidia0", 255: "nvidiactl"}.items():
        os.mknod(tmp_path / name, 0o666 | 0o020000, os.makedev(195, minor))
        os.chmod(tmp_path / name, 0o666)
        mounts += ["-v", f"{tmp_path / name}:/dev/{name}"]
    return mounts


@pytest.fixture
def loaded_driver(tmp_path):
    """A mount that shows the host's NVIDIA driver as loaded."""
    for module in ("nvidia", "nvidia_uvm"):
        (tmp_path / "modules" / module).mkdir(parents=True)
    (tmp_path / "modules/nvidia/version").write_text("580.95.05\n")
    return ["-v", f"{tmp_path / 'modules'}:/sys/module:ro"]


def verdict(*arguments):
    """The headline's id, its commands, and the doctor's exit status."""
    done = docker("run", "--rm", *arguments, IMAGE, "rl", "doctor", "--quick", "--json", check=False)
    first = json.loads(done.stdout)["findings"][0]
    return first["id"], "\n".join(fix["command"] for fix in first["fixes"]), done.returncode


def test_a_container_without_the_flag_is_told_to_use_it(loaded_driver):
    headline, commands, status = verdict(*loaded_driver)
    assert (headline, status) == ("container-without-gpu", 3)
    assert "docker run --gpus all" in commands


def test_a_driver_too_old_is_given_its_age_and_the_variant_that_fits():
    old = variables(STUB_CUDA_VERSION=12040, STUB_DRIVER_VERSION="550.54.15", STUB_CUINIT=0)
    old += variables(STUB_GPU_NAME="NVIDIA GeForce RTX 4090")  # to a data-center GPU, the base's cuda-compat is offered
    headline, commands, status = verdict("--gpus", "all", *NODES, *UVM, *old)
    assert (headline, status) == ("driver-too-old", 3)
    assert "nvidia-driver-580" in commands
    assert "pytorch-cuda-rl:torch2.7" in commands


def test_nodes_passed_by_hand_lack_uvm(loaded_driver):
    headline, commands, status = verdict("--gpus", "all", *loaded_driver, *NODES, *variables(STUB_CUINIT=999))
    assert (headline, status) == ("uvm-missing", 3)
    assert "--device /dev/nvidia-uvm" in commands


def test_a_capability_left_out_takes_its_library_away():
    left_out = variables(NVIDIA_DRIVER_CAPABILITIES="utility")
    headline, commands, status = verdict("--gpus", "all", *NODES, *UVM, *left_out)
    assert (headline, status) == ("capability-missing", 3)
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics" in commands


def test_nodes_that_the_device_cgroup_refuses_are_told_from_everything_else(shut_nodes):
    failing = variables(STUB_CUINIT=100, STUB_NVML_INIT=999)
    headline, commands, status = verdict("--gpus", "all", *shut_nodes, *failing)
    assert (headline, status) == ("device-cgroup-refuses", 3)
    assert "no-cgroups" in commands


def test_a_library_of_another_version_than_the_kernel_driver_is_told_what_to_renew(loaded_driver):
    mixed = variables(STUB_CUINIT=803, STUB_NVML_INIT=18)
    headline, commands, status = verdict("--gpus", "all", *loaded_driver, *NODES, *UVM, *mixed)
    assert (headline, status) == ("driver-version-mismatch", 3)
    assert "reboot" in commands


@pytest.fixture
def broken_driver(tmp_path):
    """A driver library that has lost its GPU, as after a daemon-reload: cuInit gives 100, nvmlInit 999."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "this test needs a C compiler: apt-get install gcc"
    built = {}
    for soname, source, define in (
        ("libcuda.so.1", "libcuda.c", "-DSTUB_CUINIT=100"),
        ("libnvidia-ml.so.1", "libnvidia_ml.c", "-DSTUB_NVML_INIT=999"),
    ):
        built[soname] = tmp_path / soname
        flags = ["-shared", "-fPIC", f"-Wl,-soname,{soname}", define]
        subprocess.run([compiler, *flags, "-o", built[soname], REPO / "tests/stubs" / source], check=True)
    return built


def test_a_gpu_lost_while_a_job_runs_turns_the_health_check_and_the_job_goes_on(launch, shut_nodes, broken_driver):
    workbench = launch("--gpus", "all", *shut_nodes, "--health-interval", "2s", "-e", "JUPYTER_TOKEN=t")
    workbench.exec("/etc/rl/self_check.sh", "--quick", check=False)  # torch, which no stub convinces, is not asked so
    assert workbench.exec("cat", "/tmp/rl/gpu_worked").stdout.startswith("20")
    docker("exec", "--detach", workbench.name, "sleep", "1000")
    check = ["python", "-I", "/etc/rl/healthcheck.py"]
    assert workbench.exec(*check).returncode == 0

    for soname, library in broken_driver.items():
        docker("cp", library, f"{workbench.name}:/usr/lib/x86_64-linux-gnu/{soname}")
    complaint = workbench.exec(*check, check=False)
    assert complaint.returncode == 1
    assert "No usable GPU: " in complaint.stderr
    assert "it last worked at 20" in complaint.stderr
    wait_until(lambda: workbench.state("Health.Status") == "unhealthy", 150, "docker to call it unhealthy")
    assert "No usable GPU" in workbench.exec("cat", "/tmp/rl/greeting").stdout
    report = json.loads(workbench.exec("cat", "/tmp/rl/doctor.json").stdout)
    assert report["findings"][0]["id"] == "gpu-lost"
    assert "sleep 1000" in workbench.exec("ps", "-eo", "args").stdout


def test_a_torn_torch_still_gets_a_report(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("import torch._C_that_is_not_there\n")
    tmp_path.chmod(0o755)
    mount = ["-v", f"{tmp_path}:/opt/torn:ro", "-e", "PYTHONPATH=/opt/torn"]
    done = docker("run", "--rm", *mount, IMAGE, "rl", "doctor", "--json", check=False)
    report = json.loads(done.stdout)
    assert report["findings"][0]["id"] == "torch-broken"
    assert done.returncode == 1
