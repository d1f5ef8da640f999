import csv
import json
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rl import dqn, ppo
from rl.backend import available_cores
from rl.errors import RunError, UsageError
from rl.run_config import RunConfig
from rl.run_folder import RunFolder, is_live, read_config
from rl.train import parse, resume, train

SMALL = ppo.Config(num_steps=16, num_epochs=1, num_minibatches=1)


def small_run(path, **changes):
    settings = {"run_dir": path, "total_steps": 1024, "num_envs": 4, "log_interval": 256, "eval_episodes": 2}
    return train(RunConfig(**(settings | {"checkpoint_interval": 256} | changes)), SMALL, progress=False)


def test_two_runs_in_the_same_second_get_a_folder_each(tmp_path, monkeypatch):
    monkeypatch.setenv("RL_MODELS_DIR", str(tmp_path))
    first, second = (small_run(None, total_steps=64, eval_interval=0, eval_episodes=0).path for _ in range(2))
    assert first != second
    assert {first.parent, second.parent} == {tmp_path / "runs"}


def test_a_finished_run_folder_holds_all_that_the_contract_names(tmp_path):
    result = small_run(tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"config.json", "status.json", "manifest.json", "metrics.csv", "checkpoints", ".lock"} <= names
    assert any(name.startswith("events.out.tfevents") for name in names)
    assert {"latest.pt", "best.pt", "step-0.pt", "step-1024.pt"} <= {p.name for p in result.path.glob("checkpoints/*")}
    status = json.loads((result.path / "status.json").read_text())
    assert (status["state"], status["step"], status["reason"]) == ("finished", 1024, "1024 steps trained")
    assert status["episodes"] == result.counters.episodes > 0
    manifest = json.loads((result.path / "manifest.json").read_text())
    keys = "command git_commit git_dirty lock_sha256 image torch cuda driver gpu seed"
    assert set(keys.split()) <= set(manifest)
    assert manifest["accelerate"].startswith("eager: on the CPU")


def test_only_the_newest_checkpoints_are_kept(tmp_path):
    result = small_run(tmp_path / "run", keep_checkpoints=2)
    assert {path.name for path in result.path.glob("checkpoints/step-*")} == {"step-768.pt", "step-1024.pt"}


def test_the_config_file_gives_back_the_very_same_configuration(tmp_path):
    config = dqn.Config(hidden_sizes=(8, 9), learning_rate=0.5)
    run = RunConfig(run_dir=tmp_path / "run", total_steps=64, stop_at_return=7.5, eval_episodes=0)
    train(run, config, progress=False)
    read_run, algorithm, read = parse(read_config(tmp_path / "run"))
    assert (algorithm, read) == ("dqn", config)
    assert (read_run.total_steps, read_run.stop_at_return, read_run.device) == (64, 7.5, "cpu")


def test_tensorboard_and_csv_hold_the_same_curve(tmp_path):
    result = small_run(tmp_path / "run")
    with (result.path / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["average_return"]]
    events = EventAccumulator(str(result.path)).Reload()
    curve = [(event.step, event.value) for event in events.Scalars("average_return")]
    assert [step for step, _ in curve] == [256, 512, 768, 1024] == [int(row["step"]) for row in rows]
    assert [value for _, value in curve] == pytest.approx([float(row["average_return"]) for row in rows], rel=1e-6)
    assert {"policy_loss", "entropy", "steps_per_second"} <= set(events.Tags()["scalars"])


def test_a_run_folder_in_use_is_not_overwritten(tmp_path):
    small_run(tmp_path / "run")
    with pytest.raises(UsageError, match="already holds a run"):
        small_run(tmp_path / "run")


def test_a_folder_is_live_while_it_is_held_and_no_longer(tmp_path):
    small_run(tmp_path / "run")
    assert not is_live(tmp_path / "run")
    with RunFolder(tmp_path / "run") as folder:
        folder.acquire()
        assert is_live(tmp_path / "run")
        with pytest.raises(RunError, match="another process"):
            RunFolder(tmp_path / "run").acquire()
    assert not is_live(tmp_path / "run")


def test_a_run_that_fails_says_so_in_its_status(tmp_path):
    def interrupt(counters, agent):
        raise ZeroDivisionError("from the caller's own code")

    with pytest.raises(ZeroDivisionError):
        train(RunConfig(run_dir=tmp_path / "run", total_steps=2000), SMALL, on_episode=interrupt, progress=False)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], status["reason"]) == ("failed", "ZeroDivisionError: from the caller's own code")


def test_a_run_ends_when_the_average_return_of_100_episodes_reaches_the_goal(tmp_path):
    result = small_run(tmp_path / "run", total_steps=100_000, stop_at_return=5.0)
    assert result.solved
    assert result.counters.episodes == 100  # 5 is reached at once, so the window of 100 decides
    assert "reached 5" in result.reason


def test_the_last_row_of_a_run_that_ends_between_two_rows_is_that_of_its_end(tmp_path):
    result = small_run(tmp_path / "run", total_steps=100_000, stop_at_return=5.0, log_interval=10_000, eval_episodes=0)
    with (result.path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [result.counters.step]
    assert float(rows[0]["average_return"]) == result.counters.average_return


def test_a_run_that_ends_where_an_evaluation_is_due_makes_it_once(tmp_path):
    result = small_run(tmp_path / "run", eval_interval=512)
    with (result.path / "metrics.csv").open(newline="") as file:
        steps = [int(row["step"]) for row in csv.DictReader(file) if row["eval_return"]]
    assert steps == [512, 1024]


def test_a_run_killed_between_its_last_checkpoint_and_its_last_status_takes_no_further_step(tmp_path):
    result = small_run(tmp_path / "run")
    status = json.loads((result.path / "status.json").read_text())
    (result.path / "status.json").write_text(json.dumps(status | {"state": "running"}))
    resumed = resume(result.path, progress=False)
    assert (resumed.state, resumed.counters.step, resumed.counters.episodes) == ("finished", 1024, status["episodes"])


def test_a_finished_run_is_resumed_only_to_go_further(tmp_path):
    result = small_run(tmp_path / "run")
    assert resume(result.path, progress=False) is None
    assert resume(result.path, {"total_steps": 1024}, progress=False) is None
    further = resume(result.path, {"total_steps": 1536}, progress=False)
    assert (further.state, further.counters.step) == ("finished", 1536)
    assert read_config(result.path)["run"]["total_steps"] == 1536


def test_a_file_system_without_hard_links_gets_copies(tmp_path, monkeypatch):
    def refuse(self, target):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    result = small_run(tmp_path / "run")
    latest, kept = result.path / "checkpoints" / "latest.pt", result.path / "checkpoints" / "step-1024.pt"
    assert latest.read_bytes() == kept.read_bytes()
    assert latest.stat().st_ino != kept.stat().st_ino
    assert not list(result.path.glob("checkpoints/.*"))


def test_a_folder_that_cannot_be_locked_or_read_fails_with_one_line(tmp_path):
    small_run(tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text("{")
    with pytest.raises(RunError, match=r"cannot read .*config\.json"):
        read_config(tmp_path / "run")
    (tmp_path / "run" / ".lock").unlink()
    (tmp_path / "run" / ".lock").mkdir()
    with pytest.raises(RunError, match="cannot write the run folder"):
        RunFolder(tmp_path / "run").acquire()


def test_a_run_that_reached_its_goal_goes_on_when_more_steps_are_asked_for(tmp_path):
    result = small_run(tmp_path / "run", total_steps=8000, stop_at_return=1.0)
    assert result.solved
    steps = result.counters.step
    further = resume(result.path, {"total_steps": 10_000}, progress=False)
    assert further.counters.step >= 10_000 > 8000 > steps
    assert not further.solved
    again = resume(result.path, {"total_steps": 12_000, "stop_at_return": 1.0}, progress=False)
    assert (again.solved, again.counters.step) == (True, further.counters.step)


@pytest.mark.parametrize(
    ("hidden_sizes", "asked", "threads"), [((8,), 0, 1), ((256, 256), 0, available_cores()), ((256, 256), 1, 1)]
)
def test_a_small_network_trains_on_one_thread_a_large_one_on_all_unless_asked(tmp_path, hidden_sizes, asked, threads):
    run = RunConfig(num_envs=8, total_steps=64, device="cpu", eval_episodes=0, threads=asked, run_dir=tmp_path / "run")
    before = torch.get_num_threads()
    try:
        train(run, ppo.Config(num_steps=64, num_minibatches=1, hidden_sizes=hidden_sizes), progress=False)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["run"]["threads"] == threads


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of torch's own, in inductor
def test_a_compiled_run_trains_the_eager_agent_and_keeps_its_code(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    runs = {mode: small_run(tmp_path / mode, accelerate=mode, device="cpu") for mode in ("eager", "compile")}
    weights = [torch.nn.utils.parameters_to_vector(run.agent.network.parameters()) for run in runs.values()]
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-4)
    manifest = json.loads((tmp_path / "compile" / "manifest.json").read_text())
    assert manifest["accelerate"] == "compile: asked for"
    (kept,) = (tmp_path / "cache").iterdir()
    assert kept.name.startswith("uid")
    assert any(kept.rglob("*.so"))
