"""Networks, their initialisation, and policy heads as functions of tensors."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, cast

import gymnasium
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl import entry_point
from rl.errors import UsageError
from rl.frames import is_image


def mlp(sizes: Sequence[int], activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """A multi-layer perceptron: linear layers `sizes[0]` → … → `sizes[-1]` with `activation` between them.

    The Q-network of CartPole, [B, 4] → [B, 2]:

    >>> mlp([4, 128, 128, 2])(torch.zeros(32, 4)).shape
    torch.Size([32, 2])
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


class NatureCNN(nn.Module):
    """The convolutions of Mnih et al. 2015 ("Human-level control through deep reinforcement learning"): 512 features.

    Takes bytes [..., channels, height, width], height and width at least 36, and divides them by 255: they travel and
    are stored as bytes. Returns [..., 512].
    """

    features = 512

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        channels, *size = shape
        convolutions = nn.Sequential(
            nn.Conv2d(channels, 32, 8, stride=4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, stride=1),
            nn.ReLU(),
            nn.Flatten(),
        )
        inputs = convolutions(torch.zeros(1, channels, *size)).shape[1]
        self.layers = nn.Sequential(*convolutions, nn.Linear(inputs, self.features), nn.ReLU())
        cast(Any, self).to(memory_format=torch.channels_last)  # the order that convolutions are fastest in

    def forward(self, obs: Tensor) -> Tensor:
        """Features [..., 512] of pictures [..., channels, height, width]."""
        pictures = obs.reshape(-1, *obs.shape[-3:]).contiguous(memory_format=torch.channels_last).float() / 255
        return self.layers(pictures).reshape(*obs.shape[:-3], self.features)


def q_network(
    observation_space: gymnasium.Space[Any], hidden_sizes: Sequence[int], outputs: int, network: str = ""
) -> nn.Module:
    """Q(s, ·), [B, …] → [B, outputs]: an `mlp` or, for pictures, the network of Mnih et al. 2015.

    Where `network` names a function of the user's own, what that makes.
    """
    if network:
        return made_by(network, observation_space, outputs)
    shape = observation_space.shape or ()
    if is_image(observation_space):
        return nn.Sequential(NatureCNN(shape), nn.Linear(NatureCNN.features, outputs))
    return mlp([math.prod(shape), *hidden_sizes, outputs])


class OfBatches(nn.Module):
    """Gives a network that knows one batch dimension any number of them."""

    def __init__(self, network: nn.Module, shape: Sequence[int]) -> None:
        super().__init__()
        self.network, self.shape = network, tuple(shape)

    def forward(self, obs: Tensor) -> Tensor:
        """[..., outputs] of observations [..., *shape]."""
        leading = obs.shape[: obs.dim() - len(self.shape)]
        return self.network(obs.reshape(-1, *self.shape)).unflatten(0, leading)


def made_by(name: str, observation_space: gymnasium.Space[Any], outputs: int) -> nn.Module:
    """The module that the user's function `module:function` makes, called with the space and the number of outputs.

    It takes observations [B, *space.shape], float32 or the bytes of pictures, and gives [B, outputs]. Raises UsageError
    where it does not.
    """
    network = entry_point.load(name, "--network")(observation_space, outputs)
    if not isinstance(network, nn.Module):
        raise UsageError(f"--network {name}: must return a torch.nn.Module, not {network!r}")
    obs = torch.zeros(2, *(observation_space.shape or ()))
    obs = obs.byte() if is_image(observation_space) else obs
    with torch.no_grad():
        given = [*network(obs).shape]
    if given != [2, outputs]:
        raise UsageError(f"--network {name}: for observations {[*obs.shape]} it must give {[2, outputs]}, not {given}")
    return OfBatches(network, observation_space.shape or ())


def orthogonal_(network: nn.Sequential, last_gain: float) -> nn.Sequential:
    """Initialise in place: orthogonal weights with gain √2, `last_gain` for the last layer, and zero biases.

    As PPO's reference implementation does (Huang et al. 2022, "The 37 Implementation Details of PPO", detail 2):
    `last_gain` 0.01 makes a policy start near uniform, 1 suits a value head.
    """
    layers = [layer for layer in network if isinstance(layer, (nn.Linear, nn.Conv2d))]
    for layer in layers:
        weight = torch.empty(tuple(layer.weight.shape))  # in the order of memory that orthogonal_ takes
        layer.weight.data.copy_(nn.init.orthogonal_(weight, last_gain if layer is layers[-1] else 2**0.5))
        nn.init.zeros_(cast(Tensor, layer.bias))
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


def gaussian_sample(parameters: Tensor, generator: torch.Generator) -> Tensor:
    """Draw actions [N, A] from N(mean, std²); `parameters` [N, 2A] holds the means and the logarithms of the stds."""
    mean, log_std = parameters.chunk(2, dim=-1)
    return mean + log_std.exp() * _normal_like(mean, generator)


def gaussian_log_prob(parameters: Tensor, actions: Tensor) -> Tensor:
    """log π(a|s) of actions [..., A], summed over the action's dimensions: the log-density of independent normals."""
    mean, log_std = parameters.chunk(2, dim=-1)
    return (-0.5 * ((actions - mean) / log_std.exp()).square() - log_std - 0.5 * math.log(2 * math.pi)).sum(dim=-1)


def gaussian_entropy(parameters: Tensor) -> Tensor:
    """Entropy ½ log(2πe σ²), summed over the action's dimensions, in nats."""
    _, log_std = parameters.chunk(2, dim=-1)
    return (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(dim=-1)


def squashed(parameters: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions tanh(u), u = mean + std · noise, in ±1, and their log-densities (Haarnoja et al. 2018, appendix C).

    With `noise` [B, A] from N(0, 1) both are draws, differentiable in `parameters` [B, 2A]; returns [B, A] and [B]. The
    change of variables subtracts log(1 − tanh²u), here as 2 (log 2 − u − softplus(−2u)), which does not overflow.
    """
    mean, log_std = parameters.chunk(2, dim=-1)
    log_std = log_std.clamp(-20, 2)
    raw = mean + log_std.exp() * noise
    log_density = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    log_slope = 2 * (math.log(2) - raw - nn.functional.softplus(-2 * raw))
    return raw.tanh(), (log_density - log_slope).sum(dim=-1)


def _normal_like(reference: Tensor, generator: torch.Generator) -> Tensor:
    return torch.empty_like(reference).normal_(generator=generator)


class Head(NamedTuple):
    """What an agent asks of its policy's distribution, on the parameters [..., P] that the network gives."""

    sample: Callable[[Tensor, torch.Generator], Tensor]
    mode: Callable[[Tensor], Tensor]
    log_prob: Callable[[Tensor, Tensor], Tensor]
    entropy: Callable[[Tensor], Tensor]


CATEGORICAL = Head(categorical_sample, lambda logits: logits.argmax(dim=-1), categorical_log_prob, categorical_entropy)
GAUSSIAN = Head(gaussian_sample, lambda parameters: parameters.chunk(2, dim=-1)[0], gaussian_log_prob, gaussian_entropy)


class ActorCritic(nn.Module):
    """A policy network and a value network with tanh and orthogonal initialisation, apart from one another.

    For pictures they are one linear layer each on the features of a `NatureCNN` that they share, as in PPO's reference
    implementation; with `shared_trunk` they share their hidden layers in the same way. Where `network` names a function
    of the user's own, both are what that makes. Discrete actions: the policy
    gives logits. Continuous ones, in ±1: it gives means, beside a standard deviation for each dimension that does not
    depend on the state and starts at 1 (Huang et al. 2022, continuous details 1 to 3).
    """

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        hidden_sizes: Sequence[int],
        shared_trunk: bool = False,
        network: str = "",
    ) -> None:
        super().__init__()
        shape = observation_space.shape or ()
        if isinstance(action_space, spaces.Discrete):
            self.head, outputs, self.log_std = CATEGORICAL, int(action_space.n), None
        else:
            self.head, outputs = GAUSSIAN, math.prod(action_space.shape or ())
            self.log_std = nn.Parameter(torch.zeros(outputs))
        self.trunk: nn.Module = nn.Identity()
        if network:
            self.actor: nn.Module = made_by(network, observation_space, outputs)
            self.critic: nn.Module = made_by(network, observation_space, 1)
            return
        sizes = [math.prod(shape), *hidden_sizes]
        if is_image(observation_space):
            self.trunk = NatureCNN(shape)
            orthogonal_(self.trunk.layers, last_gain=2**0.5)
            sizes = [NatureCNN.features]
        elif shared_trunk:
            self.trunk = orthogonal_(nn.Sequential(*mlp(sizes, nn.Tanh), nn.Tanh()), last_gain=2**0.5)
            sizes = sizes[-1:]
        self.actor = orthogonal_(mlp([*sizes, outputs], nn.Tanh), last_gain=0.01)
        self.critic = orthogonal_(mlp([*sizes, 1], nn.Tanh), last_gain=1.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """`policy` and `value` together: what they share is computed once."""
        features = self.trunk(obs)
        return self._head_parameters(features), self.critic(features).float().squeeze(-1)

    def policy(self, obs: Tensor) -> Tensor:
        """The parameters of π(·|s) for observations [..., size]: what the head's functions take."""
        return self._head_parameters(self.trunk(obs))

    def value(self, obs: Tensor) -> Tensor:
        """V(s) of observations [..., size], [...]."""
        return self.critic(self.trunk(obs)).float().squeeze(-1)

    def _head_parameters(self, features: Tensor) -> Tensor:
        outputs = self.actor(features).float()
        return outputs if self.log_std is None else torch.cat([outputs, self.log_std.expand_as(outputs)], dim=-1)


class TwinCritic(nn.Module):
    """Two networks Q(s, a) of the same form, computed together: one batched matrix product for each layer."""

    def __init__(self, inputs: int, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        sizes = [inputs, *hidden_sizes, 1]
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for fan_in, fan_out in pairwise(sizes):
            bound = fan_in**-0.5  # as nn.Linear
            self.weights.append(torch.empty(2, fan_in, fan_out).uniform_(-bound, bound))
            self.biases.append(torch.empty(2, 1, fan_out).uniform_(-bound, bound))

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Q-values [2, B] of observations [B, S] and actions [B, A]."""
        hidden = torch.cat([obs, actions], dim=-1).expand(2, -1, -1)
        last = len(self.weights) - 1
        for i in range(last):  # by number: the compiler of torch 2.7 knows no other way through a ParameterList
            hidden = torch.baddbmm(self.biases[i], hidden, self.weights[i]).relu()
        return torch.baddbmm(self.biases[last], hidden, self.weights[last]).float().squeeze(-1)
