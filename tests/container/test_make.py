"""`make up` and its neighbours, as a person types them: what they print, and that it is true."""

import os
import re
import shutil
import signal
import socket
import subprocess
import urllib.request

import pexpect
import pytest
from workbench import REPO, docker, new_name, run, wait_until


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.fixture
def checkout(tmp_path, key):
    """A folder with what `make up` needs, and an environment with free ports and one ssh key."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in ("Makefile", "docker-compose.yml", "docker-compose.cpu.yml", "scripts"):
        (shutil.copytree if name == "scripts" else shutil.copy)(REPO / name, folder / name)
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    shutil.copy(key.with_suffix(".pub"), home / ".ssh")
    project = new_name()
    mine = {"HOME": str(home), "JUPYTER_PORT": free_port(), "SSH_PORT": free_port(), "COMPOSE_PROJECT_NAME": project}
    environment = {**os.environ, **mine}
    yield folder, environment
    run("make", "down", cwd=folder, env=environment)


def test_make_up_prints_an_address_and_an_ssh_line_that_work_and_make_down_keeps_the_files(checkout, key):
    folder, environment = checkout
    out = run("make", "up", cwd=folder, env=environment).stdout
    address = re.search(r"http://127\.0\.0\.1:\d+/\?token=\w+", out)[0]
    assert f":{environment['JUPYTER_PORT']}/" in address
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(address, timeout=30) as answer:
        assert "JupyterLab" in answer.read().decode()
    line = re.search(r"ssh rl@127\.0\.0\.1 -p \d+", out)[0].split()
    options = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes"]
    assert run(line[0], "-i", str(key), *options, *line[1:], "pwd").stdout == "/workspace/code\n"
    assert "CPU only" in out

    run("make", "down", cwd=folder, env=environment)
    assert (folder / "code/train_dqn.py").exists()
    assert (folder / "models/.state/token").exists()
    again = run("make", "up", cwd=folder, env=environment).stdout
    assert address in again


def test_a_given_token_is_not_printed(checkout):
    folder, environment = checkout
    done = run("make", "up", cwd=folder, env={**environment, "JUPYTER_TOKEN": "my-secret"})
    assert "(with the token you gave)" in done.stdout
    assert "my-secret" not in done.stdout + done.stderr


def test_a_taken_port_is_named_with_the_way_around(checkout):
    folder, environment = checkout
    with socket.create_server(("127.0.0.1", int(environment["JUPYTER_PORT"]))):
        done = run("make", "up", cwd=folder, env=environment, check=False)
    assert done.returncode
    assert (
        f"up.sh: port {environment['JUPYTER_PORT']} or {environment['SSH_PORT']} is taken; with others:" in done.stderr
    )


def test_without_a_wish_a_taken_port_gives_way_to_the_next_free_one_and_a_running_workbench_keeps_its_own(checkout):
    folder, environment = checkout
    without = {name: value for name, value in environment.items() if name not in ("JUPYTER_PORT", "SSH_PORT")}
    with socket.create_server(("127.0.0.1", 8888)):
        done = run("make", "up", cwd=folder, env=without)
        assert "Port 8888 is taken by another program: trying 8889." in done.stdout
    address = re.search(r"http://127\.0\.0\.1:(\d+)/\?token", done.stdout)
    assert int(address[1]) > 8888
    again = run("make", "up", cwd=folder, env=without).stdout
    assert address[0] in again
    assert "is taken" not in again


def test_make_shell_logs_and_doctor_reach_the_running_workbench(checkout):
    folder, environment = checkout
    run("make", "up", cwd=folder, env=environment)
    shell = pexpect.spawn("make", ["shell"], cwd=str(folder), env=environment, encoding="utf-8", timeout=30)
    shell.expect(r"rl@.*:/workspace/code\$ ")
    shell.sendline("exit")
    shell.expect(pexpect.EOF)
    logs = pexpect.spawn("make", ["logs"], cwd=str(folder), env=environment, encoding="utf-8", timeout=30)
    logs.expect("Jupyter Lab   port 8888")
    logs.sendintr()
    logs.expect(pexpect.EOF)
    doctor = pexpect.spawn("make", ["doctor"], cwd=str(folder), env=environment, encoding="utf-8", timeout=60)
    doctor.expect("CPU only")
    doctor.expect(pexpect.EOF)


def test_opening_to_the_network_warns(checkout):
    folder, environment = checkout
    done = run("make", "up", cwd=folder, env={**environment, "BIND": "0.0.0.0"})
    assert "Warning: BIND=0.0.0.0 opens Jupyter and SSH to the network" in done.stderr


def test_with_a_gpu_runtime_compose_asks_for_all_gpus_and_without_one_for_none():
    with_gpu = docker("compose", "-f", "docker-compose.yml", "config", cwd=REPO).stdout
    without = docker("compose", "-f", "docker-compose.yml", "-f", "docker-compose.cpu.yml", "config", cwd=REPO).stdout
    assert "driver: nvidia" in with_gpu
    assert "driver: nvidia" not in without


def test_a_base_image_that_cannot_be_pulled_is_named_with_the_remedy():
    unreachable = {**os.environ, "BASE_IMAGE": "127.0.0.1:1/none:1"}
    done = run("make", "image", cwd=REPO, env=unreachable, check=False)
    assert done.returncode
    assert "image.sh: the base image 127.0.0.1:1/none:1 cannot be pulled from here" in done.stderr
    assert "BASE_IMAGE=NAME make image" in done.stderr


def test_without_an_engine_make_up_says_so_and_starts_lab_from_the_venv():
    ports = {"JUPYTER_PORT": free_port(), "TENSORBOARD_PORT": free_port()}
    environment = {**os.environ, **ports, "DOCKER_HOST": "unix:///nowhere.sock"}
    with subprocess.Popen(
        ["make", "up"],
        **{"cwd": REPO, "env": environment, "text": True, "start_new_session": True},
        **{"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT},
    ) as process:
        try:
            said = ""
            while "TensorBoard   http" not in said:
                line = process.stdout.readline()
                assert line, said
                said += line
            assert "No container engine answers here" in said
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            address = re.search(r"http://127\.0\.0\.1:\d+/lab\S+token=\w+", said)[0]

            def answers(url):
                try:
                    with opener.open(url, timeout=10) as answer:
                        return answer.status == 200
                except OSError:
                    return False

            api = address.replace("/lab/tree/notebooks/00_start_here.ipynb", "/api/status")
            wait_until(lambda: answers(api), 60, "Jupyter")
            wait_until(lambda: answers(f"http://127.0.0.1:{ports['TENSORBOARD_PORT']}"), 60, "TensorBoard")
        finally:
            os.killpg(process.pid, signal.SIGTERM)
