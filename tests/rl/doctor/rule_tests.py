"""`@fires(id)` and `@silent(id)` make a test of a function that builds a machine: the rule speaks there, or is still.

test_every_rule.py asks that every rule has both, and that no rule speaks on the healthy machines.
"""

import functools
from collections import defaultdict
from collections.abc import Callable

from rl.doctor.rules import Finding, judge, start
from rl.doctor.schema import Facts
from rl.doctor.schema.host import HostFacts

Machine = Callable[..., Facts | HostFacts]
Test = Callable[..., None]

TESTED: dict[str, set[tuple[str, str]]] = defaultdict(set)  # rule → fires or silent, and the test: its file.name


def found_on(machine: Facts | HostFacts) -> list[Finding]:
    return start.judge(machine) if isinstance(machine, HostFacts) else judge(machine)


def fires(rule_id: str, *words: str, severity: str | None = None) -> Callable[[Machine], Test]:
    """The rule speaks on this machine: as the headline where it is fatal, and with all of `words`."""

    def make(machine: Machine) -> Test:
        TESTED[rule_id].add(("fires", f"{machine.__module__}.{machine.__name__}"))

        @functools.wraps(machine)
        def test(*args, **kwargs) -> None:
            findings = found_on(machine(*args, **kwargs))
            assert rule_id in [finding.id for finding in findings]
            finding = next(finding for finding in findings if finding.id == rule_id)
            if severity:
                assert finding.severity == severity
            if finding.severity == "fatal":
                assert findings[0].id == rule_id
            said = "\n".join(
                (finding.cause, *finding.evidence, *(f"{fix.note} {fix.command}" for fix in finding.fixes))
            )
            for word in words:
                assert word in said

        test.__annotations__ = {}
        return test

    return make


def silent(rule_id: str) -> Callable[[Machine], Test]:
    """The rule keeps still on this machine, the nearest neighbour of one where it speaks."""

    def make(machine: Machine) -> Test:
        TESTED[rule_id].add(("silent", f"{machine.__module__}.{machine.__name__}"))

        @functools.wraps(machine)
        def test(*args, **kwargs) -> None:
            assert rule_id not in [finding.id for finding in found_on(machine(*args, **kwargs))]

        test.__annotations__ = {}
        return test

    return make
