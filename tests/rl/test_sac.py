"""Soft targets by hand, and which gradient goes where (pitfalls 4.1: 18; 4.3: 31 to 36)."""

import math

import pytest
import torch
from gymnasium import spaces

from rl.errors import UsageError
from rl.networks import TwinCritic
from rl.sac import SAC, Batch, Config, actor_loss, alpha_loss, critic_loss
from rl.transition import Transition

OBSERVATIONS, ACTIONS = spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (3,))


class Constant(TwinCritic):
    """Two critics that give the same two values everywhere."""

    def __init__(self, first: float, second: float) -> None:
        super().__init__(1, ())
        self.values = torch.nn.Parameter(torch.tensor([[first], [second]]))

    def forward(self, obs, actions):
        return self.values.expand(2, obs.shape[0]) + 0 * actions.sum()


def batch(terminated: bool, truncated: bool) -> Batch:
    ended, noise = (torch.tensor([terminated]), torch.tensor([truncated])), torch.zeros(1, 3)
    return Batch(torch.zeros(1, 2), torch.zeros(1, 3), torch.tensor([1.0]), torch.zeros(1, 2), *ended, noise, noise)


@pytest.mark.parametrize(
    ("terminated", "truncated", "target"),
    [
        (False, False, 1 + 0.5 * (4 - 0.1 * -2)),  # the lower target critic, and the entropy bonus
        (False, True, 1 + 0.5 * (4 - 0.1 * -2)),
        (True, False, 1.0),  # neither value nor entropy after a termination
    ],
)
def test_the_soft_target_is_that_worked_out_by_hand(terminated, truncated, target):
    critic, target_critic = Constant(3.0, 5.0), Constant(7.0, 4.0)
    total, metrics = critic_loss(
        critic,
        target_critic,
        batch(terminated, truncated),
        torch.zeros(1, 3),
        torch.tensor([-2.0]),
        torch.tensor(0.1),
        0.5,
    )
    assert total.item() == pytest.approx((3 - target) ** 2 + (5 - target) ** 2)
    assert metrics["q_value"].item() == 4.0
    total.backward()
    assert target_critic.values.grad is None


def test_the_actor_follows_the_lower_critic_and_pays_for_certainty():
    loss = actor_loss(Constant(3.0, 5.0), torch.zeros(1, 2), torch.zeros(1, 3), torch.tensor([-2.0]), torch.tensor(0.1))
    assert loss.item() == pytest.approx(0.1 * -2.0 - 3.0)


@pytest.mark.parametrize(("entropy", "direction"), [(-5.0, 1), (5.0, -1)])
def test_the_temperature_rises_while_the_entropy_lies_below_its_target(entropy, direction):
    log_alpha = torch.zeros((), requires_grad=True)
    alpha_loss(log_alpha, torch.tensor([entropy]), target_entropy=-3.0).backward()
    assert math.copysign(1, -log_alpha.grad.item()) == direction


def test_the_target_entropy_is_minus_the_number_of_action_dimensions():
    assert SAC(Config(buffer_size=8), OBSERVATIONS, ACTIONS, 1).target_entropy == -3.0


def agent(**changes) -> SAC:
    settings = {"buffer_size": 64, "learning_starts": 8, "batch_size": 4, "hidden_sizes": (8,)}
    return SAC(Config(**(settings | changes)), OBSERVATIONS, ACTIONS, 1)


def step(sac: SAC) -> dict:
    nothing = torch.zeros(1, dtype=torch.bool)
    sac.observe(
        Transition(torch.rand(1, 2), 2 * torch.rand(1, 3) - 1, torch.rand(1), torch.rand(1, 2), nothing, nothing)
    )
    return sac.learn()


def test_an_update_moves_every_network_and_the_target_critics_by_a_share_tau():
    sac = agent(tau=0.25)
    for _ in range(8):
        step(sac)
    before = {name: getattr(sac, name).state_dict() for name in ("actor", "critic", "target_critic")}
    before = {name: {key: value.clone() for key, value in state.items()} for name, state in before.items()}
    step(sac)
    for name in ("actor", "critic"):
        assert all(not torch.equal(value, before[name][key]) for key, value in getattr(sac, name).state_dict().items())
    for key, value in sac.target_critic.state_dict().items():
        torch.testing.assert_close(value, 0.75 * before["target_critic"][key] + 0.25 * sac.critic.state_dict()[key])
    assert sac.log_alpha.item() != 0.0


def test_the_actors_descent_flows_through_the_critics_and_leaves_no_gradient_in_them():
    sac = agent()
    for _ in range(9):
        step(sac)
    grads = [parameter.grad.clone() for parameter in sac.critic.parameters()]
    transitions = sac.buffer.sample(4, sac.generator)
    sac.descents["actor"](Batch(*transitions, torch.randn(4, 3), torch.randn(4, 3)))
    assert all(torch.equal(p.grad, grad) for p, grad in zip(sac.critic.parameters(), grads, strict=True))
    assert all(parameter.grad.any() for parameter in sac.actor.parameters())


def test_actions_are_uniform_before_learning_starts_and_within_bounds_after():
    sac = SAC(Config(learning_starts=100, buffer_size=2000), OBSERVATIONS, ACTIONS, 2000)
    obs = torch.rand(2000, 2)
    early = sac.act(obs)
    counts = torch.histc(early, bins=10, min=-1, max=1)
    assert ((counts - 600) ** 2 / 600).sum().item() < 27.9  # 9 degrees of freedom, p = 0.001
    sac.step = 100
    assert sac.act(obs).abs().max() <= 1
    assert sac.act(obs, explore=False).abs().max() < 1


def test_both_critics_equal_networks_of_their_own():
    twin = TwinCritic(5, (7, 6))
    obs, actions = torch.rand(4, 2), torch.rand(4, 3)
    q_values = twin(obs, actions)
    for k in range(2):
        hidden = torch.cat([obs, actions], dim=1)
        for layer, (weight, bias) in enumerate(zip(twin.weights, twin.biases, strict=True)):
            hidden = hidden @ weight[k] + bias[k]
            hidden = hidden.relu() if layer < 2 else hidden
        torch.testing.assert_close(q_values[k], hidden.squeeze(1))
    assert not torch.equal(q_values[0], q_values[1])


def test_a_replay_smaller_than_one_step_of_all_environments_is_refused():
    with pytest.raises(UsageError, match=r"--buffer-size 2: must hold one step of all 3 environments"):
        SAC(Config(buffer_size=2), OBSERVATIONS, ACTIONS, 3)
