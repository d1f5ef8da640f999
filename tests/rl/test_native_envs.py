"""Native environments equal gymnasium's."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl.envs import NativeEnvs
from rl.native_envs import NATIVE, CartPole

MANY = 3000
REACH = {  # how far states are drawn: all over the space, a good part of them about to end an episode
    "CartPole-v1": [2.6, 3, 0.25, 3],
    "Pendulum-v1": [10, 8],
    "MountainCar-v0": [1.2, 0.07],
    "MountainCarContinuous-v0": [1.2, 0.07],
    "Acrobot-v1": [np.pi, np.pi, 12.5, 28],
}
SCALAR_POW = {"Pendulum-v1", "Acrobot-v1"}  # gymnasium squares by C's pow(), off by one in the last place now and then


def many_states(env_id):
    """States in the environment's own float type, and an action for each."""
    environment, rng = NATIVE[env_id](), np.random.default_rng(0)
    high = np.array(REACH[env_id])
    states = rng.uniform(-high, high, size=(MANY, len(high))).T.astype(environment.initial(np, 1, rng).dtype)
    if isinstance(environment.action_space, spaces.Discrete):
        return states, rng.integers(environment.action_space.n, size=MANY)
    space = environment.action_space
    return states, rng.uniform(space.low, space.high, size=(MANY, *space.shape)).astype(np.float32)


def visited_states(env_id):
    """States that random actions lead to: float32 is not asked to follow Acrobot at speeds that it never has."""
    env = gymnasium.make(env_id)
    env.reset(seed=0)
    env.action_space.seed(0)
    states, actions = [], []
    for _ in range(MANY):
        states.append(np.array(env.unwrapped.state))
        actions.append(env.action_space.sample())
        _, _, terminated, truncated, _ = env.step(actions[-1])
        if terminated or truncated:
            env.reset()
    states, actions = np.array(states), np.array(actions)
    if env_id == "Pendulum-v1":  # the angle grows turn by turn, and float32 resolves a large one worse than 1e-6
        kept = np.abs(states[:, 0]) <= np.pi
        states, actions = states[kept], actions[kept]
    return states.T, actions


def gymnasium_steps(env_id, states, actions):
    """What gymnasium's scalar environment makes of each state: next states, rewards, terminations, observations."""
    env = gymnasium.make(env_id).unwrapped
    env.reset(seed=0)
    results = []
    for state, action in zip(states.T, actions, strict=True):
        env.state, env.steps_beyond_terminated = state.copy(), None
        obs, reward, terminated, _, _ = env.step(action)
        results.append((np.array(env.state), reward, terminated, obs))
    return [np.array(column) for column in zip(*results, strict=True)]


def angles_wrapped(env_id, states):
    """States [N, size] with Acrobot's angles as cosines and sines: ±π are the same angle."""
    if env_id != "Acrobot-v1":
        return states
    return np.concatenate([np.cos(states[:, :2]), np.sin(states[:, :2]), states[:, 2:]], axis=1)


@pytest.mark.parametrize("env_id", NATIVE)
def test_a_step_equals_gymnasiums_bit_for_bit_in_numpy(env_id):
    states, actions = many_states(env_id)
    expected_states, expected_rewards, expected_terminations, expected_obs = gymnasium_steps(env_id, states, actions)
    native = NATIVE[env_id]()
    next_states, rewards, terminations = native.step(np, states, actions)
    obs = native.observe(np, next_states).astype(np.float32)
    assert next_states.dtype == states.dtype
    assert np.array_equal(terminations, expected_terminations)
    if env_id in SCALAR_POW:
        exact = (expected_states == next_states.T).all(axis=1)
        assert exact.mean() > 0.99
        np.testing.assert_allclose(
            angles_wrapped(env_id, next_states.T), angles_wrapped(env_id, expected_states), rtol=1e-13, atol=1e-13
        )
        np.testing.assert_allclose(rewards, expected_rewards, rtol=0, atol=3e-10)  # half a float32 place of 0.004
        assert np.array_equal(obs[exact], expected_obs[exact])
    else:
        assert np.array_equal(next_states.T, expected_states)
        assert np.array_equal(rewards, expected_rewards.astype(rewards.dtype))
        assert np.array_equal(obs, expected_obs)
    if env_id != "Pendulum-v1":
        assert 50 < terminations.sum() < MANY - 50  # both cases were seen


@pytest.mark.parametrize("env_id", NATIVE)
def test_a_step_equals_gymnasiums_within_1e6_in_torch_float32(env_id):
    states, actions = visited_states(env_id)
    expected_states, expected_rewards, *_ = gymnasium_steps(env_id, states, actions)
    next_states, rewards, terminations = NATIVE[env_id]().step(
        torch, torch.tensor(states, dtype=torch.float32), torch.tensor(actions)
    )
    assert (next_states.dtype, rewards.dtype, terminations.dtype) == (torch.float32, torch.float32, torch.bool)
    np.testing.assert_allclose(
        angles_wrapped(env_id, next_states.numpy().T), angles_wrapped(env_id, expected_states), atol=1e-6, rtol=1e-6
    )
    np.testing.assert_allclose(rewards, expected_rewards, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("env_id", NATIVE)
def test_spaces_and_time_limits_are_gymnasiums(env_id):
    env, native = gymnasium.make(env_id), NATIVE[env_id]()
    assert native.observation_space == env.observation_space
    assert native.action_space == env.action_space
    assert native.max_episode_steps == env.spec.max_episode_steps


@pytest.mark.parametrize("env_id", NATIVE)
def test_first_states_are_distributed_as_gymnasiums(env_id):
    """Each quantity by the Kolmogorov-Smirnov test of two samples, p = 0.001."""
    env = gymnasium.make(env_id).unwrapped
    scalar = np.array([(env.reset(seed=seed), np.array(env.state))[1] for seed in range(1000)])
    native = NATIVE[env_id]().initial(np, 20_000, np.random.default_rng(1))
    for quantity, others in zip(native, scalar.T, strict=True):
        grid = np.sort(others)
        below = np.searchsorted(np.sort(quantity), grid, side="right") / quantity.size
        gap = np.abs(below - np.searchsorted(grid, grid, side="right") / grid.size).max()
        assert gap < 1.95 * (1 / quantity.size + 1 / grid.size) ** 0.5


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
