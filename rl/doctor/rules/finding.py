"""What a rule returns: a finding, and the commands that mend it, as data."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["fatal", "degraded", "info"]  # no GPU work possible; works, but less well; nothing to mend


@dataclass(frozen=True)
class Fix:
    """One command, and where it is typed: an engine's name, `host`, `inside` the container, or `wsl`."""

    where: str
    command: str
    note: str = ""  # when it applies


@dataclass(frozen=True)
class Finding:
    """One cause. `id` is stable: scripts and bug reports refer to it."""

    id: str
    severity: Severity
    cause: str  # one sentence without its full stop, fit for a headline
    evidence: tuple[str, ...] = ()
    fixes: tuple[Fix, ...] = ()
