"""The rules: pure functions from facts to one finding or none, a module for each subject.

Those on the way to the GPU stand in the order in which one failure brings about the next, so the first fatal one is the
cause, and what comes after it is not asked. Symptoms, which say that something fails without knowing why, come last.
"""

from collections.abc import Iterable

from rl.doctor.rules import (
    access,
    compiling,
    driver,
    driver_state,
    given,
    gpu_state,
    gpu_use,
    host,
    libraries,
    nodes,
    packages,
    rendering,
    resources,
    selection,
    session,
    symptoms,
    torch_build,
    torch_fit,
    work,
)
from rl.doctor.rules.rule import Finding, Fix, Rule
from rl.doctor.schema import Facts

__all__ = ["RULES", "Finding", "Fix", "Rule", "judge"]

TORCH: tuple[Rule[Facts], ...] = (*packages.IMPORT, *torch_build.RULES)
WAY_TO_THE_GPU: tuple[Rule[Facts], ...] = (
    *host.RULES,
    *session.SSH,
    libraries.sharing_layer,
    *driver.CALLS,
    *given.RULES,
    *libraries.RULES,
    *access.RULES,
    *nodes.RULES,
    *driver_state.RULES,
    *driver.RULES,
    *selection.RULES,
    *gpu_state.RULES,
    *gpu_use.RULES,
    *torch_fit.FIT,
)
BESIDE: tuple[Rule[Facts], ...] = (  # independent of each other
    *work.RULES,
    *resources.RULES,
    *rendering.RULES,
    *packages.RULES,
    *compiling.RULES,
    *session.RULES,
)
RULES = (given.hidden_on_purpose, *WAY_TO_THE_GPU, *TORCH, *symptoms.RULES, *BESIDE)
_RANK = {"fatal": 0, "degraded": 1, "info": 2}


def judge(facts: Facts) -> list[Finding]:
    """All findings, the one for the headline first."""
    hidden = given.hidden_on_purpose(facts)
    # Whoever hides the GPU wants the CPU: what else may be wrong with the GPU is no news then.
    findings = [hidden] if hidden else _until_fatal(WAY_TO_THE_GPU, facts)
    findings += _until_fatal(TORCH, facts)
    if not hidden:  # a symptom is news only where no cause as grave is known
        gravest = min((_RANK[finding.severity] for finding in findings), default=3)
        findings += [each for each in _until_fatal(symptoms.RULES, facts)[:1] if _RANK[each.severity] < gravest]
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
