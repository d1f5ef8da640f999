"""The state of a random generator, in and out of checkpoints."""

import torch
from torch import Tensor


def restore(generator: torch.Generator, state: Tensor | None) -> None:
    """Go on where `state` was taken. A GPU's generator and the CPU's have different states: one of the other kind, or
    None, leaves the generator as it was seeded, and the run goes on with other draws.
    """
    if state is not None and state.shape == generator.get_state().shape:
        generator.set_state(state)
