"""The errors that a user can mend; the command line prints their message alone and exits with their code."""

from collections.abc import Sequence
from typing import Any


class UsageError(ValueError):
    """What was asked for cannot be done on any machine: an unknown name, a value out of range. Exit code 2."""

    exit_code = 2


class RunError(RuntimeError):
    """What was asked for failed here: no such device, a folder that cannot be written, a broken file. Exit code 1."""

    exit_code = 1


class NotFiniteError(RunError):
    """A number is nan or infinite, and learning on would spoil the networks.

    From an update it carries the `Descent` that failed, its batch, and the tensors computed, by name.
    """

    def __init__(
        self,
        message: str,
        descent: object = None,
        batch: Any = None,  # noqa: ANN401
        tensors: Sequence[tuple[str, Any]] = (),
    ) -> None:
        super().__init__(message)
        self.descent, self.batch, self.tensors = descent, batch, tensors
