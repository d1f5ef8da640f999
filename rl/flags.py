"""Command lines: flags from dataclasses, and errors that end in one message."""

import sys
from collections.abc import Callable
from typing import Annotated, Any

import tyro

from rl.errors import RunError, UsageError


def parse(arguments: list[str], *defaults: Any, prog: str, description: str) -> tuple[Any, ...]:  # noqa: ANN401
    """One flag for each field of the dataclass instances `defaults`; returns them with what was given filled in.

    Exits with 2 after a message for a flag or value that does not fit, and with 0 after --help.
    """
    flat = tyro.conf.arg(name="")
    kinds = tuple(Annotated[type(default), flat] for default in defaults)
    filled: tuple[Any, ...] = tyro.cli(
        tuple[kinds],  # type: ignore[valid-type]
        args=arguments,
        default=defaults,
        prog=prog,
        description=description,
    )
    return filled


def run_command(command: Callable[[list[str]], int], arguments: list[str]) -> int:
    """Call `command`; what the user can mend ends in one message and its exit code, never in a traceback."""
    try:
        return command(arguments)
    except (UsageError, RunError) as error:
        print(f"{sys.argv[0].rsplit('/', 1)[-1].replace('__main__.py', 'rl')}: {error}", file=sys.stderr)
        return error.exit_code
