"""Native environments equal gymnasium's."""

import gymnasium
import numpy as np
import pytest
import torch

from rl.envs import NativeEnvs
from rl.native_envs import CartPole

MANY = 3000


def many_states(dtype=np.float64):
    """States all over the space, a good part of them about to end an episode, and an action for each."""
    rng = np.random.default_rng(0)
    states = rng.uniform([-2.6, -3, -0.25, -3], [2.6, 3, 0.25, 3], size=(MANY, 4)).T.astype(dtype)
    return states, rng.integers(2, size=MANY)


def gymnasium_steps(states, actions):
    """What gymnasium's scalar environment makes of each state: next states, rewards, terminations, observations."""
    env = gymnasium.make("CartPole-v1").unwrapped
    env.reset(seed=0)
    results = []
    for state, action in zip(states.T, actions, strict=True):
        env.state, env.steps_beyond_terminated = state.copy(), None
        obs, reward, terminated, _, _ = env.step(int(action))
        results.append((env.state, reward, terminated, obs))
    return [np.array(column) for column in zip(*results, strict=True)]


def test_cartpole_equals_gymnasiums_bit_for_bit_in_numpy_float64():
    states, actions = many_states()
    expected_states, expected_rewards, expected_terminations, expected_obs = gymnasium_steps(states, actions)
    native = CartPole()
    next_states, rewards, terminations = native.step(np, states, actions)
    assert next_states.dtype == np.float64
    assert np.array_equal(next_states.T, expected_states)
    assert np.array_equal(rewards, expected_rewards)
    assert np.array_equal(terminations, expected_terminations)
    assert np.array_equal(native.observe(np, next_states).astype(np.float32), expected_obs)
    assert 100 < terminations.sum() < MANY - 100  # both cases were seen


def test_cartpole_equals_gymnasiums_within_1e6_in_torch_float32():
    states, actions = many_states()
    expected_states, *_ = gymnasium_steps(states, actions)
    next_states, rewards, terminations = CartPole().step(
        torch, torch.tensor(states, dtype=torch.float32), torch.tensor(actions)
    )
    assert (next_states.dtype, rewards.dtype, terminations.dtype) == (torch.float32, torch.float32, torch.bool)
    np.testing.assert_allclose(next_states.numpy().T, expected_states, atol=1e-6, rtol=1e-6)


def test_spaces_are_gymnasiums():
    env = gymnasium.make("CartPole-v1")
    assert CartPole().observation_space == env.observation_space
    assert CartPole().action_space == env.action_space
    assert CartPole().max_episode_steps == env.spec.max_episode_steps


def test_first_states_are_uniform_within_five_hundredths():
    states = CartPole().initial(20_000, np.random.default_rng(1))
    assert states.shape == (4, 20_000)
    deciles = np.histogram(states, bins=10, range=(-0.05, 0.05))[0]
    assert deciles.sum() == states.size
    assert ((deciles - 8000) ** 2 / 8000).sum() < 27.9  # 9 degrees of freedom, p = 0.001


@pytest.fixture
def one_env():
    return NativeEnvs(CartPole(), 1, seed=0, device="cpu")


def test_the_time_limit_truncates_at_step_500_and_not_before(one_env):
    one_env.episodes.lengths[:] = 498
    assert not one_env.step(torch.tensor([1])).truncations
    transition = one_env.step(torch.tensor([1]))
    assert transition.truncations
    assert not transition.terminations
    assert one_env.take_episodes()[0].length == 500


def test_a_fall_in_the_very_last_step_is_a_termination(one_env):
    one_env.episodes.lengths[:] = 499
    one_env.state[2] = 0.3
    transition = one_env.step(torch.tensor([1]))
    assert transition.terminations
    assert not transition.truncations
