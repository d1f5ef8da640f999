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

from rl.doctor.schema import (
    AllReduce,
    DriverApi,
    Full,
    GpuProcess,
    Kernel,
    KernelDriver,
    Limits,
    Nodes,
    Nvml,
    NvmlGpu,
    Platform,
    Rendering,
    TorchBuild,
    TorchGpu,
    Work,
)

SESSION = {"PATH": "/opt/venv/bin", "CUDA_VERSION": "13.0.2", "NVIDIA_VISIBLE_DEVICES": "all"}
PASCAL = gpu_machine(
    "NVIDIA GeForce GTX 1080",
    version="2.7.1",
    cuda="12.6",
    kernel_driver=KernelDriver(True, "535.54.03", False, True),
    driver_api=DriverApi(ended="ok", version=12020, init=0, count=1),
)
H100 = gpu_machine("NVIDIA H100 80GB HBM3", 8)
WORK = Work(
    ended="ok",
    matmul="",
    convolution="",
    bf16="",
    graph="",
    compile="",
    jit="",
    to_gpu=52.0,
    from_gpu=53.0,
    clock_reasons=(0, 4, 0),  # the power cap is normal
    pcie_generation=5,
    pcie_width=16,
    pcie_width_max=16,
)
AT_WORK = Full(
    works=tuple(replace(WORK, device=device) for device in range(8)),
    all_reduce=tuple(AllReduce(ended="ok", rank=rank, error="") for rank in range(8)),
    rendering=Rendering(ended="ok", error="", by="mujoco", vendor="NVIDIA Corporation", renderer="NVIDIA H100/PCIe"),
)
BARE_LIMITS = Limits(
    shm_total=32 * 2**30, shm_free=31 * 2**30, memlock=8 * 2**20, open_files=1024, cores=16, iommu=True
)
HEALTHY = {
    "H100": H100,
    "H100, put to work": replace(H100, full=AT_WORK),
    "bare machine with the usual limits and a job under nohup": gpu_machine(
        platform=Platform(kernel="6.8.0", cpus=16.0),
        limits=BARE_LIMITS,
        processes=(GpuProcess(pid=77, name="python", state="R", parent=1, seconds=3600.0),),
    ),
    "H100, torch not asked": replace(H100, torch=QUICK),
    "A100 with MIG": gpu_machine("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 1),
    "RTX 4090, on the bare machine": gpu_machine("NVIDIA GeForce RTX 4090", platform=Platform(kernel="6.8.0")),
    "GTX 1080, the 2.7 variant on an old driver": replace(
        PASCAL,
        torch=replace(
            PASCAL.torch,
            arch_flags="sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90",
            gpus=(TorchGpu("NVIDIA GeForce GTX 1080", "GPU-0", (6, 1)),),
        ),
    ),
    "two RTX 4090, for which the kernels of sm_86 are": replace(
        gpu_machine(gpus=2),
        torch=replace(
            gpu_machine(gpus=2).torch, gpus=tuple(TorchGpu("RTX 4090", f"GPU-{i}", (8, 9)) for i in range(2))
        ),
    ),
    "the image over SSH, with packages and a kernel of the user's own": gpu_machine(
        ssh=True,
        environment=SESSION,
        init_environment=SESSION,
        torch_build=TorchBuild(True, "2.13.0+cu130", "13.0", copies=("2.13.0 in /opt/venv",), image="2.13.0"),
        kernels=(Kernel("mine", "/home/me/venv/bin/python", True, True),),
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
