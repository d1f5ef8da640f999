"""`--backend auto`: a measurement of the environment at hand chooses between one process and many."""

import json

import gymnasium
import numpy as np
import pytest
import torch
from rl_process import rl
from scripted_envs import Scripted

from rl import dqn, envs
from rl.backend import available_cores, choose_backend, decide
from rl.checkpoint import random_state
from rl.errors import UsageError
from rl.run_config import RunConfig
from rl.train import resume, train

SEVERAL = "async" if available_cores() > 1 else "sync"  # what pays here where a step is slow
CONFIG = dqn.Config(buffer_size=100, learning_starts=20, hidden_sizes=(8,))
RUN = {"num_envs": 4, "total_steps": 80, "eval_episodes": 2, "checkpoint_interval": 40}


@pytest.mark.parametrize(
    ("milliseconds", "num_envs", "cores", "backend"),
    [
        (0.01, 8, 2, "sync"),  # 0.08 ms in turn, 0.84 in processes
        (0.5, 8, 2, "sync"),  # 4 ms, 2.8
        (1, 8, 2, "async"),  # 8 ms, 4.8
        (1, 2, 2, "async"),  # 2 ms, 1.2
        (1, 3, 2, "sync"),  # 3 ms, 2.3: one core steps two
        (20, 3, 2, "sync"),  # 60 ms, 40.3: not 1.5 times faster either
        (20, 4, 2, "async"),
        (20, 64, 64, "async"),
        (20, 1, 64, "sync"),
        (20, 8, 1, "sync"),
    ],
)
def test_processes_are_chosen_where_they_should_be_clearly_faster(milliseconds, num_envs, cores, backend):
    choice = decide(milliseconds / 1000, num_envs, cores)
    assert choice.backend == backend
    assert f"one step took {milliseconds:.3g} ms" in choice.reason


@pytest.mark.parametrize(
    ("asked", "env_id", "num_envs", "backend", "reason"),
    [
        ("sync", "no-such-environment", 8, "sync", "asked for"),
        ("auto", "ALE/Pong-v5", 8, "ale", "made for ALE/Pong-v5"),
        ("auto", "CartPole-v1", 8, "native", "made for CartPole-v1"),
        ("auto", "scripted_envs:Slow-v0", 1, "sync", "nothing to share"),
        ("auto", "scripted_envs:Slow-v0", 4, SEVERAL, "one step took" if SEVERAL == "async" else "1 cores"),
        ("auto", "scripted_envs:Scripted-v0", 4, "sync", "one step took" if SEVERAL == "async" else "1 cores"),
    ],
)
def test_auto_measures_where_there_is_a_choice(asked, env_id, num_envs, backend, reason):
    choice = choose_backend(asked, env_id, num_envs, seed=0)
    assert choice.backend == backend
    assert reason in choice.reason


@pytest.mark.parametrize(
    ("quota", "cores"), [("200000 100000", 2), ("150000 100000", 1), ("50000 100000", 1), ("max 100000", None)]
)
def test_the_quota_of_a_container_bounds_its_cores(tmp_path, monkeypatch, quota, cores):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(16)))
    assert available_cores(tmp_path) == 16  # no container
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text(quota + "\n")
    assert available_cores(tmp_path) == (cores or 16)


def saved(path, name: str) -> dict:
    return json.loads((path / name).read_text())


def test_the_choice_and_its_reason_are_kept_with_the_run_and_a_resumed_run_keeps_to_it(tmp_path):
    path = tmp_path / "run"
    train(RunConfig("scripted_envs:Slow-v0", run_dir=path, **RUN), CONFIG, progress=False)
    assert saved(path, "config.json")["run"]["backend"] == SEVERAL
    reason = "one step took" if SEVERAL == "async" else "4 environments on 1 cores"
    assert saved(path, "manifest.json")["backend"].startswith(f"{SEVERAL}: {reason}")
    resume(path, {"total_steps": 120}, progress=False)
    assert saved(path, "config.json")["run"]["backend"] == SEVERAL
    assert saved(path, "status.json")["step"] == 120


def test_a3c_which_has_processes_of_its_own_steps_in_turn(tmp_path):
    command = ["train", "a3c", "--env-id", "scripted_envs:Slow-v0", "--total-steps", "100", "--eval-episodes", "0"]
    done = rl(*command, "--run-dir", tmp_path / "run", "--num-workers", "2", "--num-envs", "2")
    assert done.returncode == 0, done.stderr
    assert saved(tmp_path / "run", "config.json")["run"]["backend"] == "sync"
    refused = rl("train", "a3c", "--backend", "async", "--run-dir", tmp_path / "refused")
    assert refused.returncode == 2
    assert "a3c's workers are processes already" in refused.stderr


class Probed(Scripted):
    made = closed = 0

    def __init__(self):
        super().__init__()
        Probed.made += 1

    def reset(self, *, seed=None, options=None):
        np.random.random()  # of the generator that the run seeds
        return super().reset(seed=seed)

    def close(self):
        Probed.closed += 1


class Breaking(Probed):
    def step(self, action):
        raise ValueError("broken")


class Blinded(Probed):
    def _obs(self):
        return super()._obs() + (np.nan if self.count == 2 else 0)


for kind in (Probed, Breaking, Blinded):
    gymnasium.register(f"{kind.__name__}-v0", kind, disable_env_checker=True)


@pytest.mark.skipif(SEVERAL == "sync", reason="there is nothing to measure on one core")
def test_the_probe_has_one_environment_of_its_own_which_it_closes():
    Probed.made = Probed.closed = 0
    choose_backend("auto", "Probed-v0", 4, seed=0)
    assert (Probed.made, Probed.closed) == (1, 1)


@pytest.mark.skipif(SEVERAL == "sync", reason="there is nothing to measure on one core")
def test_the_probe_leaves_the_run_as_it_would_be_without(tmp_path):
    states = []
    for backend in ("auto", "sync"):
        run = RunConfig("Probed-v0", run_dir=tmp_path / backend, backend=backend, **RUN)
        train(run, CONFIG, progress=False)
        states.append([random_state()["numpy"], (tmp_path / backend / "checkpoints/latest.pt").read_bytes()])
    torch.testing.assert_close(states[0][0][1], states[1][0][1], rtol=0, atol=0)
    assert states[0][1] == states[1][1]


@pytest.mark.parametrize("backend", ["auto", "sync"])
@pytest.mark.parametrize(
    ("env_id", "error", "message"),
    [
        ("Breaking-v0", ValueError, "broken"),
        ("Blinded-v0", RuntimeError, r"environment \d gave observation\[0\] = nan after action"),
        ("CartPoll-v1", UsageError, "CartPoll"),
    ],
)
def test_an_environment_that_breaks_gives_the_same_error_in_the_probe(tmp_path, backend, env_id, error, message):
    Probed.made = Probed.closed = 0
    with pytest.raises(error, match=message):
        train(RunConfig(env_id, run_dir=tmp_path / "run", backend=backend, **RUN), CONFIG, progress=False)
    assert Probed.made == Probed.closed


def test_with_an_older_gymnasium_async_is_refused_with_the_way_out_and_auto_takes_sync(monkeypatch):
    monkeypatch.setattr("rl.envs.PROCESSES_WORK", False)
    monkeypatch.setattr("rl.envs.workers.PROCESSES_WORK", False)
    assert choose_backend("auto", "MountainCar-v0", 1, 0).backend == "native"
    assert choose_backend("auto", "Blackjack-v1", 2, 0).backend == "sync"
    with pytest.raises(UsageError, match=r"--backend async needs gymnasium 1\.4 or newer.*--backend sync"):
        envs.make("CartPole-v1", 2, 0, backend="async")
