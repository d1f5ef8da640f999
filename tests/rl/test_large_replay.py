"""A replay too large for every checkpoint lies in a file of its own, beside the latest one only."""

from pathlib import Path

import pytest
import torch

from rl import checkpoint, dqn
from rl.evaluate import evaluate
from rl.loop import LARGE_REPLAY
from rl.run_config import RunConfig
from rl.train import load_agent, resume, train

CONFIG = dqn.Config(buffer_size=1_600_000, learning_starts=100, hidden_sizes=(8,))  # 42 bytes each
RUN = {"num_envs": 4, "checkpoint_interval": 400, "eval_interval": 400, "eval_episodes": 2, "seed": 3}


@pytest.fixture
def run(tmp_path) -> Path:
    path = tmp_path / "run"
    result = train(RunConfig(run_dir=path, total_steps=1200, **RUN), CONFIG, progress=False)
    assert result.agent.buffer.nbytes > LARGE_REPLAY
    return path


def checkpoints(run: Path) -> set[str]:
    return {path.name for path in (run / "checkpoints").iterdir()}


def test_the_replay_lies_beside_the_latest_checkpoint_and_in_no_other(run):
    assert checkpoints(run) == {"latest.pt", "best.pt", "step-0.pt", "step-400.pt", "step-800.pt", "step-1200.pt"} | {
        "replay-1200.pt"
    }
    named = checkpoint.load(run / "checkpoints" / "latest.pt")["agent"]["buffer"]
    assert named["file"] == "replay-1200.pt"
    assert checkpoint.load(run / "checkpoints" / "best.pt")["agent"]["buffer"] == {}
    assert (run / "checkpoints" / "latest.pt").stat().st_size < 200_000


def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(run, tmp_path):
    whole = train(RunConfig(run_dir=tmp_path / "whole", total_steps=2000, **RUN), CONFIG, progress=False)
    resumed = resume(run, {"total_steps": 2000}, progress=False)
    one, other = whole.agent.state_dict(), resumed.agent.state_dict()
    torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("damage", ["missing", "damaged", "another's"])
def test_a_replay_that_is_not_the_one_saved_is_filled_anew_and_the_run_says_so(run, damage, capsys):
    replay = run / "checkpoints" / "replay-1200.pt"
    if damage == "missing":
        replay.unlink()
    elif damage == "damaged":
        data = bytearray(replay.read_bytes())
        data[len(data) // 2] ^= 1
        replay.write_bytes(data)
    else:
        checkpoint.write(replay, {"storage": {}})
    resumed = resume(run, {"total_steps": 1240}, progress=False)
    assert "Going on with an empty replay, which is filled first" in capsys.readouterr().err
    assert resumed.agent.buffer.size == 40
    assert resumed.agent.updates == (1240 - 100) // 4  # the schedule goes on; none was made while too few were there
    before, after = (checkpoint.load(run / "checkpoints" / name)["agent"] for name in ("step-1200.pt", "latest.pt"))
    torch.testing.assert_close(before["network"], after["network"], rtol=0, atol=0)


def test_the_best_agent_is_evaluated_without_room_for_its_replay(run):
    loaded, agent, _ = load_agent(run, "cpu")
    assert agent.buffer.nbytes < 1000
    assert len(evaluate(agent, loaded.env_id, 2, seed=0)) == 2
