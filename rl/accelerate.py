"""What surrounds every optimiser step: mixed precision, gradient accumulation, clipping, and the guard against nan."""

import math
import os
import platform
import shutil
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from rl.errors import NotFiniteError, RunError, UsageError
from rl.graph import Graph

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
MODES = ("eager", "graph", "compile")
REPLAY_DEVICES = ("auto", "cpu", "cuda")
EAGER_ON_CPU = "on the CPU: compiling takes longer than it saves"
LEAST_SCALE = 1.0  # fp16 gradients that are not finite even at this loss scale are not finite at all
CHECK_INTERVAL = 100  # updates of a CUDA graph between looks at whether one was not finite: each look waits for the GPU

Metrics = dict[str, Tensor]  # scalars, detached
Loss = Callable[[Any], tuple[Tensor, Metrics]]  # of a batch: the scalar to minimise, and what to log


@dataclass(frozen=True)
class Acceleration:
    """How an agent computes; what it computes is the same, up to rounding."""

    precision: str = "fp32"  # of the networks' matrix products: fp32, bf16 or fp16
    gradient_accumulation: int = 1  # parts that a batch is split into, one after the other through the network
    replay_device: str = "auto"  # where a replay lies: auto, cpu or cuda (see buffers.py)
    mode: str = "eager"  # eager, graph (CUDA graphs) or compile (torch.compile, on a GPU in a CUDA graph)

    def __post_init__(self) -> None:
        if self.precision not in DTYPES:
            raise UsageError(f"--precision {self.precision}: choose one of {', '.join(DTYPES)}")
        if self.gradient_accumulation < 1:
            raise UsageError(f"--gradient-accumulation {self.gradient_accumulation}: must be at least 1")
        if self.mode not in MODES:
            raise UsageError(f"--accelerate {self.mode}: choose one of auto, {', '.join(MODES)}")
        if self.mode == "graph" and self.precision == "fp16":
            raise UsageError(
                "--accelerate graph --precision fp16: the loss scale needs a look at each step; take bf16 or eager"
            )
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


def choose_mode(asked: str, device: str, precision: str) -> tuple[str, str]:
    """How a run computes for which `--accelerate` asked, and why.

    Raises UsageError or RunError for what cannot be done on `device` or on this machine.
    """
    on_gpu = device.startswith("cuda")
    if asked == "graph" and not on_gpu:
        raise UsageError(f"--accelerate graph: CUDA graphs need a GPU, and the device is {device}: give --device cuda")
    compiler = os.environ.get("CXX", "g++")
    if asked == "compile" and not shutil.which(compiler):
        raise RunError(
            f"--accelerate compile: torch.compile needs a C++ compiler, and there is no {compiler} here: "
            "install one (in the image: apt-get install g++, as root), or give --accelerate eager"
        )
    if asked != "auto":
        return asked, "asked for"
    if not on_gpu:
        return "eager", EAGER_ON_CPU
    if precision == "fp16":
        return "eager", "fp16: the loss scale needs a look at each step, which a graph cannot take"
    return "graph", "on a GPU: kernels launched one by one leave it waiting for the CPU"


def keep_compiled_code(device: str) -> Path:
    """Choose the folder in which torch.compile keeps its code, one for each user and kind of device; returns it.

    It lies in the folder that TORCHINDUCTOR_CACHE_DIR names (in the image one on the models volume), since compiling
    takes half a minute: so only the first run pays. Code of another user cannot be read, that of another GPU not used.
    """
    base = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or Path.home() / ".cache" / "torchinductor")
    kind = torch.cuda.get_device_name(device) if device.startswith("cuda") else f"cpu {platform.machine()}"
    name = f"uid{os.getuid()}-{kind.replace(' ', '-').replace('/', '-')}"
    folder = base if base.name == name else base / name
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    return folder


class Optimizer(Protocol):
    """What is asked of an optimiser: one of optimizers.py, or of torch.optim."""

    param_groups: list[dict[str, Any]]

    def step(self) -> Any:  # noqa: ANN401
        """Make one step along the parameters' gradients."""

    def state_dict(self) -> dict[str, Any]:
        """What it remembers from step to step."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""


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
        optimizer: Callable[[list[Tensor]], Optimizer],
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
        if acceleration.mode == "compile":
            self.loss = cast(Loss, torch.compile(loss, dynamic=False))
        self.calls = 0
        self.graph: Graph | None = None
        if acceleration.mode == "graph" or (acceleration.mode == "compile" and "cuda" in device and not self.scaling):
            self.graph = Graph(self._update, device)
            self.kept: list[Tensor] = []  # the latest batch or, once one was not finite, that one
            self.failed = torch.zeros((), device=device)  # 1 once an update was not finite: no step is taken any more
            cast(Any, self.optimizer).found_inf = self.failed

    @property
    def scaling(self) -> bool:
        """Whether the loss is scaled."""
        return self.acceleration.precision == "fp16"

    def __call__(self, batch: Any) -> Metrics:  # noqa: ANN401
        """Take one step; returns the loss's metrics, means over the parts.

        Raises NotFiniteError, with the parameters as they were, when loss or gradients are not finite; in a CUDA graph
        after up to `CHECK_INTERVAL` calls, in which they stay as they were.
        """
        if self.graph:
            return self._replay(self.graph, batch)
        metrics = self.backward(batch)
        if self.scaling:
            self.scaler.step(cast(Any, self.optimizer))
            self.scaler.update()
        else:
            self.optimizer.step()
        return metrics

    def backward(self, batch: Any) -> Metrics:  # noqa: ANN401
        """Leave the clipped gradients in the parameters, and none in any other network that the loss flows through."""
        history, total, norm = self._gradients(batch)
        if not math.isfinite(total + norm):  # the one host read of an update
            self._refuse(batch, history, total)
        self._clip(norm)
        return _mean(history)

    def _gradients(self, batch: Any) -> tuple[list[Metrics], Tensor, Tensor]:  # noqa: ANN401
        """The gradients, in the parameters; returns the metrics of each part, the loss, and the gradients' norm."""
        parameters, parts = list(self.parameters.values()), self._parts(batch)
        for parameter in parameters:
            parameter.grad = None
        total, history = None, []
        for part in parts:
            with self.acceleration.autocast(self.device):
                mean, metrics = self.loss(part)
            mean = mean / len(parts) if len(parts) > 1 else mean
            (self.scaler.scale(mean) if self.scaling else mean).backward(inputs=parameters)
            total = mean.detach() if total is None else total + mean.detach()
            history.append(metrics)
        if self.scaling:
            self.scaler.unscale_(cast(Any, self.optimizer))
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        return history, cast(Tensor, total), torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))

    def _clip(self, norm: Tensor) -> None:
        """Scale the gradients down to `max_grad_norm` (Pascanu et al. 2013)."""
        if self.max_grad_norm:
            gradients = [parameter.grad for parameter in self.parameters.values() if parameter.grad is not None]
            torch._foreach_mul_(gradients, (self.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))

    def _replay(self, graph: Graph, batch: Any) -> Metrics:  # noqa: ANN401
        if not self.kept:
            self.kept = [torch.zeros_like(value) for value in batch]
        (stacked,) = graph(*batch)
        self.calls += 1
        if self.calls % CHECK_INTERVAL == 0 and self.failed:
            failed = self.batch_type(*self.kept)
            self.backward(failed)  # once more, tensor by tensor
            raise NotFiniteError("loss or gradient is not finite", self, failed, [])
        return dict(zip(self.metric_names, stacked.unbind(), strict=True))

    def _update(self, *values: Tensor) -> list[Tensor]:
        """What the graph records: one step without a look at a number; returns the metrics, stacked."""
        history, total, norm = self._gradients(self.batch_type(*values))
        for kept, value in zip(self.kept, values, strict=True):
            kept.copy_(torch.where(self.failed > 0, kept, value))
        self.failed.copy_(torch.maximum(self.failed, (~torch.isfinite(total + norm)).float()))
        self._clip(norm)
        self.optimizer.step()
        metrics = _mean(history)
        self.metric_names = list(metrics)
        return [torch.stack([*metrics.values()]) if metrics else total]

    def _refuse(self, batch: Any, history: list[Metrics], total: Tensor) -> None:  # noqa: ANN401
        """Raise NotFiniteError for the first tensor that is not finite, in the order in which they were computed."""
        overflowed = self.scaling and self.scaler.get_scale() > LEAST_SCALE
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

    def set_learning_rate(self, rate: float) -> None:
        """From the next step on."""
        (group,) = self.optimizer.param_groups
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)  # GPU only
        else:
            group["lr"] = rate

    def state_dict(self) -> dict[str, Any]:
        """The optimiser's state and the loss scale."""
        return {"optimizer": self.optimizer.state_dict(), "scaler": self.scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.optimizer.load_state_dict(state["optimizer"])
        if state["scaler"]:  # none where the checkpoint was made in another precision
            self.scaler.load_state_dict(state["scaler"])


def _mean(history: list[Metrics]) -> Metrics:
    if len(history) == 1:
        return history[0]
    return {name: torch.stack([metrics[name] for metrics in history]).mean() for name in history[0]}
