"""The machine itself: whether there is an NVIDIA GPU, and a driver for it."""

from rl.doctor.rules.rule import Fix, Found, found, rule
from rl.doctor.schema import Facts

LOOK = Fix("host", "sudo dmesg | grep -iE 'nvrm|nvidia|secure boot'; dkms status", "to see why, if that fails")
INSTALL = Fix("host", "sudo ubuntu-drivers install && sudo reboot", "on Ubuntu; elsewhere install NVIDIA's driver")


@rule(
    "no-nvidia-gpu",
    "info",
    cause="no NVIDIA GPU is visible on this machine",
    symptom="`torch.cuda.is_available()` is False on a machine with no NVIDIA GPU, or with one by AMD or Intel.",
    fixes=(Fix("docker", "docker run --gpus all ...", "if Windows has an NVIDIA GPU"),),
)
def no_gpu(facts: Facts) -> Found | None:
    """No NVIDIA GPU on the PCI bus, no driver, no node: a CPU machine, a fault only where a GPU was demanded."""
    if facts.hardware_visible:
        return None
    evidence = ["no NVIDIA GPU on the PCI bus, no /proc/driver/nvidia, no /dev/nvidia*, no /dev/dxg"]
    if facts.platform.amd or any(gpu.vendor == "0x1002" for gpu in facts.pci):
        evidence.append("an AMD GPU is there, which a torch built for CUDA cannot use")
    if facts.strict:
        evidence.append("GPU_CHECK=strict demands a GPU")
    # The engine's own virtual machine hides the GPU of the host until a container asks for it.
    hides = facts.platform.engine and (facts.platform.wsl or "linuxkit" in facts.platform.kernel)
    return found(*evidence, severity="fatal" if facts.strict else None, fixes=None if hides else ())


def _undriven(facts: Facts) -> list[str] | None:
    """Evidence of GPUs that no NVIDIA driver has; None where one has them, or they are not reached by PCI."""
    drivers = {gpu.driver for gpu in facts.nvidia_pci}
    if not drivers or facts.kernel_driver.loaded or "nvidia" in drivers or facts.usable or facts.platform.own_way:
        return None
    evidence = [f"PCI {gpu.address}: an NVIDIA GPU, driven by {gpu.driver or 'nothing'}" for gpu in facts.nvidia_pci]
    return [*evidence, "/proc/driver/nvidia is missing: the NVIDIA kernel module is not loaded on the host"]


@rule(
    "gpu-reserved-for-vm",
    "fatal",
    cause="the GPU is reserved for a virtual machine (vfio-pci), so the host has no driver for it",
    symptom="`nvidia-smi` on the host: couldn't communicate with the NVIDIA driver; `lspci -k`: vfio-pci.",
    fixes=(Fix("host", "lspci -nnk -d 10de:"),),
)
def reserved_for_vm(facts: Facts) -> Found | None:
    """Every NVIDIA GPU of the bus is bound to vfio-pci, and NVIDIA's kernel module is not loaded."""
    evidence = _undriven(facts)
    if evidence is None or {gpu.driver for gpu in facts.nvidia_pci} != {"vfio-pci"}:
        return None
    return found(*evidence)


@rule(
    "nouveau-driver",
    "fatal",
    cause="the host drives the GPU with nouveau, not with NVIDIA's driver",
    symptom="`nvidia-smi` on the host: couldn't communicate with the NVIDIA driver; `lspci -k`: nouveau.",
    fixes=(INSTALL, LOOK),
)
def nouveau(facts: Facts) -> Found | None:
    """An NVIDIA GPU is bound to nouveau, and NVIDIA's kernel module is not loaded."""
    evidence = _undriven(facts)
    if evidence is None or "nouveau" not in {gpu.driver for gpu in facts.nvidia_pci}:
        return None
    return found(*evidence)


@rule(
    "no-host-driver",
    "fatal",
    cause="the host has an NVIDIA GPU, but its NVIDIA driver is not installed or not loaded",
    symptom="`nvidia-smi` on the host: couldn't communicate with the NVIDIA driver, often after a kernel update.",
    fixes=(
        Fix("host", "sudo modprobe nvidia && nvidia-smi", "if a driver is installed"),
        Fix("host", "sudo ubuntu-drivers install && sudo reboot", "on Ubuntu, if no driver is installed"),
        LOOK,
    ),
)
def no_driver(facts: Facts) -> Found | None:
    """An NVIDIA GPU on the bus that nobody drives, and NVIDIA's kernel module is not loaded."""
    evidence = _undriven(facts)
    drivers = {gpu.driver for gpu in facts.nvidia_pci}
    if evidence is None or "nouveau" in drivers or drivers == {"vfio-pci"}:
        return None
    return found(*evidence)


RULES = (no_gpu, reserved_for_vm, nouveau, no_driver)
