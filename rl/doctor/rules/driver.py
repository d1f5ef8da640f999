"""The driver: calls that hang, crash or fail, and its age against torch."""

from rl.doctor.rules.finding import Finding, Fix, Severity
from rl.doctor.schema import Facts, Probe

MINIMUM_DRIVER = {11: 450, 12: 525, 13: 580}  # CUDA major → first driver branch; NVIDIA's CUDA release notes, table 2
WHEELS = "https://download.pytorch.org/whl"
WHEEL_FOR = {
    11: f"pip install --force-reinstall torch==2.7.1 --index-url {WHEELS}/cu118",
    12: f"pip install --force-reinstall torch --index-url {WHEELS}/cu126",
    13: f"pip install --force-reinstall torch --index-url {WHEELS}/cu130",
}
CUDA_ERRORS = {  # cuInit's result → first suspicion
    34: "a stub library was loaded in place of the driver's: LD_LIBRARY_PATH names a folder 'stubs'",
    35: "the driver is too old",
    100: "the driver sees no GPU",
    304: "the driver could not use its device nodes: look at their permissions",
    802: "the system is not ready: on NVSwitch machines the host's fabric manager must run",
    803: "libcuda.so.1 and the kernel driver are of different versions: look for a 'compat' folder in LD_LIBRARY_PATH",
    804: "a cuda-compat library was loaded, which this GPU may not use: take 'compat' out of LD_LIBRARY_PATH",
    999: "after suspend and resume of the host, reload nvidia_uvm; else see the kernel log",
}
NOT_THE_DRIVERS_AGE = (34, 803, 804)  # another libcuda than the driver's own gave the version
KERNEL_LOG = Fix("host", "sudo dmesg | grep -iE 'nvrm|xid' | tail -20")


def call_hung(facts: Facts) -> Finding | None:
    """A driver call did not return within its limit."""
    hung = [probe for probe in _driver_probes(facts) if probe.ended == "timeout"]
    if not hung:
        return None
    evidence = [f"'{probe.step}' had not returned after {probe.seconds:.0f} s" for probe in hung]
    if any(probe.stuck for probe in hung):
        evidence.append("the process cannot even be killed: it waits inside the kernel driver")
    severity: Severity = "degraded" if facts.usable else "fatal"
    fixes = (KERNEL_LOG, Fix("host", "sudo reboot", "the usual way out of a wedged driver"))
    return Finding("driver-call-hung", severity, "a call to the NVIDIA driver hangs", tuple(evidence), fixes)


def call_crashed(facts: Facts) -> Finding | None:
    """A driver library killed the process that called it."""
    crashed = [probe for probe in _driver_probes(facts) if probe.ended.startswith("signal")]
    if not crashed:
        return None
    evidence = tuple(f"'{probe.step}' ended the process: {probe.ended}" for probe in crashed)
    severity: Severity = "degraded" if facts.usable else "fatal"
    cause = "the NVIDIA driver's library crashes"
    return Finding("driver-call-crashed", severity, cause, evidence, (KERNEL_LOG, Fix("host", "sudo reboot")))


def too_old(facts: Facts) -> Finding | None:
    """The driver's CUDA major is below that of torch. Majors only: within one, an older minor is allowed."""
    needed, driver_cuda = _major(facts.torch_cuda), facts.driver_api.version
    if needed is None or not driver_cuda or driver_cuda // 1000 >= needed or facts.torch.available:
        return None
    driver, minimum = _major(facts.driver_version), MINIMUM_DRIVER.get(needed)
    if facts.driver_api.init in NOT_THE_DRIVERS_AGE or (driver and minimum and driver >= minimum):
        return None
    serves = driver_cuda // 1000
    evidence = (
        f"driver {facts.driver_version or '(version unknown)'} serves CUDA up to {cuda_text(driver_cuda)}",
        f"torch {facts.torch_version} is built for CUDA {facts.torch_cuda}",
    )
    least = f"driver {minimum} or newer" if minimum else "a newer driver"
    fixes = [
        Fix(
            "host",
            f"sudo apt-get install -y nvidia-driver-{minimum or '<newest>'} && sudo reboot",
            f"on Ubuntu; elsewhere {least}",
        ),
        Fix("wsl", f"in Windows, install NVIDIA's {least}; then: wsl --update"),
    ]
    if serves == 12:
        image = "docker run --gpus all ... pytorch-cuda-rl:torch2.7"
        fixes.append(Fix("docker", image, "if the driver has to stay: this variant is built for CUDA 12.6"))
    if serves in WHEEL_FOR:
        fixes.append(Fix("inside", WHEEL_FOR[serves], "if the driver has to stay, without changing the image"))
    cause = f"the NVIDIA driver is too old for this torch: CUDA {needed} needs {least}"
    return Finding("driver-too-old", "fatal", cause, evidence, tuple(fixes))


def init_failed(facts: Facts) -> Finding | None:
    """No rule knows the cause better: say the driver's own number, or that it has no GPU."""
    api = facts.driver_api
    if facts.usable or not facts.gpu_expected:
        return None
    evidence = [
        f"/dev/{node.name} cannot be opened: {node.opened}" for node in facts.nodes.found if node.opened != "ok"
    ]
    evidence += [f"{name}={value}" for name, value in sorted(facts.environment.items()) if "VISIBLE" in name]
    evidence += [f"libcuda.so.1 is {api.path}"] if api.path else []
    if facts.nvml.init:
        evidence.append(f"nvmlInit gives {facts.nvml.init} ({facts.nvml.init_name})")
    if api.init:
        cause = f"the driver does not start: cuInit gives {api.init} ({api.init_name or 'no name'})"
        evidence.insert(0, CUDA_ERRORS.get(api.init, "this number has no explanation here"))
        return Finding("cuda-init-failed", "fatal", cause, tuple(evidence), (KERNEL_LOG,))
    evidence.insert(0, f"{api.load_error or f'libcuda.so.1 counts {api.count or 0} GPUs'} ({api.ended})")
    cause = "a GPU is expected, but the driver has none to give"
    return Finding("gpu-not-usable", "fatal", cause, tuple(evidence), (Fix("host", "nvidia-smi"), KERNEL_LOG))


def nvml_failed(facts: Facts) -> Finding | None:
    """CUDA works and NVML does not: training runs, without the GPU's figures. On a Jetson that is normal."""
    nvml = facts.nvml
    reason = (
        nvml.load_error or nvml.binding_error or (f"nvmlInit gives {nvml.init} ({nvml.init_name})" if nvml.init else "")
    )
    if not facts.driver_usable or facts.platform.tegra or not reason or facts.lacks_capability("utility"):
        return None
    cause = "CUDA works, but NVML does not, so utilisation and memory cannot be shown"
    return Finding("nvml-failed", "degraded", cause, (reason,), (Fix("host", "nvidia-smi"),))


def cuda_text(version: int) -> str:
    """13000 → "13.0", as the driver counts."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _driver_probes(facts: Facts) -> tuple[Probe, ...]:
    return (facts.nodes, facts.driver_api, facts.nvml)


def _major(version: str | None) -> int | None:
    first = (version or "").split(".")[0]
    return int(first) if first.isdecimal() and len(first) < 6 else None
