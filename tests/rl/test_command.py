"""The `rl` command as a user types it: what goes wrong ends in one message and the documented exit code."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rl_process import rl

from rl import ppo
from rl.run_config import RunConfig
from rl.train import train

SCRIPTS = Path(__file__).parents[2] / "scripts"


def run(*command: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


@pytest.fixture(scope="module")
def small_run(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    train(RunConfig(run_dir=path, total_steps=1024), ppo.Config(num_steps=16), progress=False)
    return path


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["train", "dqn", "--env-id", "CartPoll-v1"], 2, "CartPoll"),
        (["train", "dqn", "--env-id", "nowhere:Thing-v0"], 2, "No module named 'nowhere'"),
        (["train", "dqn", "--env-id", "Pendulum-v1"], 2, "DQN needs discrete actions"),
        (["train", "dqn", "--learning-rat", "1"], 2, "Perhaps you meant"),
        (["train", "dqn", "--batch-size", "0"], 2, "--batch-size 0: must be at least 1"),
        (["train", "dqn", "--num-envs", "x"], 2, "--num-envs"),
        (["train", "ppo", "--num-minibatches", "3"], 2, "must divide the rollout"),
        (["train", "dqn", "--normalize-obs"], 2, "are for ppo and a2c"),
        (["train", "ppo", "--normalize-obs", "--env-id", "ALE/Pong-v5"], 2, "leave it out"),
        (["train", "chess"], 2, "rl train {dqn|ppo|a2c|a3c|sac}"),
        (["train", "dqn", "--device", "cuda:7"], 1, "`rl doctor` says why; --device cpu trains without"),
        (["train", "ppo", "--accelerate", "graph", "--device", "cpu"], 2, "CUDA graphs need a GPU"),
        (["train", "ppo", "--accelerate", "fast"], 2, "choose one of auto, eager, graph, compile"),
        (["train", "dqn", "--device", "tpu"], 2, "choose auto, cpu, cuda or cuda:i"),
        (["fly"], 2, "no command 'fly'"),
        (["resume"], 2, "rl resume RUN"),
        (["resume", "no/such/run"], 2, "is not a run folder"),
        (["resume", "--all", "no/such/folder"], 2, "is not a folder"),
        (["eval", "no/such/run"], 2, "is not a run folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_mistake_gets_one_clear_error_and_its_exit_code(tmp_path, arguments, code, message):
    done = rl(*arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []  # and it leaves nothing behind


def test_a_damaged_checkpoint_fails_with_one_line(small_run, tmp_path):
    run_copy = tmp_path / "run"
    run("cp", "-r", str(small_run), str(run_copy))
    for name in ("latest.pt", "best.pt"):
        (run_copy / "checkpoints" / name).write_bytes(b"rubbish")
    done = rl("eval", str(run_copy))
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "is no whole checkpoint" in done.stderr


def test_resume_falls_back_to_the_checkpoint_before_a_damaged_one_and_says_so(tmp_path):
    path = tmp_path / "run"
    config = ppo.Config(num_steps=16)
    train(RunConfig(run_dir=path, total_steps=1024, checkpoint_interval=256), config, progress=False)
    (path / "status.json").write_text('{"state": "interrupted"}')
    damaged = path / "checkpoints" / "latest.pt"
    damaged.write_bytes(damaged.read_bytes()[:-100])  # step-1024.pt is the same file
    done = rl("resume", str(path))
    assert done.returncode == 0, done.stderr
    assert "latest.pt is no whole checkpoint" in done.stderr
    assert "Going on from step-768.pt" in done.stderr
    assert json.loads((path / "status.json").read_text())["step"] == 1024


def test_resume_fails_with_one_line_where_every_checkpoint_is_damaged(small_run, tmp_path):
    run_copy = tmp_path / "run"
    run("cp", "-r", str(small_run), str(run_copy))
    for path in (run_copy / "checkpoints").iterdir():
        path.write_bytes(b"rubbish")
    (run_copy / "status.json").write_text('{"state": "interrupted"}')
    done = rl("resume", str(run_copy))
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a read-only file system")
def test_a_read_only_models_volume_fails_with_one_line(tmp_path):
    train_there = f"mount -t tmpfs -o ro tmpfs {tmp_path} && exec {sys.executable} -m rl train dqn"
    environment = os.environ | {"RL_MODELS_DIR": str(tmp_path)}
    done = run("unshare", "--mount", "sh", "-c", train_there, env=environment)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert "Read-only file system. Make the models folder writable, or give --run-dir" in done.stderr


def test_eval_prints_the_mean_return_of_the_best_checkpoint(small_run):
    done = rl("eval", str(small_run), "--episodes", "3")
    assert done.returncode == 0
    assert "best.pt, step 1,024" in done.stdout
    assert "over 3 episodes" in done.stdout


def test_eval_as_json_is_one_object_and_repeats_with_the_seed(small_run):
    outputs = [rl("eval", str(small_run), "--episodes", "3", "--seed", seed, "--json").stdout for seed in "112"]
    first, second, other = (json.loads(output) for output in outputs)
    assert first == second != other
    assert len(first["returns"]) == 3
    assert first["mean_return"] == pytest.approx(sum(first["returns"]) / 3)


def test_an_environment_module_in_the_current_folder_is_found(tmp_path, monkeypatch):
    monkeypatch.delenv("RL_MODELS_DIR", raising=False)  # the image sets it
    (tmp_path / "own.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('Own-v0', entry_point='gymnasium.envs.classic_control:AcrobotEnv', max_episode_steps=20)\n"
    )
    script = shutil.which("rl", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    done = run(script, "train", "dqn", "--env-id", "own:Own-v0", "--total-steps", "200", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "models" / "runs").iterdir())) == 1


def test_the_dqn_script_prints_the_missions_lines(tmp_path):
    done = run(sys.executable, str(SCRIPTS / "train_dqn.py"), "--lr", "1e-3", "--total-steps", "4000", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^Episode 50, Average Reward: \d+\.\d\d, Epsilon: 0\.\d\d\d$", done.stdout, re.MULTILINE)
    assert "Solved" not in done.stdout


def test_the_ppo_script_counts_epochs_of_one_rollout_each(tmp_path, monkeypatch):
    monkeypatch.delenv("RL_MODELS_DIR", raising=False)  # the image sets it
    script = str(SCRIPTS / "train_ppo.py")
    done = run(sys.executable, script, "--epochs", "3", "--num-steps", "16", "--num-envs", "4", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (status,) = tmp_path.glob("models/runs/*/status.json")
    assert json.loads(status.read_text())["step"] == 3 * 16 * 4


def test_every_command_explains_itself():
    assert "rl train dqn" in rl("--help").stdout
    for command in (["train", "dqn"], ["train", "ppo"], ["resume"], ["eval"]):
        done = rl(*command, "--help")
        assert done.returncode == 0
        assert "usage: rl " + " ".join(command) in done.stdout
