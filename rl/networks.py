"""Networks, their initialisation, and policy heads as functions of tensors."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


def mlp(sizes: Sequence[int], activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """A multi-layer perceptron: linear layers `sizes[0]` → … → `sizes[-1]` with `activation` between them.

    `mlp([4, 128, 128, 2])` is the Q-network of CartPole: [B, 4] → [B, 2].
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


def orthogonal_(network: nn.Sequential, last_gain: float) -> nn.Sequential:
    """Initialise in place: orthogonal weights with gain √2, `last_gain` for the last layer, and zero biases.

    As PPO's reference implementation does (Huang et al. 2022, "The 37 Implementation Details of PPO", detail 2):
    `last_gain` 0.01 makes a policy start near uniform, 1 suits a value head.
    """
    linears = [layer for layer in network if isinstance(layer, nn.Linear)]
    for layer in linears:
        nn.init.orthogonal_(layer.weight, last_gain if layer is linears[-1] else 2**0.5)
        nn.init.zeros_(layer.bias)
    return network


def categorical_sample(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Draw actions [N] from softmax(logits), logits [N, A].

    By the exponential race: with E_a ~ Exp(1), argmax_a p_a / E_a is distributed as p. One kernel, no host read, and
    the draw comes from `generator`, which the checkpoint holds.
    """
    probabilities = logits.softmax(dim=-1)
    return (probabilities / torch.empty_like(probabilities).exponential_(generator=generator)).argmax(dim=-1)


def categorical_log_prob(logits: Tensor, actions: Tensor) -> Tensor:
    """log π(a|s) of int64 actions [B] under logits [B, A]; returns [B]."""
    return logits.log_softmax(dim=-1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def categorical_entropy(logits: Tensor) -> Tensor:
    """Entropy −Σ_a π(a|s) log π(a|s) in nats, [B], of logits [B, A]."""
    log_probs = logits.log_softmax(dim=-1)
    return -(log_probs.exp() * log_probs).sum(dim=-1)
