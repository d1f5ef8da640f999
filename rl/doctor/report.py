"""Renders what was found: a verdict in one line, what torch, CUDA and NVML say, the evidence, the command to type."""

import dataclasses
from collections import Counter
from typing import Any

from rl.doctor.rules import Finding, Fix, judge
from rl.doctor.rules.driver import cuda_text
from rl.doctor.schema import Facts, Platform

SCHEMA = 1  # of the JSON report; raised when a key changes its meaning or goes away


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The outcome: `status` is ready, cpu, degraded or unusable; `line` is what a greeting shows."""

    status: str
    line: str
    exit_code: int  # 0 ready, or CPU by choice; 1 degraded; 3 no usable GPU although one was expected


def verdict(facts: Facts, findings: list[Finding]) -> Verdict:
    """One line and one exit code from all findings; the first one is the headline."""
    first = findings[0] if findings else None
    if first and first.severity == "fatal":
        if facts.gpu_expected:
            return Verdict("unusable", f"No usable GPU: {first.cause}", 3)
        return Verdict("unusable", f"Not ready: {first.cause}", 1)
    if first and first.severity == "degraded":
        return Verdict("degraded", f"{'GPU' if facts.usable else 'CPU'} degraded: {first.cause}", 1)
    if facts.usable:
        return Verdict("ready", f"GPU ready: {_gpus(facts)}, {_software(facts)}", 0)
    return Verdict("cpu", f"CPU only: {first.cause if first else 'no GPU is usable here'}; training runs on the CPU", 0)


def summary(facts: Facts) -> dict[str, Any]:
    """What torch, CUDA and NVML say, as JSON; where torch was not asked (--quick), the driver's answer stands in."""
    run, names = facts.torch, [*facts.torch.names] or [gpu.name for gpu in facts.nvml.gpus]
    api, nvml = facts.driver_api, facts.nvml
    asked = run.available is not None
    driver_cuda = api.version or nvml.cuda_version
    return {
        "torch_version": facts.torch_version,
        "torch_cuda_version": facts.torch_cuda,
        "torch_asked": asked,
        "cuda_available": run.available if asked else facts.driver_usable,
        "gpu_count": (run.count if asked else api.count) or 0,
        "current_device": run.current_device if asked else None,
        "gpu_names": names if facts.usable else [],
        "driver_version": facts.driver_version,
        "driver_cuda_version": cuda_text(driver_cuda) if driver_cuda else None,
        "nvml": nvml.load_error or nvml.binding_error or nvml.init_name or ("ok" if nvml.init == 0 else nvml.ended),
    }


def as_json(facts: Facts) -> dict[str, Any]:
    """The whole report as plain data."""
    findings = judge(facts)
    return {
        "schema": SCHEMA,
        "verdict": dataclasses.asdict(verdict(facts, findings)),
        "summary": summary(facts),
        "full": dataclasses.asdict(facts.full),
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }


def as_text(facts: Facts) -> str:
    """The whole report for a person; its first line is the verdict."""
    findings = judge(facts)
    said = verdict(facts, findings)
    lines = [said.line, "", *_table(facts), *_full(facts)]
    for finding in findings:
        headline = finding is findings[0] and said.status != "ready"  # the verdict has said its cause
        if headline and finding.severity == "info" and not finding.fixes:
            continue
        word = "Note" if finding.severity == "info" else "Also"
        title = f"Why [{finding.id}]:" if headline else f"{word} [{finding.id}]: {finding.cause}"
        lines += ["", title, *described(finding, facts.platform)]
    return "\n".join(lines)


def described(finding: Finding, platform: Platform) -> list[str]:
    """Evidence and commands, as lines."""
    lines = [f"  - {line}" for line in finding.evidence]
    for fix in applicable(finding.fixes, platform):
        lines += [f"  {_place(fix)}{', ' + fix.note if fix.note else ''}:", f"      {fix.command}"]
    return lines


def applicable(fixes: tuple[Fix, ...], platform: Platform) -> list[Fix]:
    """The fixes for this engine; all of them where none fits."""
    engines = {platform.engine} if platform.engine != "container" else {"docker", "podman", "kubernetes"}
    places = {"host", "inside"} | engines
    if engines & {"docker", "podman"}:
        places |= {"compose"}
    if platform.wsl:
        places |= {"wsl"}
        if any(fix.where == "wsl" for fix in fixes):
            places -= {"host"}  # a Linux driver must never be installed in WSL
    return [fix for fix in fixes if fix.where in places] or list(fixes)


def _place(fix: Fix) -> str:
    names = {"host": "On the host", "inside": "In here", "wsl": "WSL2"}
    return names.get(fix.where, f"With {fix.where}")


def _table(facts: Facts) -> list[str]:
    said, run = summary(facts), facts.torch
    built = f"built for CUDA {facts.torch_cuda}" if facts.torch_cuda else "built without CUDA"
    state = "" if said["torch_asked"] else (" (not imported)" if run.ended == "not run" else " (fails)")
    device = "cpu"
    if said["cuda_available"]:
        device = "not asked" if said["current_device"] is None else f"cuda:{said['current_device']}"
    driver = f"; driver {said['driver_version']}" if said["driver_version"] else ""
    serves = f", serves CUDA {said['driver_cuda_version']}" if said["driver_cuda_version"] else ""
    lines = [
        f"  torch   {facts.torch_version}, {built}{state}" if facts.torch_version else "  torch   not found",
        f"  CUDA    available: {'yes' if said['cuda_available'] else 'no'}; GPUs: {said['gpu_count']}; "
        f"current device: {device}{driver}{serves}",
        f"  NVML    {said['nvml']}",
    ]
    for index, gpu in enumerate(facts.nvml.gpus):
        memory = f", {gpu.memory_bytes / 2**30:.0f} GiB" if gpu.memory_bytes else ""
        name = gpu.name or f"does not answer (NVML gives {gpu.error})"
        lines.append(f"  GPU {index}   {name}{memory}")
    return lines


def _full(facts: Facts) -> list[str]:
    """What `rl doctor --full` tried, one line each."""
    full, lines = facts.full, []
    for work in full.works:
        names = ("matmul", "convolution", "bf16", "graph", "compile", "jit")
        results = {name: getattr(work, name) for name in names if getattr(work, name) is not None}
        right = ", ".join(name for name, error in results.items() if error == "") or "nothing"
        speeds = {"to": work.to_gpu, "from": work.from_gpu}
        copies = ", ".join(f"{speed:.1f} GB/s {word} it" for word, speed in speeds.items() if speed is not None)
        lines.append(f"  work    GPU {work.device}: right: {right}{'; copies ' if copies else ''}{copies}")
    if full.all_reduce:
        failed = any(rank.error != "" for rank in full.all_reduce)
        lines.append(f"  NCCL    sum over {len(full.all_reduce)} GPUs: {'fails' if failed else 'right'}")
    drawn = full.rendering
    if drawn.ended != "not run":
        by = ", ".join(word for word in (drawn.vendor, drawn.renderer) if word)
        lines.append(f"  EGL     {'fails' if drawn.error != '' else f'draws by {by}'}")
    return lines


def _gpus(facts: Facts) -> str:
    counts = Counter(summary(facts)["gpu_names"]) or Counter({"GPU": summary(facts)["gpu_count"]})
    return ", ".join(name if number == 1 else f"{number} x {name}" for name, number in counts.items())


def _software(facts: Facts) -> str:
    driver = f"driver {facts.driver_version or 'of unknown version'}"
    return f"{driver}, torch {facts.torch_version}" + ("" if facts.torch.available else " (not tried)")
