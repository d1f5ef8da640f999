"""`scripts/preflight`: says on the host, before the first container, whether one will start there and get the GPU.

It needs a clone of the repository and Python 3.10, nothing else.
"""

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from rl.doctor.facts.host import gather_host
from rl.doctor.report import Verdict, described
from rl.doctor.rules.rule import Finding
from rl.doctor.rules.start import DOUBT, IMAGE, candidates, judge
from rl.doctor.schema.host import HostFacts

SCHEMA = 1  # of the JSON report; raised when a key changes its meaning or goes away
ELSEWHERE = "If the container starts: rl doctor in it; docs/troubleshooting.md has the messages of both."


def main(argv: list[str], *, root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> int:
    """Look at the host and print the report.

    Returns 0 ready, with the GPU or, where there is none, on the CPU; 1 something to mend; 2 wrong usage. `root` is the
    tree of /proc, /sys, /etc and /var, another one in tests.
    """
    parser = argparse.ArgumentParser("scripts/preflight", description="Will a container start here, and get the GPU?")
    parser.add_argument("--error", metavar="TEXT", default="", help="a message to explain; - reads it from a pipe")
    parser.add_argument("--json", action="store_true", help="print the report as JSON (key schema tells its version)")
    options = parser.parse_args(argv)
    error = sys.stdin.read() if options.error == "-" else options.error
    facts = gather_host(root, environment=environment, error=error)
    findings = judge(facts)
    outcome = verdict(facts, findings)
    report = {"schema": SCHEMA, "verdict": outcome, "findings": findings}
    text = json.dumps(report, default=dataclasses.asdict, indent=2) if options.json else as_text(facts, findings)
    try:
        print(text.encode(errors="backslashreplace").decode(), flush=True)  # a message may hold what no text can
    except BrokenPipeError:  # `scripts/preflight | head -1`: the reader has enough; Python's last flush must not fail
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return outcome.exit_code


def verdict(facts: HostFacts, findings: list[Finding]) -> Verdict:
    """One line and one exit code; the first finding is the headline."""
    first = findings[0] if findings else None
    explains = {rule.id for rule in candidates(facts.error)}
    if first and (first.severity != "info" or first.id in explains):
        word = "Perhaps" if first.evidence == (DOUBT,) else "To mend"
        return Verdict("degraded" if first.severity == "degraded" else "blocked", f"{word}: {first.cause}", 1)
    if facts.error:
        return Verdict("unexplained", "Nothing on this host explains the message", 1)
    engine = f"Docker {facts.docker.version}" if facts.docker.version else f"podman {facts.podman}"
    if not facts.gpu_here:
        return Verdict("cpu", f"Ready, on the CPU: this machine has no NVIDIA GPU; {engine}", 0)
    gpu = facts.gpus[0].name if facts.gpus else "an NVIDIA GPU"
    return Verdict("ready", f"Ready: {gpu}, driver {facts.driver or 'of unknown version'}, {engine}", 0)


def as_text(facts: HostFacts, findings: list[Finding]) -> str:
    """The report for a person; its first line is the verdict."""
    outcome = verdict(facts, findings)
    platform = dataclasses.replace(facts.platform, engine="podman" if facts.by_podman else "docker")
    lines = [outcome.line]
    for finding in findings:
        word = "Note" if finding.severity == "info" else "Also"
        headline = finding is findings[0] and outcome.line.endswith(finding.cause)
        lines += ["", f"Why [{finding.id}]:" if headline else f"{word} [{finding.id}]: {finding.cause}"]
        lines += described(finding, platform)
    if facts.error and not candidates(facts.error):
        lines += ["", f"No failure at the start is known by this message. {ELSEWHERE}"]
    if outcome.exit_code == 0:
        podman = f"podman run --device nvidia.com/gpu=all ... {IMAGE}" if facts.gpu_here else f"podman run ... {IMAGE}"
        lines += ["", f"Next: {podman if facts.by_podman else 'make up'}"]
    return "\n".join(lines)
