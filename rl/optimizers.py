"""Adam and RMSProp by torch's own kernels, without torch.optim around them.

They give the numbers of torch.optim.Adam(fused=True) and torch.optim.RMSprop, by test. torch.optim imports the compiler
when its first optimiser is made, which takes longer than `import torch` itself and a third more memory, and spends five
times as long around Adam's kernel as the kernel takes for a small network: both are measured in docs/performance.md.

Two things serve CUDA graphs: on a GPU the learning rate is a tensor, and where `found_inf` (torch's name for it) holds
1, a step leaves the parameters as they are.
"""

from typing import Any

import torch
from torch import Tensor


class Adam:
    """Adam (Kingma & Ba 2015, algorithm 1, with β₁ = 0.9 and β₂ = 0.999)."""

    def __init__(self, parameters: list[Tensor], learning_rate: float, eps: float = 1e-8) -> None:
        self.param_groups: list[dict[str, Any]] = [
            {"params": parameters, "lr": _rate(learning_rate, parameters[0]), "betas": (0.9, 0.999), "eps": eps}
        ]
        self.means = [torch.zeros_like(parameter) for parameter in parameters]
        self.squares = [torch.zeros_like(parameter) for parameter in parameters]
        self.steps = torch.zeros((), device=parameters[0].device)
        self.found_inf: Tensor | None = None

    @torch.no_grad()
    def step(self) -> None:
        """Make one step along the parameters' gradients."""
        (group,) = self.param_groups
        parameters, (beta1, beta2) = group["params"], group["betas"]
        self.steps += 1
        torch._fused_adam_(
            parameters,
            _gradients(parameters),
            self.means,
            self.squares,
            [],  # maxima, of AMSGrad
            [self.steps] * len(parameters),
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=0.0,
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
            found_inf=self.found_inf,
        )
        if self.found_inf is not None:
            self.steps -= self.found_inf

    def state_dict(self) -> dict[str, Any]:
        """Moments and the number of steps."""
        return {"means": self.means, "squares": self.squares, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore in place what `state_dict` returned."""
        _copy([*self.means, *self.squares, self.steps], [*state["means"], *state["squares"], state["steps"]])


class RMSprop:
    """RMSProp (Tieleman & Hinton 2012, lecture 6.5), ε outside the root: θ ← θ − η g / (√E[g²] + ε)."""

    def __init__(self, parameters: list[Tensor], learning_rate: float, alpha: float = 0.99, eps: float = 1e-5) -> None:
        self.param_groups: list[dict[str, Any]] = [
            {"params": parameters, "lr": _rate(learning_rate, parameters[0]), "alpha": alpha, "eps": eps}
        ]
        self.squares = [torch.zeros_like(parameter) for parameter in parameters]  # E[g²]
        self.found_inf: Tensor | None = None

    @torch.no_grad()
    def step(self) -> None:
        """Make one step along the parameters' gradients."""
        (group,) = self.param_groups
        gradients = _gradients(group["params"])
        if self.found_inf is not None:
            gradients = [torch.where(self.found_inf > 0, 0.0, gradient) for gradient in gradients]
        self.apply(group["params"], gradients)

    def apply(self, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        """Move `parameters` along `gradients`."""
        (group,) = self.param_groups
        torch._foreach_mul_(self.squares, group["alpha"])
        torch._foreach_addcmul_(self.squares, gradients, gradients, 1 - group["alpha"])
        roots = torch._foreach_sqrt(self.squares)
        torch._foreach_add_(roots, group["eps"])
        if isinstance(group["lr"], Tensor):
            torch._foreach_sub_(parameters, torch._foreach_mul(torch._foreach_div(gradients, roots), group["lr"]))
        else:
            torch._foreach_addcdiv_(parameters, gradients, roots, -group["lr"])

    def state_dict(self) -> dict[str, Any]:
        """The running mean of squared gradients."""
        return {"squares": self.squares}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore in place what `state_dict` returned."""
        _copy(self.squares, state["squares"])


def _gradients(parameters: list[Tensor]) -> list[Tensor]:
    """0 for a parameter that the loss did not depend on."""
    return [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]


def _rate(value: float, parameter: Tensor) -> float | Tensor:
    return torch.tensor(value, device=parameter.device) if parameter.is_cuda else value


def _copy(stored: list[Tensor], saved: list[Tensor]) -> None:
    for target, source in zip(stored, saved, strict=True):
        target.copy_(source)
