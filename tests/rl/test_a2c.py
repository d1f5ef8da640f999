"""The loss by hand (pitfall 4.3: 18)."""

import dataclasses

import pytest
import torch
from gymnasium import spaces

from rl.a2c import A2C, Config, loss
from rl.networks import ActorCritic
from rl.transition import Transition

OBSERVATIONS, ACTIONS = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)
SMALL = Config(num_steps=2, gamma=0.5, hidden_sizes=(8,))


def rollout(terminated: bool = False) -> Transition:
    """Two steps of one environment, rewards 1 and 2."""
    torch.manual_seed(1)
    obs = torch.rand(3, 1, 2)
    no = torch.zeros(2, 1, dtype=torch.bool)
    end = torch.tensor([[False], [terminated]])
    return Transition(obs[:2], torch.tensor([[0], [1]]), torch.tensor([[1.0], [2.0]]), obs[1:], end, no)


@pytest.fixture
def network():
    torch.manual_seed(0)
    return ActorCritic(OBSERVATIONS, ACTIONS, (8,))


@pytest.mark.parametrize("terminated", [False, True])
def test_the_loss_is_made_of_n_step_advantages_worked_out_by_hand(network, terminated):
    data = rollout(terminated)
    total, metrics = loss(network, data, dataclasses.replace(SMALL, entropy_coef=0.1))
    v0, v1 = (network.value(data.obs[t, 0]).item() for t in range(2))
    bootstrap = 0.0 if terminated else network.value(data.next_obs[1, 0]).item()
    return1 = 2 + 0.5 * bootstrap
    return0 = 1 + 0.5 * return1
    log_probs = [network.actor(data.obs[t, 0]).log_softmax(-1)[t].item() for t in range(2)]
    policy = -(log_probs[0] * (return0 - v0) + log_probs[1] * (return1 - v1)) / 2
    assert metrics["policy_loss"].item() == pytest.approx(policy, rel=1e-4)
    value = 0.5 * ((v0 - return0) ** 2 + (v1 - return1) ** 2) / 2
    assert metrics["value_loss"].item() == pytest.approx(value, rel=1e-4)
    assert total.item() == pytest.approx(policy + 0.5 * value - 0.1 * metrics["entropy"].item(), rel=1e-4)


def test_the_policys_gradient_does_not_flow_into_the_value_network(network):
    total, _ = loss(network, rollout(), dataclasses.replace(SMALL, value_coef=0.0))
    total.backward()
    assert all(not parameter.grad.any() for parameter in network.critic.parameters())
    assert any(parameter.grad.any() for parameter in network.actor.parameters())


def test_one_update_is_made_every_num_steps_steps():
    agent = A2C(SMALL, OBSERVATIONS, ACTIONS, num_envs=3)
    nothing = torch.zeros(3, dtype=torch.bool)
    due = []
    for _ in range(6):
        obs = torch.rand(3, 2)
        agent.observe(Transition(obs, agent.act(obs), torch.rand(3), torch.rand(3, 2), nothing, nothing))
        due.append(bool(agent.learn()))
    assert due == [False, True] * 3
    assert agent.updates == 3


def test_the_optimiser_is_rmsprop_as_in_the_paper_with_epsilon_outside_the_root():
    (group,) = A2C(SMALL, OBSERVATIONS, ACTIONS, num_envs=1).descent.optimizer.param_groups
    assert (group["alpha"], group["eps"], group["lr"]) == (0.99, 1e-5, 7e-4)
