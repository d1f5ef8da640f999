"""Machines on which no rule may speak."""

from dataclasses import replace

from machine_facts import (
    JETSON,
    NO_FILE,
    NOT_LOADED,
    NOUVEAU,
    QUICK,
    WSL,
    gpu_machine,
    nodes,
)

from rl.doctor.schema import DriverApi, KernelDriver, Nodes, Nvml, NvmlGpu, Platform

H100 = gpu_machine("NVIDIA H100 80GB HBM3", 8)
HEALTHY = {
    "H100": H100,
    "H100, torch not asked": replace(H100, torch=QUICK),
    "A100 with MIG": gpu_machine("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 1),
    "RTX 4090, on the bare machine": gpu_machine("NVIDIA GeForce RTX 4090", platform=Platform(kernel="6.8.0")),
    "GTX 1080, the 2.7 variant on an old driver": gpu_machine(
        "NVIDIA GeForce GTX 1080",
        version="2.7.1",
        cuda="12.6",
        kernel_driver=KernelDriver(True, "535.54.03", False, True),
        driver_api=DriverApi(ended="ok", version=12020, init=0, count=1),
    ),
    "WSL2": gpu_machine(platform=WSL, kernel_driver=NOT_LOADED, pci=(), nodes=nodes()),
    "Jetson, which has no NVML": gpu_machine(
        "Orin",
        platform=JETSON,
        kernel_driver=NOT_LOADED,
        pci=(),
        nodes=nodes(),
        nvml=Nvml(ended="ok", load_error=f"libnvidia-ml.so.1: {NO_FILE}"),
    ),
    "two GPUs, the second one selected": replace(
        gpu_machine(gpus=1), pci=gpu_machine(gpus=2).pci, nodes=nodes("nvidiactl", "nvidia-uvm", "nvidia1")
    ),
    "CDI, which sets the variable to void": gpu_machine(environment={"NVIDIA_VISIBLE_DEVICES": "void"}),
    "gVisor, which shows nodes only": gpu_machine(kernel_driver=NOT_LOADED, pci=()),
    "Kubernetes, whose device plugin names the GPUs": gpu_machine(
        platform=Platform(kernel="6.8.0", engine="kubernetes"), environment={"NVIDIA_VISIBLE_DEVICES": "GPU-0"}
    ),
    "rootless podman on SELinux, after a suspend": gpu_machine(
        platform=Platform(engine="podman", rootless=True, selinux="u:r:container_t:s0", slept=3600.0, cpus=2.0),
    ),
    "two GPUs, of which the device cgroup allows one": gpu_machine(
        nodes=Nodes(
            ended="ok",
            found=(*nodes("nvidiactl", "nvidia-uvm", "nvidia0").found, *nodes("nvidia1", opened="EPERM").found),
        )
    ),
    "forward compatibility: libcuda newer than the driver": gpu_machine(
        kernel_driver=KernelDriver(True, "535.54.03", False, True),
        nvml=Nvml(ended="ok", init=0, cuda_version=12020, count=1, gpus=(NvmlGpu(name="NVIDIA H100"),)),
        torch=QUICK,
    ),
    "WSL2 with CDI, which has no nodes to count": gpu_machine(
        platform=WSL, kernel_driver=NOT_LOADED, pci=(), nodes=nodes(), environment={"NVIDIA_VISIBLE_DEVICES": "void"}
    ),
    "a kernel driver of another name": gpu_machine(kernel_driver=NOT_LOADED, pci=(replace(NOUVEAU[0], driver="nova"),)),
    "a torch that works in spite of the version": gpu_machine(
        kernel_driver=KernelDriver(True, "550.54.15", True, True),
        driver_api=DriverApi(ended="ok", version=12080, init=0, count=1),
    ),
    "a sandbox without nodes": gpu_machine(nodes=nodes()),
}
