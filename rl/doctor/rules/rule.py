"""What a rule is: data that the report and the documentation print, and one pure function that judges."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

Severity = Literal["fatal", "degraded", "info"]  # no GPU work possible; works, but less well; nothing to mend
Place = Literal["host", "inside", "docker", "compose", "podman", "kubernetes", "apptainer", "lxc", "wsl"]


@dataclass(frozen=True)
class Fix:
    """One command, and where it is typed. `<words>` stand for what only the user knows, or for a value of `found`."""

    where: Place
    command: str
    note: str = ""  # when it applies


@dataclass(frozen=True)
class Finding:
    """One cause, found here. `id` is stable: scripts and bug reports refer to it."""

    id: str
    severity: Severity
    cause: str  # one sentence without its full stop, fit for a headline
    evidence: tuple[str, ...] = ()
    fixes: tuple[Fix, ...] = ()


@dataclass(frozen=True)
class Found:
    """What a rule's function returns where the rule holds; see `found`."""

    evidence: tuple[str, ...]
    severity: Severity | None = None
    fixes: tuple[Fix, ...] | None = None
    values: dict[str, str] = field(default_factory=dict)


def found(
    *evidence: str, severity: Severity | None = None, fixes: tuple[Fix, ...] | None = None, **values: object
) -> Found:
    """The rule holds, and this shows it. `severity` and `fixes` replace the rule's own; each of `values` fills in its
    `<name>` in the cause and in the fixes.
    """
    return Found(evidence, severity, fixes, {name: str(value) for name, value in values.items()})


FactsT = TypeVar("FactsT")


@dataclass(frozen=True)
class Rule(Generic[FactsT]):
    """One failure. Called with facts it gives a finding, or None; its other fields are for the documentation, too."""

    id: str
    severity: Severity
    cause: str
    symptom: str  # what the user sees: the messages of other programs, as they print them
    fixes: tuple[Fix, ...]
    check: Callable[[FactsT], Found | None]  # its docstring says how the failure is detected, and when not

    def __call__(self, facts: FactsT) -> Finding | None:
        """Judge."""
        seen = self.check(facts)
        if seen is None:
            return None
        fixes = self.fixes if seen.fixes is None else seen.fixes
        return Finding(
            self.id,
            seen.severity or self.severity,
            _fill(self.cause, seen.values),
            seen.evidence,
            tuple(Fix(fix.where, _fill(fix.command, seen.values), _fill(fix.note, seen.values)) for fix in fixes),
        )


def rule(
    rule_id: str, severity: Severity, *, cause: str, symptom: str, fixes: tuple[Fix, ...]
) -> Callable[[Callable[[FactsT], Found | None]], Rule[FactsT]]:
    """Make a `Rule` of the function below it."""
    return lambda check: Rule(rule_id, severity, cause, symptom, fixes, check)


def _fill(text: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"<{name}>", value)
    return text
