"""The machine itself: whether there is an NVIDIA GPU, and a driver for it."""

import re

from rl.doctor.rules.rule import Fix, Found, found, rule
from rl.doctor.schema import Facts, PciGpu

LOOK = Fix(
    "host",
    "sudo dmesg | grep -iE 'nvrm|nvidia|secure boot'; dkms status; mokutil --sb-state",
    "to see why, if that fails: Secure Boot refuses a module that is not signed",
)
DEMANDED = "GPU_CHECK=strict demands a GPU"
INSTALL = Fix("host", "sudo ubuntu-drivers install && sudo reboot", "on Ubuntu; elsewhere install NVIDIA's driver")

LEGACY = Fix(
    "host",
    "sudo apt-get install -y nvidia-driver-580 && sudo reboot",
    "on Ubuntu; this GPU (Maxwell, Pascal or Volta) needs branch 580, newer drivers ignore it",
)
INIT = ("EIO", "ENODEV")  # the driver is there, and could not start this GPU


@rule(
    "no-nvidia-gpu",
    "info",
    cause="no NVIDIA GPU is visible on this machine",
    symptom="`torch.cuda.is_available()` is False on a machine with no NVIDIA GPU, or with one by AMD or Intel.",
    fixes=(Fix("docker", "docker run --gpus all ...", "if Windows has an NVIDIA GPU"),),
)
def no_gpu(facts: Facts) -> Found | None:
    """No NVIDIA GPU on the PCI bus, no driver, no node: a CPU machine, a fault only where a GPU was demanded."""
    if facts.hardware_visible or _in_docker_desktop(facts):
        return None
    evidence = ["no NVIDIA GPU on the PCI bus, no /proc/driver/nvidia, no /dev/nvidia*, no /dev/dxg"]
    if facts.platform.amd or any(gpu.vendor == "0x1002" for gpu in facts.pci):
        evidence.append("an AMD GPU is there, which a torch built for CUDA cannot use")
    if any(gpu.vendor == "0x8086" for gpu in facts.pci):
        evidence.append("an Intel GPU is there, which a torch built for CUDA cannot use")
    if facts.strict:
        evidence.append(DEMANDED)
    # The virtual machine of Docker Desktop hides the GPU of Windows until a container asks for it.
    hides = facts.platform.engine and facts.platform.wsl
    return found(*evidence, severity="fatal" if facts.strict else None, fixes=None if hides else ())


@rule(
    "docker-desktop",
    "info",
    cause="Docker Desktop runs containers in a virtual machine that has no GPU",
    symptom="The host shows its GPU, and containers do not; could not select device driver with capabilities: [[gpu]].",
    fixes=(
        Fix("host", "docker context use default", "on Linux with an NVIDIA GPU, if docker-ce is installed too"),
        Fix("host", "wsl --update", "on Windows; then choose the WSL 2 engine in Docker Desktop's settings"),
    ),
)
def docker_desktop(facts: Facts) -> Found | None:
    """The kernel is linuxkit's, without any sign of an NVIDIA GPU; in WSL2, where Docker Desktop can pass one on, the
    kernel is Microsoft's. A Mac has no NVIDIA GPU, so this is a fault only where a GPU was demanded.
    """
    if not _in_docker_desktop(facts):
        return None
    evidence = [f"the kernel is {facts.platform.kernel}", *([DEMANDED] if facts.strict else [])]
    return found(*evidence, severity="fatal" if facts.strict else None)


def _in_docker_desktop(facts: Facts) -> bool:
    return "linuxkit" in facts.platform.kernel and not facts.hardware_visible


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
        LEGACY,
    ),
)
def no_driver(facts: Facts) -> Found | None:
    """An NVIDIA GPU on the bus that nobody drives, and NVIDIA's kernel module is not loaded."""
    evidence = _undriven(facts)
    drivers = {gpu.driver for gpu in facts.nvidia_pci}
    if evidence is None or "nouveau" in drivers or drivers == {"vfio-pci"}:
        return None
    old = any(_generation(gpu) == "old" for gpu in facts.nvidia_pci)
    return found(*evidence, fixes=None if old else no_driver.fixes[:-1])


@rule(
    "driver-too-new-for-gpu",
    "fatal",
    cause="the NVIDIA driver is too new for this GPU: from 590 on it ignores Maxwell, Pascal and Volta",
    symptom="nvidia-smi fails; kernel log: supported through the NVIDIA 580.xx Legacy drivers; will ignore this GPU.",
    fixes=(
        LEGACY,
        Fix("inside", "pip install torch --index-url https://download.pytorch.org/whl/cu126", "for these GPUs, too"),
    ),
)
def too_new(facts: Facts) -> Found | None:
    """A GPU whose PCI number is of Maxwell, Pascal or Volta, that no NVIDIA driver has, beside a driver 590 or newer,
    and no other GPU that works.
    """
    old = [gpu for gpu in facts.nvidia_pci if _generation(gpu) == "old"]
    ignored = [gpu for gpu in old if gpu.driver not in ("nvidia", "vfio-pci")]
    version = facts.driver_version or facts.library_version or ""
    if not ignored or facts.usable or not re.match(r"(59|[6-9]\d)\d\.", version):
        return None
    evidence = (f"PCI {gpu.address}: device {gpu.device}, driven by {gpu.driver or 'nothing'}" for gpu in ignored)
    return found(f"the driver is {version}", *evidence)


@rule(
    "gpu-needs-open-module",
    "fatal",
    cause="this GPU works with the open kernel modules only, and the host has loaded the proprietary one",
    symptom="nvidia-smi: No devices were found; kernel log: requires use of the NVIDIA open kernel modules.",
    fixes=(
        Fix("host", "sudo apt-get install -y nvidia-driver-<branch>-open && sudo reboot", "on Ubuntu"),
        Fix("host", "sudo apt-get install -y nvidia-open && sudo reboot", "from NVIDIA's own repository"),
        Fix("host", "sudo dmesg | grep -i nvrm", "RmInitAdapter failed: enable Above 4G and Resizable BAR in the BIOS"),
    ),
)
def needs_open_module(facts: Facts) -> Found | None:
    """A GPU whose PCI number is of Blackwell or newer, under a kernel module that is not the open one, and NVML counts
    none, or the GPU's node answers EIO or ENODEV. Not where a GPU works: then the count says what was given.
    """
    new = [gpu for gpu in facts.nvidia_pci if _generation(gpu) == "new" and gpu.driver in ("nvidia", None)]
    if not new or facts.usable or facts.kernel_driver.open_module is not False:
        return None
    failed = [f"/dev/{node.name} cannot be opened: {node.opened}" for node in facts.gpu_nodes if node.opened in INIT]
    failed += ["NVML starts, and counts no GPU"] if facts.nvml.init == 0 and facts.nvml.count == 0 else []
    if not failed:
        return None
    version = facts.kernel_driver.version or ""
    branch = version.split(".")[0]
    module = f"the proprietary kernel module {version} is loaded"
    return found(module, *(f"PCI {gpu.address}: device {gpu.device}" for gpu in new), *failed, branch=branch or "580")


def _generation(gpu: PciGpu) -> str:
    """Old: Maxwell, Pascal, Volta, which have PCI numbers 0x1340 to 0x1dff. New: Blackwell, from 0x2900 on."""
    number = gpu.device if re.fullmatch("0x[0-9a-f]{4}", gpu.device) else ""
    return "old" if "0x1340" <= number < "0x1e00" else "new" if number >= "0x2900" else ""


RULES = (no_gpu, docker_desktop, reserved_for_vm, too_new, nouveau, no_driver, needs_open_module)
