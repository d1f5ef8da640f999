"""Distributions against torch's own (pitfalls 4.3: 1, 11, 12, 32)."""

import pytest
import torch
from gymnasium import spaces
from torch.distributions import Categorical, Independent, Normal, TanhTransform, TransformedDistribution

from rl.networks import (
    ActorCritic,
    categorical_entropy,
    categorical_log_prob,
    categorical_sample,
    gaussian_entropy,
    gaussian_log_prob,
    gaussian_sample,
    mlp,
    orthogonal_,
    squashed,
)

LOGITS = torch.tensor([[0.0, 1.0, -2.0], [3.0, 3.0, 3.0]])


def test_the_q_network_of_the_mission_has_the_missions_layers():
    network = mlp([4, 128, 128, 2])
    assert [tuple(parameter.shape) for parameter in network.parameters()] == [
        (128, 4), (128,), (128, 128), (128,), (2, 128), (2,),
    ]  # fmt: skip
    assert network(torch.zeros(7, 4)).shape == (7, 2)
    assert isinstance(network[-1], torch.nn.Linear)  # no activation after the last layer


@pytest.mark.parametrize("last_gain", [0.01, 1.0])
def test_orthogonal_layers_have_the_gains_of_the_reference_implementation(last_gain):
    network = orthogonal_(mlp([8, 8, 8, 2], torch.nn.Tanh), last_gain)
    for layer, gain in ((network[0], 2**0.5), (network[2], 2**0.5), (network[4], last_gain)):
        product = layer.weight @ layer.weight.T
        torch.testing.assert_close(product, gain**2 * torch.eye(len(product)), atol=1e-5, rtol=1e-5)
        assert not layer.bias.any()


def test_log_probabilities_and_entropy_equal_torchs_own():
    actions = torch.tensor([2, 0])
    reference = Categorical(logits=LOGITS)
    torch.testing.assert_close(categorical_log_prob(LOGITS, actions), reference.log_prob(actions))
    torch.testing.assert_close(categorical_entropy(LOGITS), reference.entropy())


def test_actions_are_drawn_as_often_as_their_probabilities_say():
    draws = categorical_sample(LOGITS[:1].expand(30_000, 3), torch.Generator().manual_seed(0))
    counts = torch.bincount(draws, minlength=3)
    expected = LOGITS[0].softmax(0) * 30_000
    assert ((counts - expected) ** 2 / expected).sum().item() < 13.8  # 2 degrees of freedom, p = 0.001


def test_actions_are_drawn_by_the_given_generator_alone():
    global_state = torch.get_rng_state()
    generator = torch.Generator().manual_seed(3)
    first = categorical_sample(LOGITS.repeat(50, 1), generator)
    second = categorical_sample(LOGITS.repeat(50, 1), generator)
    again = categorical_sample(LOGITS.repeat(50, 1), torch.Generator().manual_seed(3))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), global_state)


MEAN, LOG_STD = torch.tensor([[0.3, -1.0]]), torch.tensor([[-0.5, 0.2]])
PARAMETERS = torch.cat([MEAN, LOG_STD], dim=1)
NORMAL = Independent(Normal(MEAN, LOG_STD.exp()), 1)


def test_gaussian_log_probability_and_entropy_are_joint_over_the_dimensions():
    actions = torch.tensor([[0.7, -3.0]])
    torch.testing.assert_close(gaussian_log_prob(PARAMETERS, actions), NORMAL.log_prob(actions))
    torch.testing.assert_close(gaussian_entropy(PARAMETERS), NORMAL.entropy())


def test_gaussian_draws_have_the_mean_and_the_spread_asked_for():
    draws = gaussian_sample(PARAMETERS.expand(50_000, 4), torch.Generator().manual_seed(0))
    torch.testing.assert_close(draws.mean(dim=0), MEAN[0], atol=0.02, rtol=0)
    torch.testing.assert_close(draws.std(dim=0), LOG_STD[0].exp(), atol=0.02, rtol=0)


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_squashed_draws_carry_the_log_density_of_the_change_of_variables():
    actions, log_probs = squashed(PARAMETERS.expand(1000, 4).double(), noise(1000, 2).double())
    reference = TransformedDistribution(NORMAL, TanhTransform(cache_size=0))
    torch.testing.assert_close(log_probs, reference.log_prob(actions), atol=1e-5, rtol=1e-5)


def test_the_squashed_density_of_one_dimension_integrates_to_one():
    """By importance: the mean of 1/density over draws is the length of the interval (−1, 1)."""
    actions, log_probs = squashed(torch.tensor([[0.2, -0.3]]).expand(200_000, 2), noise(200_000, 1))
    inside = (actions.abs() < 0.9).squeeze(1)  # where the weights have a finite variance
    assert (inside / log_probs.exp()).mean().item() == pytest.approx(1.8, rel=0.02)


def test_a_squashed_draw_far_out_has_a_finite_log_density_and_gradient():
    parameters = torch.tensor([[50.0, 1.0]], requires_grad=True)
    action, log_prob = squashed(parameters, noise(1, 1))
    assert action.item() == 1.0
    (action.sum() + log_prob.sum()).backward()
    assert torch.isfinite(log_prob).all()
    assert torch.isfinite(parameters.grad).all()


def test_a_shared_trunk_is_learned_by_policy_and_value_and_starts_as_separate_layers_do():
    torch.manual_seed(0)
    network = ActorCritic(spaces.Box(-1, 1, (4,)), spaces.Discrete(2), (16, 16), shared_trunk=True)
    obs = torch.randn(5, 4)
    parameters, values = network(obs)
    for output in (parameters, values):
        gradients = torch.autograd.grad(output.square().sum(), list(network.trunk.parameters()), retain_graph=True)
        assert all(gradient.abs().sum() > 0 for gradient in gradients)
    assert len(network.actor) == len(network.critic) == 1
    singular = torch.linalg.svdvals(network.trunk[2].weight)
    torch.testing.assert_close(singular, torch.full((16,), 2**0.5))
    torch.testing.assert_close(network.policy(obs), parameters)
    torch.testing.assert_close(network.value(obs), values)
