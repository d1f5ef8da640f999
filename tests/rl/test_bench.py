"""`rl bench`: what a run costs, and what mixed precision gains."""

import itertools
import json
import multiprocessing.util
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv
from rl_process import rl

from rl import a2c, a3c, bench_amp, dqn, ppo, sac
from rl.bench import DEFAULTS, PHASES, Measurement, Stopwatch, bench, table
from rl.errors import RunError, UsageError
from rl.run_config import RunConfig
from rl.train import train

SMALL_PPO = ppo.Config(num_steps=16, num_epochs=2, hidden_sizes=(8,))


def run_config(**settings) -> RunConfig:
    return RunConfig(**{**vars(DEFAULTS), "total_steps": 2048, **settings})


@pytest.fixture(autouse=True)
def nothing_left_on_disk(tmp_path, monkeypatch):
    """No test of this file, also none whose run fails, leaves anything where it was started or a temporary run."""
    here, temporary = tmp_path / "here", tmp_path / "temporary"
    here.mkdir()
    temporary.mkdir()
    multiprocessing.util.get_temp_dir()  # chosen once, and its sockets' paths must stay short
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.chdir(here)
    yield
    assert [*here.iterdir(), *temporary.glob("rl-bench-*")] == []


def test_phases_that_interrupt_one_another_add_up_to_the_time_that_passed():
    now = 100.0

    def pass_seconds(seconds: float) -> None:
        nonlocal now
        now += seconds

    class Envs:
        def step(self) -> str:
            pass_seconds(1)
            self.wait()
            pass_seconds(2)
            return "transition"

        def wait(self) -> None:
            pass_seconds(4)

    environments, stopwatch = Envs(), Stopwatch("cpu", lambda: now)
    stopwatch.time(environments, step="environment", wait="waiting")
    environments.step()
    stopwatch.start()  # what came before is not counted
    pass_seconds(8)
    assert environments.step() == "transition"
    passed, seconds = stopwatch.read()
    assert passed == 15
    assert {name: spent for name, spent in seconds.items() if spent} == {"environment": 3, "waiting": 4, "rest": 8}
    environments.step()
    assert stopwatch.read() == (22, {**seconds, "environment": 6, "waiting": 8})


def test_a_phase_that_raises_ends_all_the_same():
    now = iter([0, 1, 3, 7])

    class Agent:
        def learn(self) -> None:
            raise ValueError("no")

    agent, stopwatch = Agent(), Stopwatch("cpu", lambda: next(now))
    stopwatch.time(agent, learn="updating")
    with pytest.raises(ValueError, match="no"):
        agent.learn()
    passed, seconds = stopwatch.read()
    assert (passed, seconds["updating"], seconds["rest"]) == (7, 2, 5)


@pytest.mark.parametrize(
    ("algorithm", "config", "settings", "counts"),
    [
        # 8 environments: a fifth of 2,048 is passed at 416 steps. A rollout of 128 makes 2 epochs of 4 updates: 16 of
        # them in all, 3 in the warm-up
        ("ppo", SMALL_PPO, {}, (416, 2048 - 416, 8 * (16 - 3))),
        ("ppo", SMALL_PPO, {"normalize_obs": True, "normalize_rewards": True}, (416, 2048 - 416, 8 * (16 - 3))),
        ("a2c", a2c.Config(num_steps=5), {}, (416, 2048 - 416, 2048 // 40 - 416 // 40)),
        ("a3c", a3c.Config(num_steps=5, num_workers=1), {}, (416, 2048 - 416, 2048 // 40 - 416 // 40)),
        # an update every 4 steps from step 1,000 on
        ("dqn", dqn.Config(hidden_sizes=(8,)), {}, (416, 2048 - 416, (2048 - 1000) // 4)),
        # 1 environment: one of 3 networks each step from step 10 on
        (
            "sac",
            sac.Config(hidden_sizes=(8,), buffer_size=100, learning_starts=10),
            {"env_id": "Pendulum-v1", "num_envs": 1, "total_steps": 100},
            (20, 80, 80),
        ),
    ],
    ids=["ppo", "normalized", "a2c", "a3c", "dqn", "sac"],
)
def test_what_is_counted_is_the_steps_and_updates_after_the_first_fifth(algorithm, config, settings, counts):
    report = bench(run_config(**settings), algorithm, config)
    assert (report["warm_up_steps"], report["steps"], report["updates"]) == counts


def test_the_time_of_the_warm_up_is_left_out(tmp_path):
    calls = itertools.count()  # a clock that every look at it sets forward
    measurement = Measurement(lambda: next(calls))
    run = run_config(run_dir=tmp_path / "run", num_envs=1, total_steps=1000)
    train(run, SMALL_PPO, on_start=measurement.attach, progress=False)
    assert measurement.figures["seconds"] == pytest.approx(0.8 * next(calls), rel=0.01)


def test_the_shares_of_the_phases_add_up_to_the_whole():
    report = bench(run_config(), "ppo", SMALL_PPO)
    rows = report["phases"]
    assert tuple(rows) == PHASES
    assert sum(row["share"] for row in rows.values()) == pytest.approx(1)
    assert sum(row["seconds"] for row in rows.values()) == pytest.approx(report["seconds"])
    assert all(row["seconds"] > 0 for name, row in rows.items() if name != "waiting")
    microseconds = sum(row["microseconds_per_step"] for row in rows.values())
    assert microseconds == pytest.approx(1e6 / report["steps_per_second"])
    assert report["updates_per_second"] == pytest.approx(report["updates"] / report["seconds"])


@pytest.mark.parametrize(
    ("algorithm", "config", "backend", "named", "waits"),
    [
        ("ppo", SMALL_PPO, "auto", "native", False),
        ("ppo", SMALL_PPO, "sync", "sync", False),
        ("ppo", SMALL_PPO, "async", "async", True),
        ("a3c", a3c.Config(num_steps=5, num_workers=1), "auto", "native", True),
    ],
    ids=["native", "sync", "async", "a3c"],
)
def test_waiting_is_for_other_processes_and_where_there_are_none_it_is_0(algorithm, config, backend, named, waits):
    report = bench(run_config(num_envs=2, total_steps=200, backend=backend), algorithm, config)
    assert report["backend"] == named
    assert (report["phases"]["waiting"]["seconds"] > 0) == waits


def test_games_of_the_atari_backend_are_named_so():
    pytest.importorskip("ale_py", reason="ale-py is not installed")
    settings = {"env_id": "ALE/Pong-v5", "num_envs": 1, "total_steps": 20}
    report = bench(run_config(**settings), "ppo", ppo.Config(num_steps=20, num_epochs=1, num_minibatches=1))
    assert (report["backend"], report["updates"]) == ("ale", 1)


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        (SMALL_PPO, {"normalize_obs": True}),
        (a2c.Config(), {}),
        (a3c.Config(num_workers=1), {}),
        (dqn.Config(hidden_sizes=(8,)), {}),
        (
            sac.Config(hidden_sizes=(8,), buffer_size=100, learning_starts=10),
            {"env_id": "Pendulum-v1", "num_envs": 1, "total_steps": 100},
        ),
    ],
    ids=["ppo", "a2c", "a3c", "dqn", "sac"],
)
def test_a_measured_run_trains_what_the_same_run_trains_unmeasured(tmp_path, config, settings):
    states = []
    for name, on_start in (("measured", Measurement().attach), ("unmeasured", None)):
        run = run_config(run_dir=tmp_path / name, **settings)
        result = train(run, config, on_start=on_start, progress=False)
        states.append((result.agent.state_dict(), result.counters.state_dict()))
    torch.testing.assert_close(*states, rtol=0, atol=0, equal_nan=True)


def test_nothing_is_evaluated_and_only_both_ends_are_saved(tmp_path):
    train(run_config(run_dir=tmp_path / "run"), SMALL_PPO, progress=False)
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["latest.pt", "step-0.pt", "step-2048.pt"]
    assert "eval_return" not in (tmp_path / "run" / "metrics.csv").read_text()


def test_a_run_that_fails_says_why_and_names_no_folder_that_is_gone():
    with pytest.raises(RunError, match=r"^the measured run failed: .* is not finite$"):
        bench(run_config(), "ppo", ppo.Config(num_steps=16, learning_rate=1e38))


class Interrupting(CartPoleEnv):
    """Its 100th step is interrupted, and looks where the run is kept."""

    folders: ClassVar[list[Path]] = []

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def step(self, action):
        self.count += 1
        if self.count == 100:
            self.folders += Path(tempfile.gettempdir()).glob("rl-bench-*/run/config.json")
            os.kill(os.getpid(), signal.SIGTERM)
        return super().step(action)


def test_an_interrupted_run_ends_with_the_code_of_its_signal():
    gymnasium.register("Interrupting-v0", Interrupting)
    try:
        with pytest.raises(SystemExit) as ended:
            bench(run_config(env_id="Interrupting-v0", num_envs=1), "ppo", SMALL_PPO)
        assert ended.value.code == 143
        assert len(Interrupting.folders) == 1  # and the fixture sees to it that it is gone now
    finally:
        del gymnasium.registry["Interrupting-v0"]


def test_a_run_without_steps_after_the_warm_up_is_refused():
    with pytest.raises(UsageError, match=r"--total-steps 8: no step is left to measure .* give more"):
        bench(run_config(total_steps=8), "ppo", SMALL_PPO)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "usage: rl bench {dqn|ppo|a2c|a3c|sac|amp}"),
        (["chess"], "usage: rl bench {dqn|ppo|a2c|a3c|sac|amp} [flags], not 'chess'"),
        (["ppo", "--run-dir", "run"], "--run-dir: rl bench makes all --total-steps"),
        (["ppo", "--stop-at-return", "195"], "--stop-at-return: "),
        (["ppo", "--eval-episodes", "5"], "--eval-episodes: "),
        (["dqn", "--env-id", "CartPoll-v1"], "CartPoll"),
        (["dqn", "--batch-size", "0"], "--batch-size 0: must be at least 1"),
        (["dqn", "--num-steps", "8"], "--num-steps"),
        (["amp", "--device", "tpu"], "--device tpu: choose auto, cpu, cuda or cuda:i"),
        (["amp", "--updates", "0"], "--updates 0: must be at least 1"),
        (["amp", "--threads", "0"], "--threads 0: must be at least 1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_mistake_gets_one_clear_error(arguments, message):
    done = rl("bench", *arguments, cwd=Path.cwd())
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_prints_one_json_object():
    start = time.monotonic()
    done = rl("bench", "a2c", "--num-envs", "16", "--total-steps", "1600", "--threads", "2", "--json", cwd=Path.cwd())
    lasted = time.monotonic() - start
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["algorithm"] == "a2c"
    settings = ("env_id", "num_envs", "device", "backend", "threads", "precision")
    assert [report[name] for name in settings] == ["CartPole-v1", 16, "cpu", "native", 2, "fp32"]
    assert report["steps"] == 1280
    assert 0 < report["startup_seconds"] < lasted
    assert 2**26 < report["peak_memory_bytes"] < 2**36  # bytes, not KiB: Python with torch takes some 300 MiB


def test_the_table_has_a_line_for_each_phase_and_says_where_no_update_was_measured():
    done = rl("bench", "ppo", "--total-steps", "800", cwd=Path.cwd())
    lines = done.stdout.splitlines()
    assert lines[0] == "ppo on CartPole-v1 x 8: device cpu, backend native, threads 1, accelerate eager, precision fp32"
    assert lines[1].startswith("640 steps and 0 updates in ")
    assert [line[:20].strip() for line in lines[3:12]] == ["phase", *PHASES, "all"]
    assert lines[-1] == "no update fell into the measured steps: give more --total-steps"


def test_the_table_says_whose_phases_those_of_a3c_are():
    report = bench(run_config(total_steps=200), "a3c", a3c.Config(num_workers=1))
    assert "phases and memory those of the first process" in table(report)


def test_the_command_is_listed_and_explains_itself():
    assert "rl bench ppo" in rl("--help").stdout
    assert "rl bench {dqn|ppo|a2c|a3c|sac|amp}" in rl("bench", "--help").stdout
    for what in ("ppo", "amp"):
        done = rl("bench", what, "--help")
        assert done.returncode == 0
        assert f"usage: rl bench {what}" in done.stdout
        assert "--json" in done.stdout


SMALL_NETWORKS = (
    bench_amp.Case("CNN", spaces.Box(0, 255, (1, 36, 36), np.uint8), spaces.Discrete(3), (), 4),
    bench_amp.Case("MLP", spaces.Box(-1, 1, (5,)), spaces.Box(-1, 1, (2,)), (16,), 8),
)


def test_the_updates_of_each_precision_are_made_in_it():
    seen = []

    def record(module, inputs, output):
        if isinstance(module, torch.nn.Linear) and module.out_features == 1:  # the value network's last
            seen.append((output.shape[0], output.dtype))

    hook = torch.nn.modules.module.register_module_forward_hook(record)
    try:
        bench_amp.bench("cpu", 1, 2, SMALL_NETWORKS)
    finally:
        hook.remove()
    rounds = 2 * (1 + bench_amp.ROUNDS)
    assert seen == [
        (size, dtype) for size in (4, 8) for dtype in (torch.float32, torch.bfloat16) for _ in range(rounds)
    ]


def test_ratios_are_those_to_fp32_and_a_cpu_has_none_of_memory():
    report = bench_amp.bench("cpu", 1, None, SMALL_NETWORKS)
    assert report == json.loads(json.dumps(report))
    assert (report["device"], report["gpu"], report["threads"], report["updates_per_round"]) == ("cpu", None, 1, 1)
    assert [network["network"] for network in report["networks"]] == ["CNN", "MLP"]
    for network in report["networks"]:
        full, lower = network["precisions"]["fp32"], network["precisions"]["bf16"]
        assert full["speed_ratio"] == 1
        assert lower["speed_ratio"] == lower["updates_per_second"] / full["updates_per_second"]
        assert (full["peak_memory_bytes"], full["memory_ratio"], lower["memory_ratio"]) == (None, None, None)
    lines = bench_amp.table(report).splitlines()
    assert lines[0] == "PPO's update on the CPU, threads 1: median of 5 rounds of 1"
    assert lines[3].endswith("updates/s = 1.00 x fp32")
    assert lines[-1] == "peak memory is measured on a GPU only, by torch's allocator"


@pytest.mark.slow
def test_the_amp_command_measures_the_networks_of_the_mission():
    report = json.loads(rl("bench", "amp", "--device", "cpu", "--json", cwd=Path.cwd()).stdout)
    sizes = [(network["network"], network["batch_size"]) for network in report["networks"]]
    assert sizes == [("Nature CNN", 256), ("MLP 1024-1024", 4096)]
