"""The self-check in the real image: failures that `docker run --gpus all` can show on the simulated runtime, and a GPU
that is lost while a job runs.
"""

import json
import os

import pytest
from workbench import IMAGE, docker

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
