"""Statistics of observations and returns (pitfalls 4.1: 10, 13, 16; 4.3: 13, 14, 42)."""

import copy

import pytest
import torch

from rl import envs, ppo
from rl.normalize import Normalized, RunningStatistics
from rl.ppo import PPO
from rl.transition import Transition


def test_statistics_of_batches_are_those_of_all_values_at_once():
    values = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0)) * 5 + 2
    statistics = RunningStatistics((3,), "cpu")
    for batch in values.split([1, 2, 300, 697]):
        statistics.update(batch)
    assert statistics.count == 1000
    torch.testing.assert_close(statistics.mean, values.double().mean(dim=0))
    torch.testing.assert_close(statistics.variance, values.double().var(dim=0, correction=0))


def test_statistics_of_two_ranks_merge_into_those_of_one():
    values = torch.randn(600, 2, generator=torch.Generator().manual_seed(1))
    whole, one, other = (RunningStatistics((2,), "cpu") for _ in range(3))
    whole.update(values)
    one.update(values[:100])
    other.update(values[100:])
    one.merge(other.count, other.mean, other.variance)
    torch.testing.assert_close(one.state_dict(), whole.state_dict())


def test_a_mean_a_million_deviations_away_does_not_drown_the_variance():
    generator, statistics = torch.Generator().manual_seed(0), RunningStatistics((), "cpu")
    for _ in range(1000):
        statistics.update(torch.randn(1000, generator=generator, dtype=torch.float64) + 1e6)
    assert statistics.variance.item() == pytest.approx(1.0, rel=0.01)


class Recorder:
    """An agent that keeps what it is shown."""

    device, num_envs = "cpu", 1

    def __init__(self):
        self.seen: list[Transition] = []
        self.observe = self.seen.append

    def act(self, obs, explore=True):
        return obs


def step(obs: float, reward: float, next_obs: float, ended: bool = False) -> Transition:
    column = torch.tensor([[obs]]), torch.zeros(1), torch.tensor([reward]), torch.tensor([[next_obs]])
    return Transition(*column, torch.tensor([ended]), torch.tensor([False]))


def test_an_observation_is_counted_once_when_it_was_acted_on_and_final_ones_never():
    agent = Normalized(Recorder(), (1,), 0.9, obs=True, rewards=False)
    for transition in (step(1.0, 0, 3.0), step(3.0, 0, 500.0, ended=True), step(2.0, 0, 4.0)):
        agent.act(transition.obs)
        agent.act(transition.obs, explore=False)
        agent.observe(transition)
    assert agent.obs_statistics.count == 3
    assert agent.obs_statistics.mean.item() == pytest.approx(2.0)


def test_the_agent_is_shown_the_very_observation_that_it_acted_on():
    recorder = Recorder()
    agent = Normalized(recorder, (1,), 0.9, obs=True, rewards=False)
    acted = []
    for obs in (1.0, 5.0, -3.0, 2.0):
        acted.append(agent.act(torch.tensor([[obs]])).item())
        agent.observe(step(obs, 0.0, obs))
    assert [transition.obs.item() for transition in recorder.seen] == acted
    assert acted[0] == 1.0  # nothing known yet: as it is
    assert acted[3] == pytest.approx((2 - 1) / (32 / 3) ** 0.5)  # mean and variance of 1, 5, −3 by hand


def test_rewards_are_divided_by_the_deviation_of_the_discounted_return_which_starts_anew_after_an_end():
    recorder = Recorder()
    agent = Normalized(recorder, (1,), 0.5, obs=False, rewards=True)
    agent.observe(step(0, 4.0, 0))
    agent.observe(step(0, 4.0, 0, ended=True))
    agent.observe(step(0, -2.0, 0))
    # returns by hand: 4, 4 + 0.5·4 = 6, and after the end −2
    returns = torch.tensor([4.0, 6.0, -2.0])
    assert recorder.seen[2].rewards.item() == pytest.approx(-2 / returns.std(correction=0).item(), rel=1e-4)
    assert recorder.seen[1].rewards.item() == pytest.approx(4 / returns[:2].std(correction=0).item(), rel=1e-4)
    assert recorder.seen[2].obs.item() == 0.0


def test_values_are_cut_at_ten():
    recorder = Recorder()
    agent = Normalized(recorder, (1,), 0.9, obs=True, rewards=True)
    for obs in (0.0, 0.1, 0.0, 1000.0):
        agent.observe(step(obs, obs, obs))
    assert recorder.seen[3].obs.item() == 10.0
    assert max(transition.rewards.item() for transition in recorder.seen) <= 10.0


def test_an_agent_saved_and_loaded_evaluates_as_before_with_its_own_statistics():
    vector = envs.make("Pendulum-v1", 4, seed=0)

    def make():
        inner = PPO(ppo.Config(num_steps=8, num_minibatches=1), vector.observation_space, vector.action_space, 4)
        return Normalized(inner, (3,), 0.99, obs=True, rewards=True)

    agent = make()
    for _ in range(40):
        agent.observe(vector.step(agent.act(vector.obs)))
        agent.learn()
    loaded = make()
    loaded.load_state_dict(copy.deepcopy(agent.state_dict()))
    before = copy.deepcopy(agent.state_dict()["statistics"])
    assert torch.equal(agent.act(vector.obs, explore=False), loaded.act(vector.obs, explore=False))
    torch.testing.assert_close(agent.state_dict()["statistics"], before, rtol=0, atol=0)
