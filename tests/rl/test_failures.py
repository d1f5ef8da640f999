"""What a run leaves behind when its numbers or the GPU's memory fail."""

import json

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl import a2c, checkpoint, dqn, ppo, sac
from rl.diagnose import diagnose
from rl.errors import RunError
from rl.run_config import RunConfig
from rl.train import resume, train


class Failing(gymnasium.Env):
    """Episodes of 5 steps; after 200 steps in all, rewards whose squares overflow, nan, or no memory left."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, how: str, continuous: bool = False) -> None:
        self.how, self.steps = how, 0
        self.action_space = spaces.Box(-1, 1, (1,)) if continuous else spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.random(2, dtype=np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps > 200 and self.how == "memory":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        if self.steps > 200 and self.how == "blind":
            return np.full(2, np.nan, np.float32), 1.0, False, False, {}
        reward = 1e30 if self.steps > 200 and self.how == "huge" else 1.0
        return self.np_random.random(2, dtype=np.float32), reward, False, self.steps % 5 == 0, {}


for how in ("huge", "memory", "blind"):
    gymnasium.register(f"{how.capitalize()}-v0", Failing, kwargs={"how": how})
    gymnasium.register(f"{how.capitalize()}Continuous-v0", Failing, kwargs={"how": how, "continuous": True})

CONFIGS = {
    "dqn": dqn.Config(buffer_size=500, learning_starts=50, hidden_sizes=(8,)),
    "ppo": ppo.Config(num_steps=16, num_minibatches=2, hidden_sizes=(8,)),
    "a2c": a2c.Config(hidden_sizes=(8,)),
    "sac": sac.Config(buffer_size=500, learning_starts=50, batch_size=16, hidden_sizes=(8,)),
}
RUN = {"num_envs": 2, "total_steps": 2000, "checkpoint_interval": 100, "eval_episodes": 0}


def run_config(path, algorithm: str, how: str, **changes) -> RunConfig:
    env_id = f"{how}{'Continuous' if algorithm == 'sac' else ''}-v0"
    return RunConfig(env_id=env_id, run_dir=path, **(RUN | changes))


@pytest.mark.parametrize("algorithm", sorted(CONFIGS))
def test_a_loss_that_overflows_stops_the_run_and_leaves_a_bundle_that_repeats_it(tmp_path, algorithm):
    path = tmp_path / "run"
    config = run_config(path, algorithm, "Huge", normalize_obs=algorithm == "ppo")
    with pytest.raises(RunError, match=r"is not finite in the update of .* at step 4\d\d: `rl diagnose") as caught:
        train(config, CONFIGS[algorithm], progress=False)
    status = json.loads((path / "status.json").read_text())
    assert status["state"] == "failed"
    assert "is not finite" in status["reason"]
    (bundle,) = path.glob("not-finite-step-*.pt")
    first = str(caught.value).split(" is not finite")[0]
    report = diagnose(bundle)
    assert report.splitlines()[-1] == f"first: {first} is not finite"
    assert any(line.startswith("batch.obs ") and line.endswith(" 0") for line in report.splitlines())
    for tensor in checkpoint.load(bundle)["batch"]:  # the failure is in the learning, not in what was fed to it
        assert torch.isfinite(tensor).all()


def test_the_checkpoint_after_a_failed_update_is_sound_and_the_run_resumes_from_it(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(RunError, match="is not finite"):
        train(run_config(path, "dqn", "Huge"), CONFIGS["dqn"], progress=False)
    agent = checkpoint.load(path / "checkpoints" / "latest.pt")["agent"]
    assert all(torch.isfinite(value).all() for value in agent["network"].values())
    with pytest.raises(RunError, match="is not finite"):  # the environment's fault is in its saved state, too
        resume(path, progress=False)


def test_a_failure_that_does_not_repeat_is_said_not_to(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(RunError, match="is not finite"):
        train(run_config(path, "a2c", "Huge"), CONFIGS["a2c"], progress=False)
    (bundle,) = path.glob("not-finite-step-*.pt")
    content = checkpoint.load(bundle)
    content["batch"][2].fill_(1.0)  # rewards that do no harm
    checkpoint.write(bundle, content)
    assert diagnose(bundle).endswith("every number is finite when the update is repeated on cpu")


def test_an_observation_that_is_nan_stops_the_run_and_names_the_environment(tmp_path):
    path = tmp_path / "run"
    message = r"step 400: environment 0 gave observation\[0\] = nan after action \d: mend it"
    with pytest.raises(RunError, match=message):
        train(run_config(path, "dqn", "Blind"), CONFIGS["dqn"], progress=False)
    (bundle,) = path.glob("not-finite-step-*.pt")
    assert "dqn on Blind-v0, step 400: environment 0 gave observation" in diagnose(bundle)
    replay = checkpoint.load(path / "checkpoints" / "latest.pt")["agent"]["buffer"]["storage"]
    assert torch.isfinite(replay["next_obs"]).all()


def test_out_of_gpu_memory_gives_figures_and_a_line_that_goes_on_in_less(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(RunError) as caught:
        train(run_config(path, "ppo", "Memory"), CONFIGS["ppo"], progress=False)
    message = str(caught.value)
    assert f"`rl resume {path} --gradient-accumulation 2` goes on from step 400" in message
    assert "num_steps 16, num_minibatches 2, num_envs 2" in message
    assert "--precision bf16" in message
    assert json.loads((path / "status.json").read_text())["state"] == "failed"


def test_a_run_out_of_memory_resumes_in_smaller_parts_to_the_same_result(tmp_path, monkeypatch):
    whole = train(run_config(tmp_path / "whole", "ppo", "Huge", total_steps=384), CONFIGS["ppo"], progress=False)
    path = tmp_path / "run"
    monkeypatch.setattr(Failing, "step", _fails_at(Failing.step, 100))
    with pytest.raises(RunError, match="memory ran out at step"):
        train(run_config(path, "ppo", "Huge", total_steps=384), CONFIGS["ppo"], progress=False)
    monkeypatch.undo()
    resumed = resume(path, {"gradient_accumulation": 4}, progress=False)
    assert json.loads((path / "config.json").read_text())["run"]["gradient_accumulation"] == 4
    assert resumed.state == "finished"
    for name, value in whole.agent.network.state_dict().items():
        torch.testing.assert_close(resumed.agent.network.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def _fails_at(step, limit: int):
    def failing(self, action):
        if self.steps >= limit:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return step(self, action)

    return failing
