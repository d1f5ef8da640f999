"""The machine itself: whether there is an NVIDIA GPU, and a driver for it."""

from rl.doctor.rules.finding import Finding, Fix, Severity
from rl.doctor.schema import Facts


def no_gpu(facts: Facts) -> Finding | None:
    """No NVIDIA GPU in sight: a CPU machine, which is no fault unless a GPU was demanded."""
    if facts.hardware_visible:
        return None
    evidence = ["no NVIDIA GPU on the PCI bus, no /proc/driver/nvidia, no /dev/nvidia*, no /dev/dxg"]
    if facts.platform.amd or any(gpu.vendor == "0x1002" for gpu in facts.pci):
        evidence.append("an AMD GPU is there, which a torch built for CUDA cannot use")
    if facts.strict:
        evidence.append("GPU_CHECK=strict demands a GPU")
    fixes: tuple[Fix, ...] = ()
    if facts.platform.engine and (facts.platform.wsl or "linuxkit" in facts.platform.kernel):
        # The engine's own virtual machine hides the GPU of the host until a container asks for it.
        fixes = (Fix("docker", "docker run --gpus all ...", "if Windows has an NVIDIA GPU"),)
    severity: Severity = "fatal" if facts.strict else "info"
    return Finding("no-nvidia-gpu", severity, "no NVIDIA GPU is visible on this machine", tuple(evidence), fixes)


def kernel_driver_missing(facts: Facts) -> Finding | None:
    """A GPU on the bus, and no NVIDIA kernel module: nouveau has it, a virtual machine has it, or nobody."""
    drivers = {gpu.driver for gpu in facts.nvidia_pci}
    if not drivers or facts.kernel_driver.loaded or "nvidia" in drivers or facts.usable or facts.platform.own_way:
        return None
    evidence = [f"PCI {gpu.address}: an NVIDIA GPU, driven by {gpu.driver or 'nothing'}" for gpu in facts.nvidia_pci]
    evidence.append("/proc/driver/nvidia is missing: the NVIDIA kernel module is not loaded on the host")
    look = Fix("host", "sudo dmesg | grep -iE 'nvrm|nvidia|secure boot'; dkms status", "to see why, if that fails")
    if drivers == {"vfio-pci"}:
        cause = "the GPU is reserved for a virtual machine (vfio-pci), so the host has no driver for it"
        return Finding("gpu-reserved-for-vm", "fatal", cause, tuple(evidence), (Fix("host", "lspci -nnk -d 10de:"),))
    if "nouveau" in drivers:
        cause = "the host drives the GPU with nouveau, not with NVIDIA's driver"
        install = Fix(
            "host", "sudo ubuntu-drivers install && sudo reboot", "on Ubuntu; elsewhere install NVIDIA's driver"
        )
        return Finding("nouveau-driver", "fatal", cause, tuple(evidence), (install, look))
    cause = "the host has an NVIDIA GPU, but its NVIDIA driver is not installed or not loaded"
    install = Fix("host", "sudo ubuntu-drivers install && sudo reboot", "on Ubuntu, if no driver is installed")
    load = Fix("host", "sudo modprobe nvidia && nvidia-smi", "if a driver is installed")
    return Finding("no-host-driver", "fatal", cause, tuple(evidence), (load, install, look))
