"""torch itself: whether it is there, and whole."""

from rl.doctor.rules.driver import WHEEL_FOR
from rl.doctor.rules.rule import Fix, Found, found, rule
from rl.doctor.schema import Facts

REINSTALL = Fix("inside", "<wheel>")


@rule(
    "torch-missing",
    "fatal",
    cause="torch is not installed for this Python",
    symptom="ModuleNotFoundError: No module named 'torch'.",
    fixes=(REINSTALL,),
)
def missing(facts: Facts) -> Found | None:
    """Importing torch raises that there is none; without importing, no folder of that name is on Python's path."""
    asked = facts.torch.ended != "not run"
    if not facts.torch.missing if asked else facts.torch_build.installed:
        return None
    return found(facts.torch.error or "no folder named torch on Python's search path", wheel=wheel(facts))


@rule(
    "torch-crashed",
    "fatal",
    cause="torch crashes",
    symptom="Segmentation fault or Illegal instruction in `import torch`.",
    fixes=(REINSTALL,),
)
def died(facts: Facts) -> Found | None:
    """The process that asked torch was ended by a signal or left early."""
    if facts.torch.ended in ("ok", "not run", "timeout"):
        return None
    last_words = facts.torch.stderr.splitlines()[-3:]
    return found(f"'{facts.torch.step}' ended the process: {facts.torch.ended}", *last_words, wheel=wheel(facts))


@rule(
    "torch-hung",
    "fatal",
    cause="torch does not answer",
    symptom="`import torch` does not return.",
    fixes=(Fix("inside", "rl doctor", "again: the first import from a slow disk may take minutes"),),
)
def hung(facts: Facts) -> Found | None:
    """The process that asked torch had not ended after 90 s."""
    if facts.torch.ended != "timeout":
        return None
    return found(f"'{facts.torch.step}' had not returned after {facts.torch.seconds:.0f} s")


@rule(
    "torch-broken",
    "fatal",
    cause="torch is installed but broken: '<step>' fails",
    symptom="ImportError or AttributeError in `import torch`, often after an interrupted pip.",
    fixes=(REINSTALL,),
)
def broken(facts: Facts) -> Found | None:
    """Importing torch, or the first question to it, raises."""
    if facts.torch.error is None or facts.torch.missing:
        return None
    return found(facts.torch.error, step=facts.torch.step, wheel=wheel(facts))


def wheel(facts: Facts) -> str:
    """The command for the wheel of this driver's CUDA; the newest one where that is not known."""
    if not facts.hardware_visible:
        return "PIP_CONSTRAINT= pip install --force-reinstall torch"
    newest = max(WHEEL_FOR)
    return WHEEL_FOR.get((facts.driver_api.version or 0) // 1000, WHEEL_FOR[newest])


RULES = (missing, died, hung, broken)
