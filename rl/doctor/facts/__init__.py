"""Gathers the facts: files are read here, everything that touches the driver or torch runs in a child.

`root` is the tree whose /proc, /sys, /dev, /etc and /run are read, "/" but for tests.
"""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from rl.doctor.child import Child
from rl.doctor.facts import libraries, limits, machine, notebooks, session, software, tools, work
from rl.doctor.schema import DriverApi, Facts, Full, Nodes, Nvml, TorchRun, decode

# A driver without persistence takes seconds per GPU for its first call: 30 s are no hang yet.
DRIVER_LIMIT = 30.0  # seconds
TORCH_LIMIT = 90.0  # seconds; its first import from a cold network disk takes a minute


class Asked(Protocol):
    """A probe on its way."""

    def collect(self) -> dict[str, Any]:
        """Wait for it, within its limit; the JSON that it said."""

    def kill(self) -> object:
        """End it, and whatever it started."""


def gather(
    root: Path = Path("/"),
    *,
    with_torch: bool = True,
    full: bool = False,
    driver_limit: float = DRIVER_LIMIT,
    torch_limit: float = TORCH_LIMIT,
    environment: Mapping[str, str] = os.environ,
    ask: Callable[..., Asked] = Child,
) -> Facts:
    """All facts of this machine; never raises for what is missing or broken, and returns within the limits.

    `full` puts every GPU to work besides, which takes minutes.
    `ask(probe, *arguments, limit=seconds, without=variables)` starts a probe; tests answer in its place.
    """
    children = {
        "nodes": ask("nodes", str(root), limit=driver_limit),
        "driver_api": ask("driver_api", limit=driver_limit),
        "nvml": ask("nvml", limit=driver_limit),
    }
    if with_torch:
        children["torch"] = ask("torch", limit=torch_limit)
    try:
        read: dict[str, Any] = {
            "platform": machine.platform(root, environment),
            "kernel_driver": machine.kernel_driver(root),
            "pci": machine.pci(root),
            "limits": limits.limits(root),
            "processes": session.with_forks(root, limits.gpu_processes(root)),
            "environment": session.chosen(environment),
            "init_environment": session.of_init(root),
            "ssh": "SSH_CONNECTION" in environment,
            "worked": session.worked(root),
            "libraries": libraries.libraries(root, environment),
            "torch_build": software.torch_build(root),
            "tools": tools.tools(root, environment),
            "kernels": notebooks.kernels(root, environment),
        }
        said = {name: child.collect() for name, child in children.items()}
        if environment.get("LD_LIBRARY_PATH"):  # is that to blame? what fails is asked again without it
            if said["driver_api"].get("init"):
                children["driver_api_alone"] = ask("driver_api", limit=driver_limit, without=("LD_LIBRARY_PATH",))
            if _fails(said.get("torch", {})):
                children["torch_alone"] = ask("torch", limit=torch_limit, without=("LD_LIBRARY_PATH",))
            said |= {name: child.collect() for name, child in children.items() if name not in said}
    finally:
        for child in children.values():
            child.kill()
    torch = decode(TorchRun, said.get("torch"))
    devices = [f"cuda:{index}" for index in range(torch.count or 0)] if torch.available else []
    return Facts(
        created=time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
        **read,
        nodes=decode(Nodes, said["nodes"]),
        driver_api=decode(DriverApi, said["driver_api"]),
        driver_api_alone=decode(DriverApi, said.get("driver_api_alone")),
        nvml=decode(Nvml, said["nvml"]),
        torch=torch,
        torch_alone=decode(TorchRun, said.get("torch_alone")),
        full=work.full(devices, ask) if full else Full(),
    )


def _fails(torch: Mapping[str, Any]) -> bool:
    crashed = str(torch.get("ended")).startswith("signal")
    return crashed or bool(torch.get("error") or torch.get("cudnn_error"))
