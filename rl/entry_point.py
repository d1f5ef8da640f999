"""Functions and classes of the user's own, by their name `module:function`: what a run's configuration can hold."""

import importlib
from collections.abc import Callable
from typing import Any

from rl.errors import UsageError


def load(name: str, flag: str) -> Callable[..., Any]:
    """What `module:function` names, imported. Raises UsageError, which names `flag`, where there is no such thing."""
    module, _, attribute = name.rpartition(":")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except (ModuleNotFoundError, ValueError) as error:
        raise UsageError(f"{flag} {name}: give module:function, where module.py lies in the work folder") from error
    if callable(found):
        return found
    if module == "__main__":
        raise UsageError(
            f"{flag} {attribute}: it was defined in a notebook or script. Go on there, by rl.train.resume, or move "
            "it to a module of its own before training"
        )
    raise UsageError(f"{flag} {name}: module {module} has no function {attribute}")


def name_of(function: Callable[..., Any], argument: str) -> str:
    """The name by which `load` finds a function again. Raises UsageError where it cannot: a lambda, an inner one."""
    name = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"
    if "." in name.rpartition(":")[2] or load(name, argument) is not function:
        raise UsageError(
            f"{argument}: give a function that stands at the top level of a module or notebook, so that a resumed run "
            f"finds it again, not {function!r}"
        )
    return name
