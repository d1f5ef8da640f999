"""What is in the image: the lock's versions, a compiler, the tools, and no secrets or drivers."""

import hashlib
import json
import re
import shutil

import pytest
from workbench import IMAGE, REPO, docker, run

TORCH = IMAGE.rpartition("torch")[2]
LOCK = REPO / f"locks/torch-{TORCH}.txt"


def in_image(*command):
    return docker("run", "--rm", "--network", "none", "-e", "GPU_CHECK=off", IMAGE, *command).stdout


def test_the_installed_versions_are_the_locks():
    freeze = in_image("pip", "list", "--format", "json")
    installed = {package["name"].lower().replace("_", "-"): package["version"] for package in json.loads(freeze)}
    for ours in ("pip", "pytorch-cuda-rl"):
        installed.pop(ours)
    locked = dict(re.findall(r"^([a-z0-9._-]+)==([^ ]+)", LOCK.read_text(), re.MULTILINE))
    locked = {name.replace("_", "-").replace(".", "-"): version for name, version in locked.items()}
    installed = {name.replace(".", "-"): version for name, version in installed.items()}
    assert {name: locked.get(name) for name in installed} == {n: v.split("+")[0] for n, v in installed.items()}
    assert installed["torch"].startswith(TORCH)


@pytest.mark.parametrize("tool", ["watch", "git", "tmux", "gcc", "g++", "ssh", "scp", "nano", "less", "rl"])
def test_a_tool_is_there(tool):
    assert in_image("which", tool).strip()


def test_torch_compile_finds_its_compiler_and_headers():
    program = "import torch; f = torch.compile(lambda x: x.sin() + 1); print(f(torch.zeros(3)).tolist())"
    assert in_image("python", "-W", "error::UserWarning", "-c", program) == "[1.0, 1.0, 1.0]\n"


@pytest.mark.parametrize("library", ["libcuda.so.1", "libnvidia-ml.so.1"])
def test_the_loader_finds_no_driver_library(library):
    """The driver's come from the host. (The true base has one beside its path, in cuda-compat: that is right.)"""
    program = f"import ctypes; ctypes.CDLL({library!r})"
    done = docker("run", "--rm", "-e", "GPU_CHECK=off", IMAGE, "python", "-c", program, check=False)
    assert "cannot open shared object file" in done.stderr


def test_no_file_is_where_the_toolkit_puts_the_driver_s():
    """It would not start in WSL2 then: mount error: file creation failed: file exists."""
    names = ("-name", "libcuda.so*", "-o", "-name", "libnvidia-*.so*")
    found = in_image("find", "/usr/lib", "/usr/lib64", "-not", "-path", "*/stubs/*", "(", *names, ")")
    assert found == ""


def test_the_image_names_itself_and_its_lock_in_every_manifest():
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics" in in_image("env").splitlines()
    training = "rl train dqn --total-steps 64 >/dev/null 2>&1; cat /workspace/models/runs/*/manifest.json"
    manifest = json.loads(in_image("bash", "-c", training))
    assert manifest["image"] == IMAGE
    assert manifest["lock_sha256"] == hashlib.sha256(LOCK.read_bytes()).hexdigest()


def test_the_image_holds_no_host_key_no_token_and_no_cache():
    assert in_image("bash", "-c", "ls /etc/ssh/ssh_host_* 2>/dev/null || true") == ""
    caches = ("/tmp", "/root", "/var/cache/apt/archives", "/var/lib/apt/lists")
    script = f"find {' '.join(caches)} -type f -size +1k -not -name '.bashrc' -not -name '.profile'"
    assert docker("run", "--rm", "--user", "0", "--entrypoint", "bash", IMAGE, "-c", script).stdout == ""


def test_no_step_of_the_build_was_given_a_secret():
    settings = json.loads(docker("inspect", IMAGE).stdout)[0]["Config"]["Env"]
    history = docker("history", "--no-trunc", "--format", "{{.CreatedBy}}", IMAGE).stdout
    named = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSWD|_KEY|CREDENTIALS?)=\S", re.IGNORECASE)
    assert not [line for line in [*settings, *history.splitlines()] if named.search(line)]


def test_the_image_is_at_most_1_2_gb_larger_than_its_wheels():
    """`python benchmarks/image.py` prints what takes the space."""
    program = (
        "import importlib.metadata as m; print(sum(f.size or 0 for d in m.distributions() for f in d.files or []))"
    )
    wheels = int(docker("run", "--rm", "--entrypoint", "/opt/venv/bin/python", IMAGE, "-c", program).stdout)
    assert int(docker("inspect", "--format", "{{.Size}}", IMAGE).stdout) <= wheels + 1.2e9


def test_make_lock_gives_the_locks_that_are_here(tmp_path):
    for name in ("Makefile", "requirements.txt", "requirements-dev.txt", "pyproject.toml"):
        shutil.copy2(REPO / name, tmp_path)  # with their times, so that make finds .venv up to date
    (tmp_path / ".venv").symlink_to(REPO / ".venv")
    shutil.copytree(REPO / "locks", tmp_path / "locks")
    run("make", "lock", cwd=tmp_path)
    for lock in (REPO / "locks").iterdir():
        assert (tmp_path / "locks" / lock.name).read_text() == lock.read_text()


def test_the_self_check_is_kept_as_json():
    program = "import json; print(json.load(open('/tmp/rl/doctor.json'))['verdict']['status'])"
    assert docker("run", "--rm", IMAGE, "python", "-c", program).stdout == "cpu\n"


def test_strict_ends_with_the_doctors_status_where_there_is_no_gpu():
    done = docker("run", "--rm", "-e", "GPU_CHECK=strict", IMAGE, "true", check=False)
    assert done.returncode == 3
    assert "No usable GPU" in done.stderr


def test_an_unknown_check_is_refused_with_the_accepted_words():
    done = docker("run", "--rm", "-e", "GPU_CHECK=loud", IMAGE, "true", check=False)
    assert done.returncode != 0
    assert "GPU_CHECK=loud: must be warn, strict or off" in done.stderr


def test_a_doctor_that_fails_itself_is_said_in_the_greeting_and_old_facts_are_not_shown():
    script = (
        "printf '#!/bin/sh\\nexit 4\\n' >/tmp/rl/rl && chmod +x /tmp/rl/rl\n"
        "PATH=/tmp/rl:$PATH /etc/rl/self_check.sh; echo status $?; cat /tmp/rl/greeting"
    )
    done = docker("run", "--rm", IMAGE, "bash", "-c", script)
    assert "status 4\nGPU check: the doctor itself failed" in done.stdout
