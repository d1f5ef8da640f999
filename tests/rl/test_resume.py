"""Training 2N steps, and training until a kill -9 and resuming to 2N, are one run bit for bit (pitfall 4.1: 12)."""

import csv
import functools
import itertools
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from rl_process import RlProcess, rl, wait_until

from rl import checkpoint, ppo
from rl.run_folder import RunFolder
from rl.train import RunConfig, train

# Small, and awkward on purpose: checkpoints fall in the middle of rollouts, episodes and the replay's wrap-round.
FLAGS = {
    "dqn": "--buffer-size 700 --learning-starts 100 --num-envs 3 --n-steps 3",
    "a2c": "--num-steps 7 --num-envs 3",
    "sac": "--env-id Pendulum-v1 --buffer-size 700 --learning-starts 100 --num-envs 3 --update-interval 20 "
    "--hidden-sizes 16",
    "ppo": "--num-steps 50 --num-envs 3 --num-minibatches 3 --anneal-steps 4000 --normalize-obs --normalize-rewards",
}
RUN = ["--seed", "5", "--checkpoint-interval", "300", "--eval-interval", "1000", "--log-interval", "200"]
STEPS = 2500
LONG = 10 * STEPS  # for those that must be caught in the middle, on a busy machine too: some seconds
CASES = [("dqn", "native"), ("ppo", "sync"), ("a2c", "native"), ("sac", "sync"), ("ppo", "native"), ("dqn", "sync")]
CASES += [("dqn", "async"), ("a2c", "async")]


def start(run: Path, algorithm: str, steps: int, *flags: str, **options) -> RlProcess:
    arguments = ["train", algorithm, "--run-dir", run, "--total-steps", steps, *RUN, *FLAGS[algorithm].split()]
    return RlProcess(*arguments, *flags, **options)


def wait_for_step(run: Path, step: int, process: RlProcess) -> None:
    wait_until(lambda: (run / "status.json").exists() and status(run)["step"] >= step, process)


def status(run: Path) -> dict:
    return json.loads((run / "status.json").read_text())


def assert_equal(one: object, other: object, place: str = "") -> None:
    assert type(one) is type(other), place
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), place
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), place
        for key in one:
            assert_equal(one[key], other[key], f"{place}/{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), place
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_equal(a, b, f"{place}/{i}")
    else:
        assert one == other, place


def metrics_without_speed(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open(newline="") as file:
        return [{key: value for key, value in row.items() if key != "steps_per_second"} for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def left_alone(tmp_path_factory):
    """Runs that nobody disturbed, by algorithm, backend and steps, and the seconds that each took."""

    @functools.cache
    def run(algorithm: str, backend: str, steps: int = STEPS) -> tuple[Path, float]:
        path = tmp_path_factory.mktemp("left_alone") / f"{algorithm}-{backend}"
        begun = time.monotonic()
        assert start(path, algorithm, steps, "--backend", backend).wait() == 0
        return path, time.monotonic() - begun

    return run


def assert_same_run(one: Path, other: Path) -> None:
    assert_equal(checkpoint.load(RunFolder(one).latest), checkpoint.load(RunFolder(other).latest))
    assert metrics_without_speed(one) == metrics_without_speed(other)
    assert status(one)["state"] == status(other)["state"] == "finished"


@pytest.mark.parametrize(
    ("algorithm", "backend"),
    [
        *itertools.product(["a2c", "dqn", "ppo", "sac"], ["native", "sync"]),
        ("ppo", "async"),  # in lockstep, since it normalises observations
        ("a2c", "async"),  # in halves
        ("dqn", "async"),
    ],
)
def test_a_run_killed_and_resumed_equals_the_run_left_alone_bit_for_bit(tmp_path, left_alone, algorithm, backend):
    steps = LONG if backend == "native" else STEPS
    (whole, _), killed = left_alone(algorithm, backend, steps), tmp_path / "killed"
    process = start(killed, algorithm, steps, "--backend", backend)
    wait_for_step(killed, 600, process)
    process.kill()
    process.wait()
    assert status(killed)["state"] == "running"  # it had no chance to say otherwise
    assert checkpoint.load(RunFolder(killed).latest)["counters"]["step"] < steps
    assert rl("resume", killed).returncode == 0
    assert_same_run(whole, killed)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow if case >= 5 else ()) for case in range(50)]
)
def test_a_run_killed_at_random_moments_equals_the_run_left_alone_bit_for_bit(tmp_path, left_alone, case):
    """Checkpoints are written ten times as often as above, so that many a kill falls into one."""
    rng = random.Random(case)
    algorithm, backend = CASES[case % len(CASES)]
    (whole, seconds), killed = left_alone(algorithm, backend), tmp_path / "killed"
    process = start(killed, algorithm, STEPS, "--backend", backend, "--checkpoint-interval", "30")
    for _ in range(rng.randint(1, 3)):
        time.sleep(rng.uniform(0, seconds))
        process.kill()
        process.wait()
        if not (killed / "config.json").exists():  # killed before it was a run
            process = start(killed, algorithm, STEPS, "--backend", backend, "--checkpoint-interval", "30")
        else:
            process = RlProcess("resume", killed)
    assert process.wait() == 0, process.stderr
    assert_same_run(whole, killed)


@pytest.mark.parametrize("case", range(len(CASES)))
def test_a_run_stopped_by_signals_at_random_moments_equals_the_run_left_alone(tmp_path, left_alone, case):
    rng = random.Random(case)
    algorithm, backend = CASES[case % len(CASES)]
    (whole, seconds), stopped = left_alone(algorithm, backend), tmp_path / "stopped"
    process = start(stopped, algorithm, STEPS, "--backend", backend)
    wait_until((stopped / "config.json").exists, process)
    for _ in range(3):
        time.sleep(rng.uniform(0, seconds))
        number = rng.choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
        process.send_signal(number)
        code = process.wait()
        saved = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGHUP: 143}[number]
        assert code in (saved, 0, -number, 1)  # saved; finished before; ended before it trained
        if code == saved:
            assert (status(stopped)["state"], status(stopped)["reason"]) == ("interrupted", number.name)
            assert checkpoint.load(RunFolder(stopped).latest)["counters"]["step"] == status(stopped)["step"]
        process = RlProcess("resume", stopped)
    assert process.wait() == 0, process.stderr
    assert_same_run(whole, stopped)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 143)],
    ids=lambda value: str(value),
)
def test_a_signal_saves_the_run_and_says_so(tmp_path, left_alone, number, code):
    (whole, _), stopped = left_alone("ppo", "native", LONG), tmp_path / "stopped"
    process = start(stopped, "ppo", LONG, "--backend", "native")
    wait_for_step(stopped, 600, process)
    process.send_signal(number)
    assert process.wait() == code
    assert (status(stopped)["state"], status(stopped)["reason"]) == ("interrupted", number.name)
    assert checkpoint.load(RunFolder(stopped).latest)["counters"]["step"] == status(stopped)["step"]
    assert rl("resume", stopped).returncode == 0
    assert_same_run(whole, stopped)


def test_a_signal_before_the_first_step_is_obeyed_after_the_run_is_saved(tmp_path):
    def interrupt(loop):
        os.kill(os.getpid(), signal.SIGTERM)

    run = RunConfig(total_steps=64, run_dir=tmp_path / "run")
    result = train(run, ppo.Config(num_steps=16), on_start=interrupt, progress=False)
    assert (result.state, result.reason, result.exit_code) == ("interrupted", "SIGTERM", 143)
    assert status(tmp_path / "run")["state"] == "interrupted"
    assert checkpoint.load(RunFolder(tmp_path / "run").latest)["counters"]["step"] == 0


def test_a_run_killed_before_its_first_checkpoint_starts_anew(tmp_path, left_alone):
    (whole, _), killed = left_alone("dqn", "native"), tmp_path / "killed"
    killed.mkdir()
    for name in ("config.json", "manifest.json"):
        (killed / name).write_text((whole / name).read_text())
    (killed / "status.json").write_text('{"state": "running", "step": 0}')
    assert rl("resume", killed).returncode == 0
    assert_same_run(whole, killed)


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])  # in lockstep, since it normalises observations; in halves
def test_a_signal_to_all_processes_saves_a_run_with_workers_too_as_docker_stop_may_send_it(
    tmp_path, left_alone, algorithm
):
    (whole, _), stopped = left_alone(algorithm, "async"), tmp_path / "stopped"
    process = start(stopped, algorithm, STEPS, "--backend", "async", new_session=True)
    wait_for_step(stopped, 600, process)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait() == 143
    assert status(stopped)["state"] == "interrupted"
    assert rl("resume", stopped).returncode == 0
    assert_same_run(whole, stopped)


def test_normalised_observations_are_acted_on_in_lockstep_so_that_processes_change_nothing(left_alone):
    assert_same_run(left_alone("ppo", "sync")[0], left_alone("ppo", "async")[0])


def test_a_hangup_is_ignored_where_it_was_ignored_before_as_under_nohup(tmp_path):
    run = tmp_path / "run"
    process = start(run, "ppo", 3000, ignored_signals=(signal.SIGHUP,))
    wait_for_step(run, 0, process)
    process.send_signal(signal.SIGHUP)
    assert process.wait() == 0
    assert status(run)["state"] == "finished"


def test_resuming_a_finished_run_says_so_and_leaves_it_alone(tmp_path):
    run = tmp_path / "run"
    assert start(run, "ppo", 300).wait() == 0
    before = (run / "status.json").read_text()
    resumed = rl("resume", run)
    assert resumed.returncode == 0
    assert "finished already" in resumed.stdout
    assert (run / "status.json").read_text() == before


def test_two_processes_on_one_run_folder_are_refused(tmp_path):
    run = tmp_path / "run"
    process = start(run, "ppo", 10_000_000)
    wait_for_step(run, 0, process)
    second = rl("resume", run)
    process.terminate()
    process.wait()
    assert second.returncode == 1
    assert "another process" in second.stderr


def test_resume_all_goes_on_with_every_run_that_is_not_finished_and_not_live(tmp_path):
    runs = {name: tmp_path / name for name in ("finished", "killed", "stopped", "live")}
    assert start(runs["finished"], "ppo", 300).wait() == 0
    for name, how in (("killed", signal.SIGKILL), ("stopped", signal.SIGTERM)):
        process = start(runs[name], "ppo", 4000)
        wait_for_step(runs[name], 1, process)
        process.send_signal(how)
        process.wait()
    live = start(runs["live"], "ppo", 10_000_000)
    wait_for_step(runs["live"], 0, live)
    done = rl("resume", "--all", tmp_path)
    still_live = live.poll() is None
    live.terminate()
    live.wait()
    assert done.returncode == 0
    assert still_live
    assert [status(runs[name])["state"] for name in ("finished", "killed", "stopped")] == ["finished"] * 3
