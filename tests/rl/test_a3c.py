"""Asynchronous workers: no gradient later than the bound, and no process left behind (pitfalls 4.3: 62, 63)."""

import json
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from gymnasium import spaces
from rl_process import RlProcess, wait_until

from rl import a2c, a3c, checkpoint
from rl.a3c import A3C, AWAY, Config, Shared
from rl.a3c_workers import Workers
from rl.errors import RunError, UsageError
from rl.run_config import RunConfig
from rl.train import build, load_agent, resume, train
from rl.transition import Transition

OBSERVATIONS, ACTIONS = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)
SMALL = Config(num_steps=2, hidden_sizes=(8,), num_workers=2, max_lag=4)


def rollout(agent: a2c.A2C, seed: int = 1) -> None:
    """Let `agent` see as many steps as its next update needs."""
    generator = torch.Generator().manual_seed(seed)
    n, nothing = agent.num_envs, torch.zeros(agent.num_envs, dtype=torch.bool)
    for _ in range(agent.config.num_steps):
        obs, next_obs = torch.rand(2, n, 2, generator=generator)
        agent.observe(Transition(obs, agent.act(obs), torch.rand(n, generator=generator), next_obs, nothing, nothing))


def test_the_shared_update_is_rmsprop_worked_out_by_hand():
    shared = Shared([torch.tensor([1.0, 2.0])], SMALL)
    own = torch.zeros(2)
    optimizer = a3c.SharedRMSprop([own], shared, rank=0, learning_rate=0.5)
    optimizer.copy()
    assert own.tolist() == [1.0, 2.0]
    for expected_square, expected in (([0.04, 0.0], [1 - 0.5 * 2 / 0.20001, 2.0]), ([0.0796, 0.0], None)):
        own.grad = torch.tensor([2.0, 0.0])
        before = own[0].item()
        optimizer.step()
        assert shared.squares[0].tolist() == pytest.approx(expected_square, rel=1e-4)
        expected = expected or [before - 0.5 * 2 / (0.0796**0.5 + 1e-5), 2.0]
        assert shared.parameters[0].tolist() == pytest.approx(expected, rel=1e-4)
        assert torch.equal(own, shared.parameters[0])


def test_one_worker_alone_is_a2c():
    torch.manual_seed(0)
    one = a2c.A2C(a2c.Config(num_steps=2, hidden_sizes=(8,)), OBSERVATIONS, ACTIONS, num_envs=3)
    torch.manual_seed(0)
    other = A3C(Config(num_steps=2, hidden_sizes=(8,), num_workers=1), OBSERVATIONS, ACTIONS, num_envs=3)
    for i in range(5):
        rollout(one, i)
        rollout(other, i)
        one.learn()
        metrics = other.learn()
    torch.testing.assert_close(one.network.state_dict(), other.network.state_dict())
    assert (metrics["lag"], metrics["updates"], other.updates) == (0, 5, 5)


def test_a_worker_acts_by_its_copy_until_its_own_update_and_its_gradients_lag_is_counted():
    first = A3C(SMALL, OBSERVATIONS, ACTIONS, num_envs=3)
    second = A3C(SMALL, OBSERVATIONS, ACTIONS, num_envs=3, seed=1, shared=first.shared, rank=1)
    rollout(first)
    rollout(second)
    copy = [parameter.clone() for parameter in second.network.parameters()]
    torch.testing.assert_close(copy, list(first.network.parameters()), rtol=0, atol=0)
    for i in range(2):
        first.learn()
        rollout(first, i)
    torch.testing.assert_close(copy, list(second.network.parameters()), rtol=0, atol=0)
    assert second.learn()["lag"] == 2.0
    torch.testing.assert_close(list(second.network.parameters()), first.shared.parameters, rtol=0, atol=0)
    assert first.step == 18 + 6  # three rollouts of the first, one of the second, of 2 steps in 3 environments each
    assert first.shared.steps.tolist() == [18, 6]


@pytest.mark.parametrize("num_workers", [1, 2, 3, 5, 8])
def test_no_gradient_is_ever_later_than_the_bound_and_some_worker_can_always_go_on(num_workers):
    """Workers come, update and leave in random order; each gradient's lag is counted by hand."""
    for seed in range(20):
        rng = random.Random(seed)
        config = Config(num_workers=num_workers, max_lag=rng.randrange(num_workers - 1, 3 * num_workers))
        shared, lags = Shared([], config), {}
        for _ in range(200):
            rank = rng.randrange(num_workers)
            if rank not in lags:  # begins
                lags[rank] = 0
                shared.copied_at[rank] = shared.version
            elif rng.random() < 0.05:  # leaves
                del lags[rank]
                shared.copied_at[rank] = AWAY
            elif shared.may_update(rank):
                assert lags[rank] <= config.max_lag
                lags = {other: lag + 1 for other, lag in lags.items()} | {rank: 0}
                shared.version += 1
                shared.copied_at[rank] = shared.version
            assert not lags or any(shared.may_update(other) for other in lags)


def test_a_bound_that_the_workers_must_break_is_refused():
    with pytest.raises(UsageError, match=r"--max-lag 2: must be at least --num-workers - 1 = 3"):
        Config(num_workers=4, max_lag=2)


def test_a_device_that_cannot_be_shared_is_refused():
    with pytest.raises(UsageError, match="give --device cpu"):
        A3C(SMALL, OBSERVATIONS, ACTIONS, 1, "cuda")


def run_config(path: Path, **changes) -> RunConfig:
    return RunConfig(**({"run_dir": path, "num_envs": 2, "total_steps": 6000, "eval_episodes": 2} | changes))


def test_every_worker_learns_and_no_gradient_is_later_than_the_bound(tmp_path):
    result = train(run_config(tmp_path / "run"), Config(num_workers=3, max_lag=2), progress=False)
    shared = result.agent.shared
    assert (shared.steps > 0).all()
    assert result.counters.step == result.agent.step >= 6000
    assert 0 < shared.largest_lag <= 2
    lengths = result.counters.episodes  # CartPole pays 1 a step: episodes of all workers add up to about all steps
    assert lengths * sum(result.counters.recent_returns) / len(result.counters.recent_returns) > 3000
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["state"] == "finished"


def test_a_resumed_run_goes_on_with_the_shared_parameters_and_statistics(tmp_path):
    path = tmp_path / "run"
    train(run_config(path), Config(num_workers=2), progress=False)
    saved = checkpoint.load(path / "checkpoints" / "latest.pt")["agent"]
    _, agent, _ = load_agent(path, "cpu")
    agent.load_state_dict(checkpoint.without_buffer(saved))
    torch.testing.assert_close(agent.shared.parameters, list(saved["network"].values()), rtol=0, atol=0)
    torch.testing.assert_close(agent.shared.squares, saved["squares"], rtol=0, atol=0)
    resumed = resume(path, {"total_steps": 9000}, progress=False)
    assert resumed.counters.step >= 9000
    assert resumed.agent.updates > saved["updates"]
    assert (resumed.agent.shared.steps > 0).all()


def test_a_killed_worker_ends_the_run_and_leaves_no_process(tmp_path):
    agent, workers = build(run_config(tmp_path), "a3c", Config(num_workers=3), "cpu")
    agent.observe(workers.step(agent.act(workers.obs)))
    processes = list(workers.processes)
    os.kill(processes[0].pid, signal.SIGKILL)
    processes[0].join()
    with pytest.raises(RunError, match=r"worker 1 of a3c ended early \(exit code -9\)"):
        workers.step(agent.act(workers.obs))
    workers.close()
    assert all(not process.is_alive() for process in processes)


def test_a_run_does_not_wait_for_a_lock_that_a_killed_worker_held(tmp_path):
    agent, workers = build(run_config(tmp_path), "a3c", Config(num_workers=2), "cpu")
    workers.step(agent.act(workers.obs))
    holder = threading.Thread(target=agent.shared.turn.acquire)  # takes the lock and is gone, as the worker will be
    holder.start()
    holder.join()
    os.kill(workers.processes[0].pid, signal.SIGKILL)
    begun = time.monotonic()
    with pytest.raises(RunError, match="worker 1 of a3c ended early"):
        agent.optimizer.copy()
    assert time.monotonic() - begun < 10
    workers.close()


def test_a_run_does_not_wait_for_the_update_of_a_killed_worker(tmp_path):
    agent, workers = build(run_config(tmp_path), "a3c", Config(num_workers=2, max_lag=1), "cpu")
    workers.step(agent.act(workers.obs))
    while not agent.shared.steps[1]:  # until the other has begun
        time.sleep(0.01)
    os.kill(workers.processes[0].pid, signal.SIGKILL)
    begun = time.monotonic()
    with pytest.raises(RunError, match="worker 1 of a3c ended early"):
        go_on(agent, workers, seconds=60)
    assert time.monotonic() - begun < 10
    workers.close()


def test_a_worker_killed_while_it_waits_for_others_leaves_nobody_waiting(tmp_path):
    agent, workers = build(run_config(tmp_path), "a3c", Config(num_workers=2, max_lag=1), "cpu")
    workers.step(agent.act(workers.obs))
    version, since = -1, time.monotonic()
    while time.monotonic() - since < 1:  # until the other would come too early, and waits
        if int(agent.shared.version) != version or not agent.shared.steps[1]:
            version, since = int(agent.shared.version), time.monotonic()
        time.sleep(0.01)
    os.kill(workers.processes[0].pid, signal.SIGKILL)
    begun = time.monotonic()
    with pytest.raises(RunError, match="worker 1 of a3c ended early"):
        go_on(agent, workers, seconds=60)
    assert time.monotonic() - begun < 10
    workers.close()


def go_on(agent: A3C, workers: Workers, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        agent.observe(workers.own.step(agent.act(workers.own.obs)))  # without the look that Workers.step takes
        agent.learn()


def start(path: Path) -> RlProcess:
    flags = ["--num-workers", "3", "--total-steps", "10000000", "--log-interval", "100"]
    process = RlProcess("train", "a3c", "--run-dir", path, *flags, new_session=True)
    wait_until(lambda: (path / "metrics.csv").exists() and len(of_session(process.pid)) >= 3, process)
    return process


def of_session(session: int) -> list[str]:
    """Command lines of the processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if int((path / "stat").read_text().rsplit(")", 1)[1].split()[3]) == session:
                found.append((path / "cmdline").read_text())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


@pytest.mark.parametrize("to_all", [True, False])
def test_a_stop_signal_saves_and_ends_all_workers(tmp_path, to_all):
    process = start(tmp_path / "run")
    (os.killpg if to_all else os.kill)(process.pid, signal.SIGTERM)
    assert process.wait() == 143
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], status["reason"]) == ("interrupted", "SIGTERM")
    assert checkpoint.load(tmp_path / "run" / "checkpoints" / "latest.pt")["counters"]["step"] == status["step"] > 0
    wait_until(lambda: not of_session(process.pid), seconds=15)


def test_workers_end_when_the_first_process_is_killed(tmp_path):
    process = start(tmp_path / "run")
    process.kill()
    process.wait()
    wait_until(lambda: not of_session(process.pid), seconds=15)
