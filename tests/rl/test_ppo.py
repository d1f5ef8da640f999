"""The clipped objective by hand, and what surrounds it (pitfalls 4.1: 6, 7, 9; 4.3: 1, 4 to 9, 15)."""

import dataclasses
import math

import pytest
import torch
from gymnasium import spaces

from rl import ppo
from rl.networks import ActorCritic
from rl.ppo import PPO, Batch, Config, loss, normalized
from rl.returns import gae
from rl.transition import Transition

OBSERVATIONS, ACTIONS = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)
SMALL = Config(num_steps=8, num_epochs=2, num_minibatches=2, hidden_sizes=(8,))


def batch(network: ActorCritic, log_ratio: float, advantage: float, returns: float = 0.0) -> Batch:
    """One row, whose old log-probability lies `log_ratio` below today's."""
    obs = torch.tensor([[0.3, -0.2]])
    log_prob = network.actor(obs).log_softmax(-1)[0, 1].detach() - log_ratio
    return Batch(obs, torch.tensor([1]), log_prob.view(1), torch.tensor([advantage]), torch.tensor([returns]))


@pytest.fixture
def network():
    torch.manual_seed(0)
    return ActorCritic(OBSERVATIONS, ACTIONS, (8,))


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective"),
    [
        (1.5, 1.0, 1.2),  # clipped: no gain from going further
        (0.5, 1.0, 0.5),  # not clipped: the objective is the lower of the two
        (0.5, -1.0, -0.8),  # clipped
        (1.5, -1.0, -1.5),  # not clipped
        (1.1, 2.0, 2.2),
    ],
)
def test_the_objective_is_clipped_on_the_side_that_would_pay(network, ratio, advantage, objective):
    _, metrics = loss(network, batch(network, math.log(ratio), advantage), SMALL)
    assert metrics["policy_loss"].item() == pytest.approx(-objective, rel=1e-5)


def test_the_kl_estimate_and_the_value_loss_are_those_worked_out_by_hand(network):
    one = batch(network, math.log(1.5), 1.0, returns=3.0)
    _, metrics = loss(network, one, SMALL)
    assert metrics["approx_kl"].item() == pytest.approx(1.5 - 1 - math.log(1.5), rel=1e-4)
    value = network.value(one.obs).item()
    assert metrics["value_loss"].item() == pytest.approx(0.5 * (value - 3.0) ** 2, rel=1e-5)
    assert metrics["clip_fraction"].item() == 1.0


def test_the_kl_estimate_is_the_exact_divergence_where_every_action_counts_as_often_as_it_is_drawn(network):
    obs = torch.tensor([[0.3, -0.2], [0.3, -0.2]])
    old, new = torch.tensor([0.5, 0.5]), network.actor(obs[:1]).softmax(-1)[0].detach()
    data = Batch(obs, torch.tensor([0, 1]), old.log(), torch.zeros(2), torch.zeros(2))
    _, metrics = loss(network, data, SMALL)
    assert metrics["approx_kl"].item() == pytest.approx((old * (old / new).log()).sum().item(), abs=1e-7)


def test_the_optimiser_is_that_of_the_reference_implementation():
    (group,) = PPO(SMALL, OBSERVATIONS, ACTIONS, num_envs=2).descent.optimizer.param_groups
    assert (group["eps"], SMALL.max_grad_norm) == (1e-5, 0.5)


def test_the_total_weighs_its_three_terms(network):
    config = dataclasses.replace(SMALL, value_coef=0.7, entropy_coef=0.3)
    total, metrics = loss(network, batch(network, 0.1, 1.0, 2.0), config)
    expected = metrics["policy_loss"] + 0.7 * metrics["value_loss"] - 0.3 * metrics["entropy"]
    torch.testing.assert_close(total.detach(), expected)


def test_advantages_are_normalised_within_a_minibatch_but_not_alone(network):
    one = batch(network, 0.0, 7.0)
    assert normalized(one).advantages.item() == 7.0  # no spread to divide by: it would be nan
    three = Batch(*(torch.cat([value] * 3) for value in one))._replace(advantages=torch.tensor([1.0, 2.0, 6.0]))
    assert normalized(three).advantages.tolist() == pytest.approx([-2 / 7**0.5, -1 / 7**0.5, 3 / 7**0.5])


def fill(agent: PPO, reward: float = 1.0) -> None:
    """One rollout of a policy that acts by itself."""
    n = agent.num_envs
    nothing = torch.zeros(n, dtype=torch.bool)
    for _ in range(agent.config.num_steps):
        obs = torch.rand(n, 2)
        agent.observe(Transition(obs, agent.act(obs), torch.full((n,), reward), torch.rand(n, 2), nothing, nothing))


def test_before_the_first_update_of_a_rollout_the_ratio_is_1_everywhere(monkeypatch):
    ratios = []

    def watched(network, minibatch, config):
        new = network.actor(minibatch.obs).log_softmax(-1).gather(1, minibatch.actions.unsqueeze(1)).squeeze(1)
        ratios.append((new - minibatch.log_probs).exp().detach())
        return loss(network, minibatch, config)

    monkeypatch.setattr(ppo, "loss", watched)
    agent = PPO(SMALL, OBSERVATIONS, ACTIONS, num_envs=4)
    fill(agent)
    agent.learn()
    torch.testing.assert_close(ratios[0], torch.ones_like(ratios[0]), atol=1e-5, rtol=0)
    assert not torch.allclose(ratios[-1], torch.ones_like(ratios[-1]), atol=1e-5, rtol=0)


def test_each_epoch_covers_every_row_once_in_an_order_of_its_own(monkeypatch):
    seen = []

    def watched(network, minibatch, config):
        seen.append(minibatch.obs[:, 0].tolist())
        return loss(network, minibatch, config)

    monkeypatch.setattr(ppo, "loss", watched)
    agent = PPO(SMALL, OBSERVATIONS, ACTIONS, num_envs=4)
    fill(agent)
    rows = sorted(agent.buffer.storage.obs[..., 0].flatten().tolist())
    agent.learn()
    first, second = seen[0] + seen[1], seen[2] + seen[3]
    assert sorted(first) == sorted(second) == rows
    assert first != second
    assert len(seen) == agent.updates == 4


def test_a_rollout_is_evaluated_in_parts_and_bootstraps_from_the_true_successors():
    torch.manual_seed(0)
    agent = PPO(SMALL, OBSERVATIONS, ACTIONS, num_envs=3)
    agent.chunk = 3  # 3 + 3 + 2 steps
    generator = torch.Generator().manual_seed(1)
    obs = torch.rand(3, 2, generator=generator)
    for t in range(SMALL.num_steps):
        next_obs = torch.rand(3, 2, generator=generator)
        terminations = torch.tensor([t == 2, t == 7, False])
        truncations = torch.tensor([t == 5, False, t == 7])
        agent.observe(Transition(obs, agent.act(obs), torch.ones(3), next_obs, terminations, truncations))
        ended = (terminations | truncations).unsqueeze(1)
        obs = torch.where(ended, torch.rand(3, 2, generator=generator), next_obs)
    rollout = agent.buffer.storage
    values, next_values = agent.network.value(rollout.obs), agent.network.value(rollout.next_obs)
    advantages = gae(rollout.rewards, values, next_values, rollout.terminations, rollout.truncations, 0.99, 0.95)
    torch.testing.assert_close(agent._batch().advantages, advantages.flatten().detach())


def test_the_explained_variance_is_that_of_the_values_that_the_updates_began_with():
    agent = PPO(SMALL, OBSERVATIONS, ACTIONS, num_envs=4)
    fill(agent)
    values, returns = agent.network.value(agent.buffer.storage.obs).detach().flatten(), agent._batch().returns
    share = 1 - (returns - values).var() / returns.var()
    assert agent.learn()["explained_variance"].item() == pytest.approx(share.item(), abs=1e-5)


@pytest.mark.parametrize(("target_kl", "epochs"), [(1e-9, 1), (0.0, 6), (100.0, 6)])
def test_a_target_kl_ends_the_updates_after_the_epoch_that_passed_it(target_kl, epochs):
    agent = PPO(dataclasses.replace(SMALL, num_epochs=6, target_kl=target_kl), OBSERVATIONS, ACTIONS, num_envs=4)
    fill(agent)
    agent.learn()
    assert agent.updates == epochs * SMALL.num_minibatches
    fill(agent)  # and the next rollout is learned from as usual
    assert agent.learn()


def test_the_learning_rate_falls_to_0_over_environment_steps_also_after_a_resume():
    config = dataclasses.replace(SMALL, learning_rate=1e-2, anneal_steps=128)
    agent, rates = PPO(config, OBSERVATIONS, ACTIONS, num_envs=4), []
    for _ in range(5):
        fill(agent)
        rates.append(agent.learn()["learning_rate"])
        fresh = PPO(config, OBSERVATIONS, ACTIONS, num_envs=4)
        fresh.load_state_dict(agent.state_dict())
        agent = fresh
    assert rates == pytest.approx([0.75e-2, 0.5e-2, 0.25e-2, 0.0, 0.0])


def test_values_learn_to_look_beyond_a_time_limit():
    """Reward 1 for ever, cut off every 10 steps: at γ = 0.9 each state is worth 1 / (1 − 0.9) = 10, no sawtooth."""
    config = Config(num_steps=20, gamma=0.9, learning_rate=3e-3, hidden_sizes=(16,), num_minibatches=1)
    agent = PPO(config, OBSERVATIONS, ACTIONS, num_envs=8)
    time = torch.arange(8) % 10
    for _ in range(20 * 60):
        obs = torch.stack([time / 10, torch.zeros(8)], dim=1)
        next_obs = torch.stack([(time + 1) / 10, torch.zeros(8)], dim=1)
        truncated = time == 9
        agent.observe(Transition(obs, agent.act(obs), torch.ones(8), next_obs, torch.zeros(8).bool(), truncated))
        agent.learn()
        time = (time + 1) % 10
    values = agent.network.value(torch.stack([torch.arange(10) / 10, torch.zeros(10)], dim=1))
    assert values.min().item() > 8.5
    assert values.max().item() < 11.5
