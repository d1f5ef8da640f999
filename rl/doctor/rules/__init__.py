"""The rules: pure functions from facts to one finding or none, a module for each subject.

Those on the way to the GPU stand in the order in which one failure brings about the next, so the first fatal one is the
cause, and what comes after it is not asked. Symptoms, which say that something fails without knowing why, come last.
"""

from collections.abc import Iterable

from rl.doctor.rules import (
    access,
    driver,
    driver_state,
    given,
    gpu_state,
    gpu_use,
    host,
    libraries,
    nodes,
    symptoms,
    torch_build,
)
from rl.doctor.rules.rule import Finding, Fix, Rule
from rl.doctor.schema import Facts

__all__ = ["RULES", "Finding", "Fix", "Rule", "judge"]

TORCH: tuple[Rule[Facts], ...] = torch_build.RULES
WAY_TO_THE_GPU: tuple[Rule[Facts], ...] = (
    *host.RULES,
    libraries.sharing_layer,
    *driver.CALLS,
    *given.RULES,
    *libraries.RULES,
    *access.RULES,
    *nodes.RULES,
    *driver_state.RULES,
    *driver.RULES,
    *gpu_state.RULES,
    *gpu_use.RULES,
    *torch_build.FIT,
)
BESIDE: tuple[Rule[Facts], ...] = ()  # independent of each other
RULES = (given.hidden_on_purpose, *WAY_TO_THE_GPU, *TORCH, *symptoms.RULES, *BESIDE)
_RANK = {"fatal": 0, "degraded": 1, "info": 2}


def judge(facts: Facts) -> list[Finding]:
    """All findings, the one for the headline first."""
    hidden = given.hidden_on_purpose(facts)
    # Whoever hides the GPU wants the CPU: what else may be wrong with the GPU is no news then.
    findings = [hidden] if hidden else _until_fatal(WAY_TO_THE_GPU, facts)
    findings += _until_fatal(TORCH, facts)
    if not hidden and all(finding.severity != "fatal" for finding in findings):
        findings += _until_fatal(symptoms.RULES, facts)[:1]
    findings += [finding for rule in BESIDE if (finding := rule(facts))]
    return sorted(findings, key=lambda finding: _RANK[finding.severity])


def _until_fatal(rules: Iterable[Rule[Facts]], facts: Facts) -> list[Finding]:
    findings = []
    for rule in rules:
        if finding := rule(facts):
            findings.append(finding)
            if finding.severity == "fatal":
                break
    return findings
