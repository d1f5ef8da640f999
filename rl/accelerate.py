"""What surrounds every optimiser step: mixed precision, gradient accumulation, clipping, and the guard against nan."""

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rl.errors import NotFiniteError, UsageError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
REPLAY_DEVICES = ("auto", "cpu", "cuda")
LEAST_SCALE = 1.0  # fp16 gradients that are not finite even at this loss scale are not finite at all

Metrics = dict[str, Tensor]  # scalars, detached
Loss = Callable[[Any], tuple[Tensor, Metrics]]  # of a batch: the scalar to minimise, and what to log


@dataclass(frozen=True)
class Acceleration:
    """How an agent computes; what it computes is the same, up to rounding."""

    precision: str = "fp32"  # of the networks' matrix products: fp32, bf16 or fp16
    gradient_accumulation: int = 1  # parts that a batch is split into, one after the other through the network
    replay_device: str = "auto"  # where a replay lies: auto, cpu or cuda (see buffers.py)

    def __post_init__(self) -> None:
        if self.precision not in DTYPES:
            raise UsageError(f"--precision {self.precision}: choose one of {', '.join(DTYPES)}")
        if self.gradient_accumulation < 1:
            raise UsageError(f"--gradient-accumulation {self.gradient_accumulation}: must be at least 1")
        if self.replay_device not in REPLAY_DEVICES:
            raise UsageError(f"--replay-device {self.replay_device}: choose one of {', '.join(REPLAY_DEVICES)}")

    def autocast(self, device: str) -> AbstractContextManager[Any]:
        """Inside, networks multiply in `precision`; what they return is float32 again (see networks.py)."""
        if self.precision == "fp32":
            return nullcontext()
        # no cache of cast weights: one made under no_grad would cut the gradient of a later use
        return torch.autocast(torch.device(device).type, DTYPES[self.precision], cache_enabled=False)

    def check_splits(self, size: int, what: str) -> None:
        """Raise UsageError where a batch of `size` cannot be split into equal parts."""
        if size % self.gradient_accumulation:
            raise UsageError(f"--gradient-accumulation {self.gradient_accumulation}: must divide {what} = {size}")


class Descent:
    """An optimiser together with the loss that it minimises: one call is one step.

    A batch is a named tuple of tensors. `gradient_accumulation` splits it along `split_dim` and adds up the gradients
    of the parts' means, which is the gradient of the whole batch's mean, in less memory. With fp16 the loss is scaled
    so that small gradients do not vanish (Micikevicius et al. 2018, "Mixed Precision Training"); they are unscaled
    before they are clipped, and a step whose gradients overflowed is left out.
    """

    def __init__(
        self,
        loss: Loss,
        batch_type: Callable[..., Any],
        parameters: Iterable[tuple[str, nn.Parameter | Tensor]],
        optimizer: Callable[[list[Tensor]], torch.optim.Optimizer],
        device: str,
        acceleration: Acceleration,
        *,
        max_grad_norm: float | None = None,
        split_dim: int = 0,
    ) -> None:
        self.loss, self.batch_type, self.device, self.acceleration = loss, batch_type, device, acceleration
        self.parameters: dict[str, Tensor] = dict(parameters)
        self.optimizer = optimizer(list(self.parameters.values()))
        self.max_grad_norm, self.split_dim = max_grad_norm, split_dim
        self.scaler = torch.amp.GradScaler(torch.device(device).type, enabled=acceleration.precision == "fp16")

    def __call__(self, batch: Any) -> Metrics:  # noqa: ANN401
        """Take one step; returns the loss's metrics, means over the parts.

        Raises NotFiniteError, with the parameters as they were, when loss or gradients are not finite.
        """
        metrics = self.backward(batch)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return metrics

    def backward(self, batch: Any) -> Metrics:  # noqa: ANN401
        """Leave the clipped gradients in the parameters, and none in any other network that the loss flows through."""
        self.optimizer.zero_grad()
        parameters, parts = list(self.parameters.values()), self._parts(batch)
        total, history = torch.zeros((), device=self.device), []
        for part in parts:
            with self.acceleration.autocast(self.device):
                mean, metrics = self.loss(part)
            mean = mean / len(parts) if len(parts) > 1 else mean
            self.scaler.scale(mean).backward(inputs=parameters)
            total = total + mean.detach()
            history.append(metrics)
        self.scaler.unscale_(self.optimizer)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        if not math.isfinite(total + norm):  # the one host read of an update
            self._refuse(batch, history, total)
        if self.max_grad_norm:
            nn.utils.clip_grads_with_norm_(parameters, self.max_grad_norm, norm)
        if len(parts) == 1:
            return history[0]
        return {name: torch.stack([metrics[name] for metrics in history]).mean() for name in history[0]}

    def _refuse(self, batch: Any, history: list[Metrics], total: Tensor) -> None:  # noqa: ANN401
        """Raise NotFiniteError for the first tensor that is not finite, in the order in which they were computed."""
        overflowed = self.scaler.is_enabled() and self.scaler.get_scale() > LEAST_SCALE
        if overflowed and torch.isfinite(total):
            return  # the scaler leaves this step out and lowers its scale
        named = [
            *((f"batch.{name}", value) for name, value in batch._asdict().items()),
            *((f"parameter {name}", value) for name, value in self.parameters.items()),
            *((name, value) for metrics in history for name, value in metrics.items()),
            ("loss", total),
            *((f"gradient of {name}", value.grad) for name, value in self.parameters.items() if value.grad is not None),
        ]
        first = next((name for name, value in named if not torch.isfinite(value).all()), "norm of the gradient")
        raise NotFiniteError(f"{first} is not finite", self, batch, named)

    def _parts(self, batch: Any) -> list[Any]:  # noqa: ANN401
        count = self.acceleration.gradient_accumulation
        if count == 1:
            return [batch]
        split = (value.chunk(count, self.split_dim) for value in batch)
        return [self.batch_type(*part) for part in zip(*split, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        """The optimiser's state and the loss scale."""
        return {"optimizer": self.optimizer.state_dict(), "scaler": self.scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.optimizer.load_state_dict(state["optimizer"])
        if state["scaler"]:  # none where the checkpoint was made in another precision
            self.scaler.load_state_dict(state["scaler"])
