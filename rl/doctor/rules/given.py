"""What the container was given of the host's GPU: nothing, or not everything."""

from rl.doctor.rules.rule import Fix, Found, Severity, found, rule
from rl.doctor.schema import Facts, Platform

ROOTLESS = Fix(
    "docker",
    "nvidia-ctk runtime configure --runtime=docker --config=$HOME/.config/docker/daemon.json && systemctl --user"
    " restart docker && sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups --in-place",
    "on the host, once, if Docker runs rootless",
)
COMPOSE = (
    Fix(
        "compose",
        "deploy: {resources: {reservations: {devices: [{driver: nvidia, count: all, capabilities: [gpu]}]}}}",
        "in the service, if you use compose",
    ),
    Fix(
        "compose",
        "runtime: nvidia",
        "in the service, with NVIDIA_VISIBLE_DEVICES=all in its environment, if deploy is there and is ignored",
    ),
)
GIVE_GPU = (
    Fix("docker", "docker run --gpus all ..."),
    ROOTLESS,
    Fix(
        "docker",
        "sudo apt-get install -y nvidia-container-toolkit && sudo nvidia-ctk runtime configure --runtime=docker"
        " && sudo systemctl restart docker",
        "on the host, if docker then says 'could not select device driver' (the toolkit is missing)",
    ),
    *COMPOSE,
    Fix("podman", "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml", "on the host, once"),
    Fix(
        "podman",
        "podman run --device nvidia.com/gpu=all --security-opt=label=disable ...",
        "--gpus does nothing in many versions of podman",
    ),
    Fix(
        "podman",
        "devices: ['nvidia.com/gpu=all']  and  security_opt: ['label=disable']",
        "in the service, if you use podman-compose: it may drop the deploy block",
    ),
    Fix("kubernetes", "resources: {limits: {nvidia.com/gpu: 1}}", "in the container's spec"),
    Fix("kubernetes", "runtimeClassName: nvidia", "in the pod's spec, if the cluster has that class"),
    Fix("apptainer", "apptainer exec --nv ..."),
    Fix("lxc", "lxc config device add <container> gpu gpu && lxc config set <container> nvidia.runtime true", "LXD"),
    Fix(
        "lxc",
        "lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file",
        "in the container's configuration, one line for each /dev/nvidia*; with the driver's libraries of the same"
        " version installed in the container",
    ),
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
        Fix("podman", "podman run --device nvidia.com/gpu=all ..."),
        Fix("kubernetes", "resources: {limits: {nvidia.com/gpu: 1}}", "in the container's spec"),
    ),
)
def hidden_on_purpose(facts: Facts) -> Found | None:
    """CUDA_VISIBLE_DEVICES is empty or negative, or NVIDIA_VISIBLE_DEVICES is empty, void or none and there are no
    nodes: wanted, unless GPU_CHECK=strict says otherwise. CDI sets `void` for GPUs that work, which counts for nothing.
    """
    if facts.usable or not facts.hardware_visible:
        return None
    severity: Severity | None = "fatal" if facts.strict else None
    by_cuda, *by_engine = hidden_on_purpose.fixes
    cuda = facts.environment.get("CUDA_VISIBLE_DEVICES")
    if cuda is not None and (cuda == "" or cuda.startswith("-")):
        evidence = f"CUDA_VISIBLE_DEVICES is '{cuda}'"
        return found(evidence, severity=severity, fixes=(by_cuda,), variable="CUDA_VISIBLE_DEVICES")
    nvidia = facts.environment.get("NVIDIA_VISIBLE_DEVICES")
    if nvidia not in ("", "void", "none") or facts.gpu_nodes or facts.platform.engine is None:
        return None
    evidence = f"NVIDIA_VISIBLE_DEVICES is '{nvidia}', and there is no /dev/nvidia0"
    return found(evidence, severity=severity, fixes=tuple(by_engine), variable="NVIDIA_VISIBLE_DEVICES")


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
        fixes=_for_engine(GIVE_GPU, platform),
    )


def _for_engine(fixes: tuple[Fix, ...], platform: Platform) -> tuple[Fix, ...]:
    """Without what this container's engine has no use for; the report leaves out the other engines' own."""
    useless = COMPOSE if platform.engine == "podman" else ()
    return tuple(fix for fix in fixes if fix not in useless and (fix != ROOTLESS or platform.rootless))


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
    "apptainer-without-nv",
    "fatal",
    cause="Apptainer was started without --nv, so the driver's libraries are missing beside the GPU",
    symptom="Found no NVIDIA driver on your system, although ls /dev shows nvidia0; could not load libcuda.so.1.",
    fixes=(Fix("apptainer", "apptainer exec --nv ...", "singularity exec --nv ..., where it still has that name"),),
)
def without_nv(facts: Facts) -> Found | None:
    """/.singularity.d is there, a GPU's node is (Apptainer binds the whole /dev), and libcuda.so.1 is not found."""
    error = facts.driver_api.load_error
    if facts.platform.engine != "apptainer" or error is None or not facts.gpu_nodes:
        return None
    return found("/dev/" + ", /dev/".join(node.name for node in facts.gpu_nodes), error)


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
    return found(error, fixes=_for_engine((*give, windows), platform) if platform.engine else (install, windows))


@rule(
    "whole-node-in-pod",
    "degraded",
    cause="this pod sees every GPU of its node without having asked for one, and other pods may own them",
    symptom="More GPUs than the pod's limits name; out of memory beside other pods.",
    fixes=(
        Fix("kubernetes", "resources: {limits: {nvidia.com/gpu: 1}}", "in the container's spec, to own a GPU"),
        Fix("kubernetes", "env: [{name: NVIDIA_VISIBLE_DEVICES, value: void}]", "in the container's spec, for none"),
    ),
)
def whole_node(facts: Facts) -> Found | None:
    """In Kubernetes NVIDIA_VISIBLE_DEVICES is `all`, which comes from the image, and as many GPUs as the node has are
    here. The device plugin sets their UUIDs, CDI and DRA set `void`; fewer GPUs than the node has were picked by it.
    """
    count, on_the_bus = len(facts.gpu_nodes), len(facts.nvidia_pci)
    everything = facts.environment.get("NVIDIA_VISIBLE_DEVICES") == "all" and 0 < on_the_bus <= count
    if facts.platform.engine != "kubernetes" or not everything or not facts.usable:
        return None
    return found("NVIDIA_VISIBLE_DEVICES is 'all', as CUDA images set it", f"{count} of {on_the_bus} GPUs are in here")


# hidden_on_purpose is asked before all others.
RULES = (not_given, capability_missing, without_nv, driver_library_missing, whole_node)
