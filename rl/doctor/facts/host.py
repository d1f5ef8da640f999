"""The host before the first container: its own commands are asked, all at once, each with a time limit."""

import contextlib
import json
import os
import platform as python_platform
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl.doctor.facts import machine
from rl.doctor.facts.files import text_of
from rl.doctor.rules.start import IMAGE
from rl.doctor.schema.host import Docker, HostFacts, HostGpu, Port, Toolkit

LIMIT = 20.0  # seconds
SMI_LIMIT = 30.0  # seconds; a driver without persistence takes seconds per GPU for its first call
SMI = ("nvidia-smi", "--format=csv,noheader")
FIELDS = "--query-gpu=name,driver_version"


class Command:
    """One of the host's commands, started at once; `collect` waits for it. A missing command has an empty answer."""

    def __init__(self, *command: str, environment: Mapping[str, str], limit: float = LIMIT) -> None:
        self.command = " ".join(command[:2])
        self.path = shutil.which(command[0], path=environment.get("PATH", os.defpath)) or ""
        self.limit = limit
        self.out = self.failure = ""
        self.process: subprocess.Popen[bytes] | None = None
        if self.path:
            with contextlib.suppress(OSError):
                self.process = subprocess.Popen(
                    [self.path, *command[1:]],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                    env={**environment, "LC_ALL": "C"},
                )
        self.started = time.monotonic()

    def collect(self) -> "Command":
        """Fill in `out`, what it printed, and `failure`, its last words where it failed; "" where all went well."""
        if self.process is None:
            return self
        try:
            out, err = self.process.communicate(timeout=max(0.0, self.started + self.limit - time.monotonic()))
            self.out = out.decode(errors="replace").strip()
            words = err.decode(errors="replace").strip() or self.out
            self.failure = " ".join(words.split())[-1000:] or "failed" if self.process.returncode else ""
        except subprocess.TimeoutExpired:
            self.failure = f"{self.command} had not ended after {self.limit:.0f} s"
            _give_up(self.process)
        self.process = None
        return self


def _give_up(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=1)
    if process.returncode is None:  # it waits inside the kernel driver: nobody may wait for it again
        process.returncode = -signal.SIGKILL
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def gather_host(
    root: Path = Path("/"),
    *,
    environment: Mapping[str, str] = os.environ,
    error: str = "",
    limit: float = LIMIT,
    smi_limit: float = SMI_LIMIT,
) -> HostFacts:
    """Everything that can be seen of this host without rights; never raises for what is missing or broken.

    `root` is the tree of /etc, /proc, /sys and /var, "/" but for tests; commands are looked for on the PATH.
    """
    asked = {
        "docker": ("docker", "--version"),
        "endpoint": ("docker", "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"),
        "info": ("docker", "info", "--format", "{{json .}}"),
        "compose": ("docker", "compose", "version", "--short"),
        "image": ("docker", "image", "inspect", IMAGE, "--format", "{{.Id}}"),
        "podman": ("podman", "--version"),
        "ctk": ("nvidia-ctk", "--version"),
        "getenforce": ("getenforce",),
        "getsebool": ("getsebool", "container_use_devices"),
        "user": ("id", "-un"),
        "groups": ("id", "-nG"),
    }
    smi = Command(*SMI, f"{FIELDS},compute_cap", environment=environment, limit=smi_limit)
    started = {name: Command(*words, environment=environment, limit=limit) for name, words in asked.items()}
    said = {name: command.collect() for name, command in started.items()}
    stands_in = "podman" in said["docker"].out.lower()  # podman-docker, a `docker` that is podman
    docker = Docker(path="") if stands_in else _docker(root, said, environment)
    user = said["user"].out
    listed = Command("id", "-nG", user, environment=environment).collect() if user else said["groups"]
    gpus, smi_error = _gpus(smi, environment, smi_limit)
    podman = said["podman"].out.split() or (said["docker"].out.split() if stands_in else [])
    folder, free = _disk(root, docker, environment)
    devices = said["getsebool"].out.split()[-1:]
    return HostFacts(
        system=python_platform.system(),
        platform=machine.platform(root, environment),
        kernel_driver=machine.kernel_driver(root),
        pci=machine.pci(root),
        docker=docker,
        podman=podman[-1] if podman else "",
        compose=said["compose"].out if docker.path and not said["compose"].failure else "",
        toolkit=_toolkit(root, said["ctk"], environment),
        gpus=gpus,
        smi_error=smi_error,
        ports=(_port("JUPYTER_PORT", 8888, environment), _port("SSH_PORT", 2222, environment)),
        disk_folder=folder,
        disk_free=free,
        selinux=said["getenforce"].out,
        selinux_devices=devices == ["on"] if devices else None,
        user=user,
        groups=tuple(said["groups"].out.split()),
        groups_listed=tuple(listed.out.split()),
        error=error,
    )


def _docker(root: Path, said: Mapping[str, Command], environment: Mapping[str, str]) -> Docker:
    info = _json(said["info"].out)
    version, failure = _text(info, "ServerVersion"), said["info"].failure
    if said["info"].path and not version:
        errors = info.get("ServerErrors")
        failure = " ".join(map(str, errors)) if isinstance(errors, list) and errors else failure
    rootless = "name=rootless" in _list(info, "SecurityOptions")
    by_containerd = "io.containerd.snapshotter" in str(info.get("DriverStatus"))
    home = Path(environment.get("HOME", "/nonexistent"))
    config, config_error = _config(home / ".config/docker/daemon.json" if rootless else root / "etc/docker/daemon.json")
    path = said["docker"].path
    return Docker(
        path=os.path.realpath(path) if path and os.path.dirname(path) != "/snap/bin" else path,
        endpoint=said["endpoint"].out,
        error="" if version else failure or ("docker info names no daemon" if path else ""),
        version=version,
        system=_text(info, "OperatingSystem"),
        folder=_text(info, "DockerRootDir"),
        images="/var/lib/containerd" if by_containerd and not rootless else _text(info, "DockerRootDir"),
        runtimes=tuple(info["Runtimes"]) if isinstance(info.get("Runtimes"), dict) else (),
        security=_list(info, "SecurityOptions"),
        devices=tuple(_text(each, "ID") for each in info.get("DiscoveredDevices") or () if isinstance(each, dict)),
        config_error=config_error,
        config_runtimes=tuple(config["runtimes"]) if isinstance(config.get("runtimes"), dict) else (),
        image=not said["image"].failure if version else None,
    )


def _config(path: Path) -> tuple[dict[str, Any], str]:
    """Docker's daemon.json, and why it is none."""
    text = text_of(path)
    try:
        config = json.loads(text) if text.strip() else {}
    except ValueError as error:
        return {}, f"{path} is not JSON: {error}"
    return (config, "") if isinstance(config, dict) else ({}, f"{path} holds no JSON object")


def _toolkit(root: Path, ctk: Command, environment: Mapping[str, str]) -> Toolkit:
    hook = shutil.which("nvidia-container-runtime-hook", path=environment.get("PATH", os.defpath))
    newer = False
    with contextlib.suppress(OSError):
        newer = bool(hook) and os.stat(hook or "").st_ctime > (root / "var/run/docker.pid").stat().st_mtime
    config = root / "etc/nvidia-container-runtime/config.toml"
    lines = [line.replace(" ", "").strip() for line in text_of(config).splitlines()]
    files = (file for folder in ("etc/cdi", "var/run/cdi") for file in sorted((root / folder).glob("*")))
    return Toolkit(
        version=(ctk.out.split("\n")[0].split() or ["unknown"])[-1] if ctk.path else "",
        hook=bool(hook),
        newer_than_docker=newer,
        no_cgroups="no-cgroups=true" in lines if config.exists() else None,
        specs=tuple(str(file) for file in files if "nvidia.com/gpu" in text_of(file)),
    )


def _gpus(smi: Command, environment: Mapping[str, str], limit: float) -> tuple[tuple[HostGpu, ...], str]:
    """What nvidia-smi lists, or why it fails; one that does not know `compute_cap` is asked again without it."""
    if "compute_cap" in smi.collect().failure:
        smi = Command(*SMI, FIELDS, environment=environment, limit=limit).collect()
    if smi.failure:
        return (), smi.failure
    gpus = []
    for line in smi.out.splitlines():
        name, driver, *capability = [part.strip() for part in line.rsplit(",", 2 if line.count(",") > 1 else 1)]
        numbers = capability[0].split(".") if capability else []
        known = len(numbers) == 2 and all(number.isdecimal() for number in numbers)
        gpus.append(HostGpu(name, driver, tuple(map(int, numbers)) if known else ()))
    return tuple(gpus), ""


def _port(variable: str, default: int, environment: Mapping[str, str]) -> Port:
    wish = environment.get(variable, "")
    number = int(wish) if wish.isdecimal() and 0 < int(wish) < 2**16 else default
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that was closed a moment ago is free
        try:
            probe.bind(("127.0.0.1", number))
            taken = False
        except PermissionError:  # below 1024 only the daemon, as root, may bind
            taken = False
        except OSError:
            taken = True
    return Port(number, variable, asked=bool(wish), taken=taken)


def _disk(root: Path, docker: Docker, environment: Mapping[str, str]) -> tuple[str, int | None]:
    """Where images are kept, and how much is free there."""
    home = Path(environment.get("HOME", "/nonexistent"))
    storage = home / ".local/share/containers" if os.getuid() else root / "var/lib/containers"
    folder = root / docker.images.lstrip("/") if docker.images else storage if docker.path == "" else None
    if folder is None:
        return "", None
    there = next(each for each in (folder, *folder.parents) if each.exists() or each == Path(each.anchor))
    try:
        return str(folder), shutil.disk_usage(there).free
    except OSError:
        return str(folder), None


def _json(text: str) -> dict[str, Any]:
    try:
        read = json.loads(text or "{}")
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def _text(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    return value if isinstance(value, str) else ""


def _list(data: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = data.get(key)
    return tuple(str(each) for each in value) if isinstance(value, list) else ()
