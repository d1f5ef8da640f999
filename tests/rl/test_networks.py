import pytest
import torch
from torch.distributions import Categorical

from rl.networks import categorical_entropy, categorical_log_prob, categorical_sample, mlp, orthogonal_

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
