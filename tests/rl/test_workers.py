"""Environments in processes of their own, when something goes wrong: pitfalls 60, 61 and 63."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from scripted_envs import Scripted

from rl import envs
from rl.errors import RunError

NONE = torch.tensor([0, 0, 0])


@pytest.fixture
def vector():
    made = envs.make("scripted_envs:Troubled-v0", 3, seed=0, backend="async")
    yield made
    made.close()


def runs(pid: int) -> bool:
    """Whether the process exists and is not merely waiting to be reaped."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_ended(pids: list[int]) -> None:
    deadline = time.monotonic() + 10
    while any(map(runs, pids)):
        assert time.monotonic() < deadline, "workers are still there"
        time.sleep(0.01)


@pytest.mark.parametrize("at_rest", [True, False], ids=["between steps", "in a step"])
def test_a_killed_worker_is_an_error_that_names_it_within_seconds_and_closing_leaves_none_pitfall_63(vector, at_rest):
    pids = vector.envs.get_attr("pid")
    started = time.monotonic()
    if at_rest:
        os.kill(pids[1], signal.SIGKILL)
    else:
        os.kill(pids[1], signal.SIGSTOP)  # so that the step waits for it
        threading.Timer(0.3, os.kill, (pids[1], signal.SIGKILL)).start()
    with pytest.raises(RunError, match=r"environment 1: its worker process ended with exit code -9 \(SIGKILL"):
        vector.step(NONE)
    vector.close()
    assert time.monotonic() - started < 5
    wait_until_ended(pids)


@pytest.mark.parametrize(("action", "name"), [(1, "ValueError: broken"), (2, "LocalError")])
def test_an_environment_that_raises_is_an_error_that_names_it_and_closing_leaves_none(vector, action, name):
    pids = vector.envs.get_attr("pid")
    with pytest.raises(RunError, match=f"environment 2 raised {name}"):
        vector.step(torch.tensor([0, 0, action]))
    vector.close()
    wait_until_ended(pids)


def test_an_environment_that_cannot_be_made_in_its_worker_is_an_error(tmp_path):
    (tmp_path / "made").touch()

    class Once(Scripted):
        def __init__(self):
            super().__init__()
            os.unlink(tmp_path / "made")  # by the first one, which is made in this process to read its spaces

    with pytest.raises(RunError, match="environment 0: its worker process ended with exit code 1"):
        envs.vectorize([Once], processes=True)


def test_workers_and_their_fork_server_outlive_the_signals_that_stop_a_container(vector):
    pids = vector.envs.get_attr("pid")
    servers = set(vector.envs.get_attr("ppid"))
    assert len(servers) == 1
    for pid in [*pids, *servers]:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, number)
    vector.step(NONE)
    assert vector.state_dict()["envs"]
    vector.close()
    wait_until_ended(pids)


def test_workers_are_not_forked_from_this_process_and_use_one_thread_each_pitfalls_60_61(vector):
    assert os.getpid() not in vector.envs.get_attr("ppid")
    assert vector.envs.get_attr("threads") == ((1, "1"),) * 3
    assert "OMP_NUM_THREADS" not in os.environ


SCRIPT = """
import sys, torch
sys.path.insert(0, "tests/rl")
from rl import envs
vector = envs.make("scripted_envs:Troubled-v0", 2, seed=0, backend="async")
vector.step(torch.tensor([0, 0]))
print(*vector.envs.get_attr("pid"), flush=True)
"""


def test_workers_end_when_their_parent_is_killed():
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT + "sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(runs, pids))
        parent.kill()
        wait_until_ended(pids)
        assert "Traceback" not in parent.stderr.read()


def test_a_script_needs_no_main_guard_and_no_close_and_ends_without_a_word(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-W", "error", script]
    env = os.environ | {"PYTHONPATH": os.getcwd()}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == 0
    assert done.stderr == ""
    wait_until_ended([int(pid) for pid in done.stdout.split()])
