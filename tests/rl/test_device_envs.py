"""Native environments on the agent's device, with the CPU for a device; pitfall: frozen random numbers in a graph."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl import a2c, ppo
from rl.accelerate import Acceleration
from rl.envs import DeviceEnvs, NativeEnvs
from rl.errors import NotFiniteError
from rl.graph import WARM_UP
from rl.native_envs import NATIVE, CartPole
from rl.normalize import Normalized
from rl.sampling import Lockstep, WholeRollouts, make_sampler

AGENTS = {
    "ppo": (ppo.PPO, ppo.Config(num_steps=4, num_epochs=2, num_minibatches=2, hidden_sizes=(8,))),
    "a2c": (a2c.A2C, a2c.Config(num_steps=4, hidden_sizes=(8,))),
}


def make(env_id: str = "CartPole-v1", num_envs: int = 3, seed: int = 0) -> DeviceEnvs:
    return DeviceEnvs(NATIVE[env_id](), num_envs, seed, "cpu")


def random_actions(envs: DeviceEnvs, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if isinstance(envs.action_space, spaces.Discrete):
        return torch.randint(int(envs.action_space.n), (envs.num_envs,), generator=generator)
    return torch.rand(envs.num_envs, 1, generator=generator) * 2.4 - 1.2  # some beyond ±1


@pytest.mark.parametrize("env_id", NATIVE)
def test_a_step_is_that_of_the_numpy_environments_in_float32(env_id):
    envs, numpy_envs = make(env_id, 50), NativeEnvs(NATIVE[env_id](), 50, 0, "cpu")
    envs.load_state_dict(numpy_envs.state_dict())
    for seed in range(8):
        actions = random_actions(envs, seed)
        ours, theirs = envs.step(actions), numpy_envs.step(actions)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
        assert [value.dtype for value in ours] == [value.dtype for value in theirs]


@pytest.mark.parametrize("env_id", NATIVE)
def test_first_states_lie_where_numpys_do(env_id):
    """Range and moments of 20,000: one part in a hundred of the range is many deviations of a mean."""
    ours = make(env_id, 20_000).state.double().numpy()
    theirs = NATIVE[env_id]().initial(np, 20_000, np.random.default_rng(0))
    assert ours.shape == theirs.shape
    width = np.maximum(theirs.max(axis=1) - theirs.min(axis=1), 1e-9)
    for figure in (np.min, np.max, np.mean, np.std):
        assert (np.abs(figure(ours, axis=1) - figure(theirs, axis=1)) <= 0.02 * width).all()
    different = width > 1e-6
    assert (np.abs(np.corrcoef(ours[different])) - np.eye(different.sum()) < 0.05).all()  # drawn apart


def test_an_episode_ends_in_its_true_last_observation_and_the_next_begins_elsewhere():
    envs = make(num_envs=1)
    envs.state.copy_(torch.tensor([[2.39], [3.0], [0.0], [0.0]]))
    transition = envs.step(torch.tensor([1]))
    assert transition.terminations.tolist() == [True]
    assert transition.next_obs[0, 0] > 2.4
    assert envs.obs.abs().max() <= 0.05
    assert torch.equal(envs.step(torch.tensor([1])).obs[0].abs() <= 0.05, torch.ones(4, dtype=torch.bool))


def test_the_time_limit_truncates_at_step_500_and_not_before():
    envs = make(num_envs=1)
    envs.lengths.fill_(498)
    assert not envs.step(torch.tensor([1])).truncations
    assert envs.step(torch.tensor([0])).truncations
    assert envs.lengths == 0


def test_a_transition_stays_as_it_was_while_the_environments_go_on():
    envs = make()
    transition = envs.step(random_actions(envs, 0))
    before = copy.deepcopy(transition)
    for seed in range(60):
        envs.step(random_actions(envs, seed))
    torch.testing.assert_close(transition, before, rtol=0, atol=0)


def test_episodes_are_those_that_the_transitions_add_up_to_whenever_they_are_read():
    envs, expected, got = make(num_envs=5), [], []
    returns, lengths = [0.0] * 5, [0] * 5
    for seed in range(320):
        transition = envs.step(random_actions(envs, seed))
        for i in range(5):
            returns[i] += transition.rewards[i].item()
            lengths[i] += 1
            if transition.terminations[i] or transition.truncations[i]:
                expected.append((returns[i], lengths[i]))
                returns[i], lengths[i] = 0.0, 0
        got += envs.take_episodes()
    assert len(expected) > 30
    assert [(episode.episode_return, episode.length) for episode in got] == expected


def test_what_was_saved_goes_on_as_if_nothing_had_happened_unread_episodes_included():
    envs, other = make(num_envs=4), make(num_envs=4, seed=9)
    for seed in range(40):  # 8 steps past the last look
        envs.step(random_actions(envs, seed))
        envs.take_episodes()
    other.load_state_dict(copy.deepcopy(envs.state_dict()))
    for seed in range(40, 90):
        torch.testing.assert_close(
            other.step(random_actions(envs, seed)), envs.step(random_actions(envs, seed)), rtol=0, atol=0
        )
        assert other.take_episodes() == envs.take_episodes()


@pytest.mark.parametrize("env_id", NATIVE)
def test_a_state_saved_on_a_gpu_can_go_on_in_numpy_and_the_other_way_round(env_id):
    envs, numpy_envs = make(env_id), NativeEnvs(NATIVE[env_id](), 3, 1, "cpu")
    envs.step(random_actions(envs, 0))
    numpy_envs.load_state_dict(envs.state_dict())
    torch.testing.assert_close(numpy_envs.obs, envs.obs, rtol=1e-6, atol=1e-6)
    actions = random_actions(envs, 1)
    torch.testing.assert_close(numpy_envs.step(actions).rewards, envs.step(actions).rewards, rtol=1e-4, atol=1e-4)
    envs.load_state_dict(numpy_envs.state_dict())
    torch.testing.assert_close(numpy_envs.obs, envs.obs, rtol=1e-6, atol=1e-6)


def test_a_number_that_is_not_finite_is_told_when_the_episodes_are_read():
    envs = make("Pendulum-v1")
    for seed in range(32):
        actions = random_actions(envs, seed)
        actions[1] = torch.nan if seed == 5 else actions[1]
        envs.step(actions)
    with pytest.raises(NotFiniteError, match="not finite"):
        envs.take_episodes()


def agent_and_envs(algorithm: str, env_id: str, mode: str):
    torch.manual_seed(0)
    envs = make(env_id, num_envs=4)
    agent_type, config = AGENTS[algorithm]
    agent = agent_type(
        config, envs.observation_space, envs.action_space, envs.num_envs, acceleration=Acceleration(mode=mode)
    )
    return agent, envs, make_sampler(agent, envs)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("algorithm", AGENTS)
def test_whole_rollouts_in_a_graph_train_the_very_agent_that_lockstep_trains(algorithm, env_id):
    agent, envs, sampler = agent_and_envs(algorithm, env_id, "eager")
    other, other_envs, other_sampler = agent_and_envs(algorithm, env_id, "graph")
    assert isinstance(sampler, Lockstep)
    assert isinstance(other_sampler, WholeRollouts)
    episodes, other_episodes = [], []
    for _ in range(WARM_UP + 12):
        for _ in range(agent.config.num_steps):
            sampler.sample()
            assert bool(agent.learn()) == agent.buffer.full or not agent.buffer.cursor
            episodes += envs.take_episodes()
        other_sampler.sample()
        other.learn()
        other_episodes += other_envs.take_episodes()
    assert other.step == agent.step
    torch.testing.assert_close(other.network.state_dict(), agent.network.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(other_envs.state, envs.state, rtol=0, atol=0)
    assert other_episodes == episodes


def test_random_numbers_go_on_from_replay_to_replay():
    agent, _, sampler = agent_and_envs("ppo", "CartPole-v1", "graph")
    seen = []
    for _ in range(WARM_UP + 3):
        sampler.sample()
        seen.append(agent.buffer.storage.obs.clone())
        agent.buffer.clear()
    assert all(not torch.equal(one, other) for i, one in enumerate(seen) for other in seen[:i])


def test_a_rollout_that_was_begun_before_a_resume_is_finished_step_by_step():
    agent, envs, sampler = agent_and_envs("ppo", "CartPole-v1", "graph")
    Lockstep(agent, envs).sample()
    while not agent.buffer.full:
        cursor = agent.buffer.cursor
        sampler.sample()
        assert agent.buffer.cursor == cursor + 1
    agent.learn()
    sampler.sample()
    assert agent.buffer.full


def test_normalised_agents_go_in_lockstep():
    agent, envs, _ = agent_and_envs("ppo", "CartPole-v1", "graph")
    normalized = Normalized(agent, envs.observation_space.shape, 0.99, obs=True, rewards=False)
    assert isinstance(make_sampler(normalized, envs), Lockstep)
    assert isinstance(make_sampler(agent, NativeEnvs(CartPole(), 4, 0, "cpu")), Lockstep)
