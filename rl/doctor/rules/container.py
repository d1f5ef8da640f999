"""What the container was given of the host's GPU: nothing, or not everything."""

from rl.doctor.rules.finding import Finding, Fix, Severity
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
        "docker",
        "deploy: {resources: {reservations: {devices: [{driver: nvidia, count: all, capabilities: [gpu]}]}}}",
        "in the service, if you use compose",
    ),
    Fix("podman", "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml", "on the host, once"),
    Fix("podman", "podman run --device nvidia.com/gpu=all --security-opt=label=disable ..."),
    Fix("kubernetes", "resources: {limits: {nvidia.com/gpu: 1}}", "in the container's spec"),
    Fix("kubernetes", "runtimeClassName: nvidia", "in the pod's spec, if the cluster has that class"),
    Fix("apptainer", "apptainer exec --nv ..."),
)


def hidden_on_purpose(facts: Facts) -> Finding | None:
    """A variable that hides every GPU: wanted, unless GPU_CHECK=strict says otherwise.

    CDI sets NVIDIA_VISIBLE_DEVICES=void for GPUs that work: it counts only where there are no nodes.
    """
    if facts.usable or not facts.hardware_visible:
        return None
    severity: Severity = "fatal" if facts.strict else "info"
    cuda = facts.environment.get("CUDA_VISIBLE_DEVICES")
    if cuda is not None and (cuda == "" or cuda.startswith("-")):
        cause, evidence = "CUDA_VISIBLE_DEVICES hides every GPU", f"CUDA_VISIBLE_DEVICES is '{cuda}'"
        return Finding("gpu-hidden", severity, cause, (evidence,), (Fix("inside", "unset CUDA_VISIBLE_DEVICES"),))
    nvidia = facts.environment.get("NVIDIA_VISIBLE_DEVICES")
    if nvidia not in ("", "void", "none") or facts.gpu_nodes or facts.platform.engine is None:
        return None
    cause = "NVIDIA_VISIBLE_DEVICES hides every GPU from this container"
    evidence = f"NVIDIA_VISIBLE_DEVICES is '{nvidia}', and there is no /dev/nvidia0"
    fix = Fix("docker", "docker run --gpus all -e NVIDIA_VISIBLE_DEVICES=all ...")
    return Finding("gpu-hidden", severity, cause, (evidence,), (fix,))


def not_given(facts: Facts) -> Finding | None:
    """The host's driver is loaded, and nothing of it reached the container."""
    platform, nodes = facts.platform, facts.nodes
    host_ready = facts.kernel_driver.loaded or any(gpu.driver == "nvidia" for gpu in facts.nvidia_pci)
    if not host_ready or platform.engine is None or platform.own_way:
        return None
    if nodes.ended != "ok" or nodes.found or facts.usable:
        return None
    evidence = (
        f"the host's NVIDIA driver is loaded (version {facts.driver_version or 'unknown'})",
        "there is no /dev/nvidia* in here",
        facts.driver_api.load_error or "libcuda.so.1 is here, but of no use without the nodes",
    )
    cause = "the host has a GPU and its driver, but this container was started without them (no --gpus)"
    return Finding("container-without-gpu", "fatal", cause, evidence, GIVE_GPU)


def capability_missing(facts: Facts) -> Finding | None:
    """NVIDIA_DRIVER_CAPABILITIES keeps a driver library out: compute stands for libcuda, utility for NVML."""
    compute, utility = facts.driver_api.load_error is None, facts.nvml.load_error is None
    if not any(node.opened == "ok" for node in facts.gpu_nodes) or (compute and utility):
        return None
    word, error = ("utility", facts.nvml.load_error) if compute else ("compute", facts.driver_api.load_error)
    if not facts.lacks_capability(word):
        return None
    given = facts.environment["NVIDIA_DRIVER_CAPABILITIES"]
    cause = f"NVIDIA_DRIVER_CAPABILITIES={given} leaves out {word}, so its driver library was not given"
    command = "-e NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics"
    fixes = tuple(Fix(engine, f"{engine} run {command} ...") for engine in ("docker", "podman"))
    fixes += (Fix("kubernetes", "env: [{name: NVIDIA_DRIVER_CAPABILITIES, value: 'compute,utility,graphics'}]"),)
    return Finding("capability-missing", "degraded" if compute else "fatal", cause, (str(error),), fixes)


def uvm_missing(facts: Facts) -> Finding | None:
    """The GPU's nodes are there, /dev/nvidia-uvm is not: nvidia-smi works and CUDA does not."""
    names = {node.name for node in facts.nodes.found if node.opened == "ok"}
    if "nvidiactl" not in names or any(node.name == "nvidia-uvm" for node in facts.nodes.found):
        return None
    if facts.platform.own_way or facts.driver_api.init in (None, 0):
        return None
    evidence = (
        "/dev/nvidiactl opens, /dev/nvidia-uvm does not exist",
        f"cuInit gives {facts.driver_api.init} ({facts.driver_api.init_name})",
    )
    if facts.kernel_driver.uvm_loaded:
        cause = "/dev/nvidia-uvm was not passed to this container, and CUDA needs it"
        devices = "--device /dev/nvidia-uvm --device /dev/nvidia-uvm-tools"
        fixes = tuple(Fix(engine, f"{engine} run {devices} ...") for engine in ("docker", "podman"))
    else:
        cause = "the kernel module nvidia_uvm is not loaded on the host, and CUDA needs it"
        fixes = (Fix("host", "sudo nvidia-modprobe -u -c=0", "then start a new container"),)
    return Finding("uvm-missing", "fatal", cause, evidence, fixes)


def driver_library_missing(facts: Facts) -> Finding | None:
    """The GPU is reachable, but libcuda.so.1 cannot be loaded."""
    error, platform = facts.driver_api.load_error, facts.platform
    on_host = facts.kernel_driver.loaded and platform.engine is None
    if error is None or not (facts.nodes.found or platform.dxg or platform.tegra or on_host):
        return None
    if capability_missing(facts):
        return None
    cause = "the GPU is here, but the driver's library libcuda.so.1 cannot be loaded"
    outside = (
        Fix(
            "host", "sudo ubuntu-drivers install && sudo reboot", "on Ubuntu, since the driver's libraries are missing"
        ),
    )
    windows = Fix("wsl", "wsl --update", "in Windows, beside a recent NVIDIA driver for Windows")
    fixes = (*GIVE_GPU, windows) if platform.engine else (*outside, windows)
    return Finding("driver-library-missing", "fatal", cause, (error,), fixes)
