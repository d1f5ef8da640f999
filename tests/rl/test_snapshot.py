import io

import gymnasium
import numpy as np
import pytest
import torch

from rl.snapshot import restore, snapshot

CLASSIC = ["CartPole-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1"]


def through_a_file(layers):
    file = io.BytesIO()
    torch.save(layers, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def play(env, actions):
    """Steps until the actions are used up, with resets: so the generator and the time limit are tested too."""
    seen = []
    for action in actions:
        obs, reward, terminated, truncated, _ = env.step(action)
        seen.append((obs.tolist(), float(reward), terminated, truncated))
        if terminated or truncated:
            seen.append(env.reset()[0].tolist())
    return seen


@pytest.mark.parametrize("env_id", CLASSIC)
def test_a_restored_environment_goes_on_exactly_with_wrappers_and_time_limit(env_id):
    one, other = gymnasium.make(env_id), gymnasium.make(env_id)
    one.action_space.seed(0)
    actions = [one.action_space.sample() for _ in range(1200)]
    one.reset(seed=1)
    play(one, actions[:90])
    layers, reason = snapshot(one)
    assert reason == ""
    restore(other, through_a_file(layers))
    assert play(one, actions[90:]) == play(other, actions[90:])


class Own(gymnasium.Env):
    """As a user may write one."""

    observation_space = action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, **attributes):
        vars(self).update(attributes)


@pytest.mark.parametrize(
    "value",
    [np.float64(0.1), np.int64(3), {"a": [1, (2.5, None)]}, np.arange(3.0), "text", [np.array([True])]],
    ids=repr,
)
def test_plain_attributes_come_back_with_their_types(value):
    other = Own(kept=None)
    restore(other, through_a_file(snapshot(Own(kept=value))[0]))
    assert type(other.kept) is type(value)
    assert repr(other.kept) == repr(value)


def test_a_saved_array_does_not_change_with_the_environment():
    env = Own(array=np.zeros(3))
    layers, _ = snapshot(env)
    env.array += 1
    other = Own(array=None)
    restore(other, layers)
    assert other.array.tolist() == [0, 0, 0]


def test_an_attribute_that_is_no_plain_data_is_named():
    layers, reason = snapshot(Own(simulator=object()))
    assert layers == []
    assert "Own.simulator" in reason
