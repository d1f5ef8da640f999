"""The rules: pure functions from facts to one finding or none.

Causes stand in the order in which one failure brings about the next. `SYMPTOMS` say that something fails without
knowing why, so they speak only where no cause does.
"""

from collections.abc import Callable

from rl.doctor.rules import container, driver, host, torch_build
from rl.doctor.rules.finding import Finding, Fix
from rl.doctor.schema import Facts

__all__ = ["GPU_CAUSES", "SYMPTOMS", "TORCH_CAUSES", "Finding", "Fix", "Rule", "judge"]

Rule = Callable[[Facts], Finding | None]

GPU_CAUSES: tuple[Rule, ...] = (
    host.no_gpu,
    host.kernel_driver_missing,
    container.not_given,
    driver.call_hung,
    driver.call_crashed,
    container.capability_missing,
    container.driver_library_missing,
    container.uvm_missing,
    driver.too_old,
    torch_build.cpu_build,
)
TORCH_CAUSES: tuple[Rule, ...] = (
    torch_build.missing,
    torch_build.died,
    torch_build.hung,
    torch_build.broken,
)
SYMPTOMS: tuple[Rule, ...] = (
    torch_build.kernel_failed,
    torch_build.sees_no_gpu,
    driver.init_failed,
    driver.nvml_failed,
)
_RANK = {"fatal": 0, "degraded": 1, "info": 2}


def judge(facts: Facts) -> list[Finding]:
    """All findings, the one for the headline first."""
    hidden = container.hidden_on_purpose(facts)
    # Whoever hides the GPU wants the CPU: what else may be wrong with the GPU is no news then.
    findings = [hidden] if hidden else _ask(GPU_CAUSES, facts)
    findings += _ask(TORCH_CAUSES, facts)
    if not hidden and all(finding.severity != "fatal" for finding in findings):
        findings += _ask(SYMPTOMS, facts)[:1]
    return sorted(findings, key=lambda finding: _RANK[finding.severity])


def _ask(rules: tuple[Rule, ...], facts: Facts) -> list[Finding]:
    return [finding for rule in rules if (finding := rule(facts))]
