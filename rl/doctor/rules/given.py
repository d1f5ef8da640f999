"""What the container was given of the host's GPU: nothing, or not everything."""

from rl.doctor.rules.rule import Fix, Found, Severity, found, rule
from rl.doctor.schema import Facts

GIVE_GPU = (
    Fix("docker", "docker run --gpus all ..."),
    Fix(
        "docker",
        "sudo apt-get install -y nvidia-container-toolkit && sudo nvidia-ctk runtime configure --runtime=docker"
        " && sudo systemctl restart docker",
        "on the host, if docker then says 'could not select device driver' (the toolkit is missing)",
    ),
    Fix(
        "compose",
        "deploy: {resources: {reservations: {devices: [{driver: nvidia, count: all, capabilities: [gpu]}]}}}",
        "in the service, if you use compose",
    ),
    Fix("podman", "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml", "on the host, once"),
    Fix("podman", "podman run --device nvidia.com/gpu=all --security-opt=label=disable ..."),
    Fix("kubernetes", "resources: {limits: {nvidia.com/gpu: 1}}", "in the container's spec"),
    Fix("kubernetes", "runtimeClassName: nvidia", "in the pod's spec, if the cluster has that class"),
    Fix("apptainer", "apptainer exec --nv ..."),
)
WINDOWS = Fix("wsl", "wsl --update", "in Windows, beside a recent NVIDIA driver for Windows")


@rule(
    "gpu-hidden",
    "info",
    cause="<variable> hides every GPU",
    symptom="`torch.cuda.is_available()` is False although the machine has a GPU: a variable asks for the CPU.",
    fixes=(
        Fix("inside", "unset CUDA_VISIBLE_DEVICES"),
        Fix("docker", "docker run --gpus all -e NVIDIA_VISIBLE_DEVICES=all ..."),
    ),
)
def hidden_on_purpose(facts: Facts) -> Found | None:
    """CUDA_VISIBLE_DEVICES is empty or negative, or NVIDIA_VISIBLE_DEVICES is empty, void or none and there are no
    nodes: wanted, unless GPU_CHECK=strict says otherwise. CDI sets `void` for GPUs that work, which counts for nothing.
    """
    if facts.usable or not facts.hardware_visible:
        return None
    severity: Severity | None = "fatal" if facts.strict else None
    by_cuda, by_engine = hidden_on_purpose.fixes
    cuda = facts.environment.get("CUDA_VISIBLE_DEVICES")
    if cuda is not None and (cuda == "" or cuda.startswith("-")):
        evidence = f"CUDA_VISIBLE_DEVICES is '{cuda}'"
        return found(evidence, severity=severity, fixes=(by_cuda,), variable="CUDA_VISIBLE_DEVICES")
    nvidia = facts.environment.get("NVIDIA_VISIBLE_DEVICES")
    if nvidia not in ("", "void", "none") or facts.gpu_nodes or facts.platform.engine is None:
        return None
    evidence = f"NVIDIA_VISIBLE_DEVICES is '{nvidia}', and there is no /dev/nvidia0"
    return found(evidence, severity=severity, fixes=(by_engine,), variable="NVIDIA_VISIBLE_DEVICES")


@rule(
    "container-without-gpu",
    "fatal",
    cause="the host has a GPU and its driver, but this container was started without them (no --gpus)",
    symptom="Found no NVIDIA driver on your system; nvidia-smi: command not found.",
    fixes=GIVE_GPU,
)
def not_given(facts: Facts) -> Found | None:
    """The host's kernel module is loaded, and there is no /dev/nvidia* in here. WSL2 and Jetson have other nodes."""
    platform, nodes = facts.platform, facts.nodes
    host_ready = facts.kernel_driver.loaded or any(gpu.driver == "nvidia" for gpu in facts.nvidia_pci)
    if not host_ready or platform.engine is None or platform.own_way:
        return None
    if nodes.ended != "ok" or nodes.found or facts.usable:
        return None
    return found(
        f"the host's NVIDIA driver is loaded (version {facts.driver_version or 'unknown'})",
        "there is no /dev/nvidia* in here",
        facts.driver_api.load_error or "libcuda.so.1 is here, but of no use without the nodes",
    )


@rule(
    "capability-missing",
    "fatal",
    cause="NVIDIA_DRIVER_CAPABILITIES=<given> leaves out <word>, so its driver library was not given",
    symptom="Found no NVIDIA driver although nvidia-smi works; or no nvidia-smi although torch works.",
    fixes=(
        Fix("docker", "docker run -e NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics ..."),
        Fix("podman", "podman run -e NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics ..."),
        Fix("kubernetes", "env: [{name: NVIDIA_DRIVER_CAPABILITIES, value: 'compute,utility,graphics'}]"),
    ),
)
def capability_missing(facts: Facts) -> Found | None:
    """A GPU's node opens, libcuda (compute) or libnvidia-ml (utility) is not there, and the variable lacks its word."""
    compute, utility = facts.driver_api.load_error is None, facts.nvml.load_error is None
    if not any(node.opened == "ok" for node in facts.gpu_nodes) or (compute and utility):
        return None
    word, error = ("utility", facts.nvml.load_error) if compute else ("compute", facts.driver_api.load_error)
    if not facts.lacks_capability(word):
        return None
    given = facts.environment["NVIDIA_DRIVER_CAPABILITIES"]
    return found(str(error), severity="degraded" if compute else None, given=given, word=word)


@rule(
    "driver-library-missing",
    "fatal",
    cause="the GPU is here, but the driver's library libcuda.so.1 cannot be loaded",
    symptom="Found no NVIDIA driver on your system, although /dev/nvidia0 (or /dev/dxg) is there.",
    fixes=(
        *GIVE_GPU,
        Fix("host", "sudo ubuntu-drivers install && sudo reboot", "on Ubuntu, if the host itself lacks its libraries"),
        WINDOWS,
    ),
)
def driver_library_missing(facts: Facts) -> Found | None:
    """A node (or, outside a container, the kernel module) is there, and the loader does not find libcuda.so.1."""
    error, platform = facts.driver_api.load_error, facts.platform
    on_host = facts.kernel_driver.loaded and platform.engine is None
    if error is None or not (facts.nodes.found or platform.dxg or platform.tegra or on_host):
        return None
    if capability_missing(facts):
        return None
    *give, install, windows = driver_library_missing.fixes
    return found(error, fixes=(*give, windows) if platform.engine else (install, windows))


RULES = (not_given, capability_missing, driver_library_missing)  # hidden_on_purpose is asked before all others
