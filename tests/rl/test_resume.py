"""Training for 2N steps, and training until a kill -9 and resuming to 2N, are the same run bit for bit."""

import csv
import functools
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from rl import checkpoint
from rl.run_folder import RunFolder

# Small, and awkward on purpose: checkpoints fall in the middle of rollouts, episodes and the replay's wrap-round.
FLAGS = {
    "dqn": "--buffer-size 700 --learning-starts 100 --num-envs 3 --n-steps 3",
    "a2c": "--num-steps 7 --num-envs 3",
    "sac": "--env-id Pendulum-v1 --buffer-size 700 --learning-starts 100 --num-envs 3 --update-interval 20 "
    "--hidden-sizes 16",
    "ppo": "--num-steps 50 --num-envs 3 --num-minibatches 3 --anneal-steps 9000 --normalize-obs --normalize-rewards",
}
RUN = ["--seed", "5", "--checkpoint-interval", "700", "--eval-interval", "2000", "--log-interval", "500"]


def start(run: Path, algorithm: str, steps: int, *flags: str, **options: bool) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "rl", "train", algorithm, "--run-dir", str(run), "--total-steps", str(steps)]
    return subprocess.Popen([*command, *RUN, *FLAGS[algorithm].split(), *flags], **options)


def wait_for_step(run: Path, step: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while not (run / "status.json").exists() or status(run)["step"] < step:
        assert process.poll() is None, "the run ended too early"
        assert time.monotonic() < deadline, "the run did not get there"
        time.sleep(0.005)


def status(run: Path) -> dict:
    return json.loads((run / "status.json").read_text())


def resume(run: Path) -> int:
    return subprocess.run([sys.executable, "-m", "rl", "resume", str(run)], timeout=120).returncode


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
    """Runs of 6,000 steps that nobody disturbed, by algorithm and backend."""

    @functools.cache
    def run(algorithm: str, backend: str) -> Path:
        path = tmp_path_factory.mktemp("left_alone") / f"{algorithm}-{backend}"
        assert start(path, algorithm, 6000, "--backend", backend).wait(timeout=120) == 0
        return path

    return run


@pytest.mark.parametrize(
    ("algorithm", "backend"),
    [*itertools.product(["a2c", "dqn", "ppo", "sac"], ["native", "sync"]), ("ppo", "async")],
)
def test_a_run_killed_and_resumed_equals_the_run_left_alone_bit_for_bit(tmp_path, left_alone, algorithm, backend):
    whole, killed = left_alone(algorithm, backend), tmp_path / "killed"
    process = start(killed, algorithm, 6000, "--backend", backend)
    wait_for_step(killed, 2500, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert status(killed)["state"] == "running"  # it had no chance to say otherwise
    assert checkpoint.load(RunFolder(killed).latest)["counters"]["step"] < 6000
    assert resume(killed) == 0

    assert_equal(checkpoint.load(RunFolder(whole).latest), checkpoint.load(RunFolder(killed).latest))
    assert metrics_without_speed(whole) == metrics_without_speed(killed)
    assert status(killed)["state"] == "finished"


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 143)],
    ids=lambda value: str(value),
)
def test_a_signal_saves_the_run_which_then_resumes_as_if_nothing_had_happened(tmp_path, left_alone, number, code):
    whole, stopped = left_alone("ppo", "native"), tmp_path / "stopped"
    process = start(stopped, "ppo", 6000, "--backend", "native")
    wait_for_step(stopped, 700, process)
    process.send_signal(number)
    assert process.wait(timeout=20) == code
    assert status(stopped)["state"] == "interrupted"
    assert status(stopped)["reason"] == number.name
    assert checkpoint.load(RunFolder(stopped).latest)["counters"]["step"] == status(stopped)["step"]
    assert resume(stopped) == 0

    assert_equal(checkpoint.load(RunFolder(whole).latest), checkpoint.load(RunFolder(stopped).latest))


def test_a_signal_to_all_processes_saves_a_run_with_workers_too_as_docker_stop_may_send_it(tmp_path, left_alone):
    whole, stopped = left_alone("ppo", "async"), tmp_path / "stopped"
    process = start(stopped, "ppo", 6000, "--backend", "async", start_new_session=True)
    wait_for_step(stopped, 700, process)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(timeout=20) == 143
    assert status(stopped)["state"] == "interrupted"
    assert resume(stopped) == 0

    assert_equal(checkpoint.load(RunFolder(whole).latest), checkpoint.load(RunFolder(stopped).latest))


def test_a_hangup_is_ignored_where_it_was_ignored_before_as_under_nohup(tmp_path):
    run = tmp_path / "run"
    command = ["nohup", sys.executable, "-m", "rl", "train", "ppo", "--run-dir", str(run), "--total-steps", "20000"]
    process = subprocess.Popen(command, cwd=tmp_path)
    wait_for_step(run, 0, process)
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=120) == 0
    assert status(run)["state"] == "finished"


def test_resuming_a_finished_run_says_so_and_leaves_it_alone(tmp_path, capfd):
    run = tmp_path / "run"
    assert start(run, "ppo", 300).wait(timeout=60) == 0
    before = (run / "status.json").read_text()
    assert resume(run) == 0
    assert "finished already" in capfd.readouterr().out
    assert (run / "status.json").read_text() == before


def test_two_processes_on_one_run_folder_are_refused(tmp_path):
    run = tmp_path / "run"
    process = start(run, "ppo", 10_000_000)
    wait_for_step(run, 0, process)
    second = subprocess.run(
        [sys.executable, "-m", "rl", "resume", str(run)], capture_output=True, text=True, timeout=60
    )
    process.terminate()
    process.wait(timeout=20)
    assert second.returncode == 1
    assert "another process" in second.stderr


def test_resume_all_goes_on_with_every_run_that_is_not_finished_and_not_live(tmp_path):
    runs = {name: tmp_path / name for name in ("finished", "killed", "stopped", "live")}
    assert start(runs["finished"], "ppo", 300).wait(timeout=60) == 0
    for name, how in (("killed", signal.SIGKILL), ("stopped", signal.SIGTERM)):
        process = start(runs[name], "ppo", 4000)
        wait_for_step(runs[name], 1, process)
        process.send_signal(how)
        process.wait(timeout=20)
    live = start(runs["live"], "ppo", 10_000_000)
    wait_for_step(runs["live"], 0, live)
    done = subprocess.run([sys.executable, "-m", "rl", "resume", "--all", str(tmp_path)], timeout=120)
    still_live = live.poll() is None
    live.terminate()
    live.wait(timeout=20)
    assert done.returncode == 0
    assert still_live
    assert [status(runs[name])["state"] for name in ("finished", "killed", "stopped")] == ["finished"] * 3
