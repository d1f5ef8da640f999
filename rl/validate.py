"""Checks of a configuration's numbers, with messages that name the flag and what it may be."""

from collections.abc import Callable, Sequence

from rl.errors import UsageError


def check_fields(
    config: object,
    *,
    at_least_1: Sequence[str] = (),
    not_negative: Sequence[str] = (),
    above_0: Sequence[str] = (),
    between_0_and_1: Sequence[str] = (),
) -> None:
    """Raise UsageError for the first field of a dataclass that is not what its list says; nan is never right."""
    rules: tuple[tuple[Sequence[str], Callable[[float], bool], str], ...] = (
        (at_least_1, lambda value: value >= 1, "must be at least 1"),
        (not_negative, lambda value: value >= 0, "must be 0 or more"),
        (above_0, lambda value: value > 0, "must be above 0"),
        (between_0_and_1, lambda value: 0 <= value <= 1, "must lie between 0 and 1"),
    )
    for names, holds, message in rules:
        for name in names:
            value = getattr(config, name)
            if not holds(value):
                raise UsageError(f"--{name.replace('_', '-')} {value}: {message}")
