"""What is gathered of the container's user, limits, clocks and nodes; and from there to the finding."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_machine import COMMAND, build_stubs, clean_environment, make_root

from rl.doctor.facts import gather
from rl.doctor.facts.machine import slept
from rl.doctor.rules import judge
from rl.doctor.schema import Facts

NODES = ("nvidiactl", "nvidia-uvm", "nvidia0")
DEVICES = """Character devices:
  1 mem
195 nvidia
195 nvidiactl
508 nvidia-uvm
511 nvidia-caps

Block devices:
259 blkext
  7 nvidia-block
"""


@pytest.fixture(scope="module")
def stubs(tmp_path_factory):
    return build_stubs(tmp_path_factory.mktemp("stubs"))


@pytest.fixture(autouse=True)
def only_our_variables(monkeypatch):
    for name in set(os.environ) - set(clean_environment()):
        monkeypatch.delenv(name)


class Answer:
    """A probe that has said this."""

    def __init__(self, said):
        self.said = {"ended": "ok"} | said

    def collect(self):
        return self.said

    def kill(self):
        return True


def look(root, environment=None, **said) -> Facts:
    """The facts of this tree, with `said` in place of what the probes would say."""
    quiet = {"driver_api": {"init": 100}, "nvml": {"init": 999}} | said
    answering = {"ask": lambda probe, *_arguments, **_limits: Answer(quiet.get(probe, {}))}
    return gather(root, with_torch=False, environment=environment or {}, **answering)


def write(root, name, text):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return root


def host(tmp_path, **more):
    return make_root(tmp_path / "root", kernel_module=True, pci_driver="nvidia", **more)


def headline(facts):
    return judge(facts)[0].id


def refused(name, errno, mode="0666", group=0):
    return {"name": name, "mode": mode, "group": group, "major": 195, "opened": errno}


@pytest.mark.parametrize(
    ("uid_map", "rootless"),
    [
        ("         0          0 4294967295\n", False),
        ("         0       1000          1\n         1     100000      65536\n", True),
        ("         0     100000      65536\n", True),
        ("", False),
    ],
)
def test_a_user_namespace_is_known_by_its_map(tmp_path, uid_map, rootless):
    root = write(host(tmp_path), "proc/self/uid_map", uid_map)
    facts = look(root)
    assert facts.platform.rootless is rootless
    commands = [fix.command for fix in judge(facts)[0].fixes]
    assert any("--config=$HOME/.config/docker" in command for command in commands) is rootless


@pytest.mark.parametrize(
    ("label", "selinux"),
    [
        ("system_u:system_r:container_t:s0:c1,c2\n\0", "system_u:system_r:container_t:s0:c1,c2"),
        ("docker-default (enforce)\n", ""),
        ("unconfined\n", ""),
    ],
)
def test_selinuxs_label_is_told_from_apparmors(tmp_path, label, selinux):
    root = write(host(tmp_path, device_nodes=NODES), "proc/self/attr/current", label)
    shut = {"uid": 0, "groups": [0], "found": [refused(name, "EACCES") for name in NODES]}
    facts = look(root, nodes=shut)
    assert facts.platform.selinux == selinux
    assert (headline(facts) == "selinux-refuses") is bool(selinux)


def test_time_asleep_is_the_difference_of_two_clocks_of_this_machine_only(tmp_path):
    clocks = {time.CLOCK_BOOTTIME: 5000.04, time.CLOCK_MONOTONIC: 1400.0}
    assert slept(Path("/"), clocks.__getitem__) == 3600.0
    assert slept(tmp_path, clocks.__getitem__) == 0.0
    assert slept(Path("/")) >= 0.0  # the kernel's own clocks


@pytest.mark.parametrize(
    ("name", "text"),
    [("proc/1/environ", "PATH=/bin\0container=lxc\0"), ("run/systemd/container", "lxc\n")],
)
def test_lxc_is_known_by_what_it_tells_process_1(tmp_path, name, text):
    root = write(host(tmp_path, engine=None), name, text)
    write(root, "proc/devices", DEVICES)
    facts = look(root, nodes={"uid": 0, "found": [refused(name, "EPERM") for name in NODES]})
    assert facts.platform.engine == "lxc"
    assert headline(facts) == "lxc-device-refused"
    lines = [fix.command for fix in judge(facts)[0].fixes if "cgroup2" in fix.command]
    assert lines == [f"lxc.cgroup2.devices.allow: c {number}:* rwm" for number in (195, 508, 511)]


@pytest.mark.parametrize("text", ["PATH=/bin\0container=docker\0", "PATH=/bin\0xcontainer=lxc\0", ""])
def test_other_words_of_process_1_are_not_lxcs(tmp_path, text):
    assert look(write(host(tmp_path, engine=None), "proc/1/environ", text)).platform.engine is None


def test_docker_in_lxc_is_docker(tmp_path):
    assert look(write(host(tmp_path), "run/systemd/container", "lxc")).platform.engine == "docker"


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({"cpu.max": "50000 100000\n"}, 0.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "99900000 100000\n"}, None),  # more than there are
        ({"cpu/cpu.cfs_quota_us": "25000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.25),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu.max": "50000 0\n"}, None),
        ({"cpu.max": "garbage\n"}, None),
        ({"cpu.max": "9" * 5000 + " 1\n"}, None),
        ({}, None),
    ],
)
def test_the_cgroups_limit_of_cores_is_read_in_both_versions(tmp_path, files, cpus):
    root = host(tmp_path)
    for name, text in files.items():
        write(root, f"sys/fs/cgroup/{name}", text)
    assert look(root).platform.cpus == (len(os.sched_getaffinity(0)) if cpus is None else cpus)


def test_the_numbers_of_nvidias_devices_are_read(tmp_path):
    root = write(host(tmp_path), "proc/devices", DEVICES)
    assert look(root).kernel_driver.majors == {"nvidia": 195, "nvidiactl": 195, "nvidia-uvm": 508, "nvidia-caps": 511}


@pytest.mark.parametrize("line", ["nvidia", "x nvidia", "-1 nvidia", "9" * 5000 + " nvidia", "195 nvidia more"])
def test_garbage_among_the_devices_is_left_out(tmp_path, line):
    assert look(write(host(tmp_path), "proc/devices", f"{line}\n")).kernel_driver.majors == {}


@pytest.mark.parametrize(("folders", "there"), [(("lib", "drivers"), True), (("lib",), False), ((), False)])
def test_the_folders_of_windowss_driver_are_looked_for(tmp_path, stubs, monkeypatch, folders, there):
    root = make_root(tmp_path / "root", kernel="5.15.153.1-microsoft-standard-WSL2", device_nodes=("dxg",))
    for folder in folders:
        (root / "usr/lib/wsl" / folder).mkdir(parents=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(stubs))
    monkeypatch.setenv("STUB_NVML_INIT", "17")
    monkeypatch.setenv("STUB_CUINIT", "100")
    facts = gather(root, with_torch=False)
    assert facts.platform.wsl_libraries is there
    assert headline(facts) == "wsl-gpu-blocked"


def test_nodes_are_asked_with_who_asks_and_those_of_rendering_too(tmp_path):
    root = host(tmp_path, device_nodes=("nvidiactl", "nvmap"))
    (root / "dev/dri").mkdir()
    (root / "dev/dri/renderD128").touch(mode=0o640)
    (root / "dev/dri/renderD128").chmod(0o640)
    (root / "dev/dri/card0").touch()
    nodes = gather(root, with_torch=False).nodes
    assert nodes.ended == "ok"
    assert nodes.uid == os.geteuid()
    assert set(nodes.groups) == {os.getegid(), *os.getgroups()}
    assert [node.name for node in nodes.found] == ["nvidiactl", "nvmap"]
    assert [(node.name, node.mode, node.opened) for node in nodes.render] == [("renderD128", "0640", "ok")]


# Root's children obey modes, too, once these capabilities are out of its bounding set; a user has none to drop.
DROP = "import ctypes; [ctypes.CDLL(None).prctl(24, capability, 0, 0, 0) for capability in (1, 2)]"  # CAP_DAC_…


def test_a_node_shut_by_its_mode_is_found_with_its_group(tmp_path, stubs):
    root = host(tmp_path, device_nodes=NODES)
    for name in NODES:
        (root / "dev" / name).chmod(0o000)
    done = subprocess.run(
        [sys.executable, "-c", f"{DROP}; {COMMAND}", root, "--quick", "--json"],
        capture_output=True,
        env=clean_environment(LD_LIBRARY_PATH=stubs, STUB_CUINIT=100, STUB_NVML_INIT=4),
        check=False,
    )
    finding = json.loads(done.stdout)["findings"][0]
    assert (done.returncode, finding["id"]) == (3, "node-permissions")
    group = (root / "dev/nvidia0").stat().st_gid
    assert f"/dev/nvidia0 has mode 0000 and group {group}" in finding["evidence"]


def unopenable(root, name):
    """A socket, which the kernel refuses to open: ENXIO."""
    with socket.socket(socket.AF_UNIX) as made:
        here = os.open(root / "dev", os.O_RDONLY)
        made.bind(f"/proc/self/fd/{here}/{name}")
        os.close(here)


def test_a_node_with_a_number_that_no_driver_has_is_stale(tmp_path, stubs, monkeypatch):
    root = write(host(tmp_path, device_nodes=("nvidiactl", "nvidia0")), "proc/devices", DEVICES)
    unopenable(root, "nvidia-uvm")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(stubs))
    monkeypatch.setenv("STUB_CUINIT", "999")
    facts = gather(root, with_torch=False)
    assert headline(facts) == "stale-node"
    assert judge(facts)[0].evidence[1] == "its number is 0, and /proc/devices has 508 for the driver"


def test_a_lost_gpu_is_known_by_the_note_that_it_worked(tmp_path):
    root = host(tmp_path, device_nodes=NODES)
    shut = {"nodes": {"uid": 0, "found": [refused(name, "EPERM") for name in NODES]}}
    assert headline(look(root, **shut)) == "device-cgroup-refuses"
    write(root, "tmp/rl/gpu_worked", "2026-11-30T08:15:00Z\n")
    facts = look(root, **shut)
    assert (facts.worked, headline(facts)) == ("2026-11-30T08:15:00Z", "gpu-lost")
    assert "a GPU worked in here at 2026-11-30T08:15:00Z" in judge(facts)[0].evidence


@pytest.mark.parametrize("text", ["", "yesterday\n", "2026-11-30T08:15:00Z\nsecret\n", "\xff\0"])
def test_a_note_that_is_none_says_nothing(tmp_path, text):
    assert look(write(host(tmp_path), "tmp/rl/gpu_worked", text)).worked is None


@pytest.mark.parametrize(
    ("variables", "finding"),
    [
        ({"STUB_CUINIT": "803", "STUB_NVML_INIT": "18"}, "driver-version-mismatch"),
        ({"STUB_CUINIT": "100"}, "gpu-needs-open-module"),
    ],
)
def test_what_the_driver_answers_meets_what_the_files_say(tmp_path, stubs, monkeypatch, variables, finding):
    root = host(tmp_path, device_nodes=NODES)
    write(root, "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.26  Fri\n")
    write(root, "sys/bus/pci/devices/0000:01:00.0/device", "0x2b85\n")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(stubs))
    monkeypatch.setenv("STUB_GPU_COUNT", "0")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert headline(gather(root, with_torch=False)) == finding


@pytest.mark.parametrize(
    ("library", "finding"),
    [("580.105.08", "host-needs-reboot"), ("580.82.07", "container-older-than-driver")],
)
def test_the_version_behind_a_librarys_name_is_the_linkers(tmp_path, stubs, monkeypatch, library, finding):
    folder = tmp_path / "libraries"
    folder.mkdir()
    for name in ("libcuda.so", "libnvidia-ml.so"):
        (folder / f"{name}.{library}").write_bytes((stubs / f"{name}.1").read_bytes())
        (folder / f"{name}.1").symlink_to(f"{name}.{library}")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    monkeypatch.setenv("STUB_NVML_INIT", "18")
    monkeypatch.setenv("STUB_CUINIT", "803")
    facts = gather(host(tmp_path, device_nodes=NODES), with_torch=False)
    assert (facts.library_version, headline(facts)) == (library, finding)


def test_an_old_card_that_the_driver_ignores_is_known_by_its_number(tmp_path):
    root = make_root(tmp_path / "root", kernel_module=True, pci=True, engine=None)
    write(root, "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  590.44.01  Fri\n")
    write(root, "sys/bus/pci/devices/0000:01:00.0/device", "0x1b80\n")
    assert headline(look(root)) == "driver-too-new-for-gpu"


@pytest.mark.parametrize(
    ("machine", "environment", "finding"),
    [
        ({"engine": "apptainer", "device_nodes": NODES}, {}, "apptainer-without-nv"),
        ({"engine": "podman"}, {}, "container-without-gpu"),
        ({"engine": None}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "container-without-gpu"),
        ({}, {"NVIDIA_VISIBLE_DEVICES": "void"}, "gpu-hidden"),
        ({"pci_driver": None, "kernel_module": False, "kernel": "6.10.14-linuxkit"}, {}, "docker-desktop"),
        ({"pci_driver": "vfio-pci", "kernel_module": False}, {}, "gpu-reserved-for-vm"),
    ],
)
def test_what_was_given_is_seen_from_the_tree(tmp_path, machine, environment, finding):
    root = make_root(tmp_path / "root", **{"kernel_module": True, "pci_driver": "nvidia"} | machine)
    found = [refused(name, "ok") for name in machine.get("device_nodes", ())]
    missing = {"init": None, "load_error": "libcuda.so.1: cannot open shared object file"}
    facts = look(root, environment, nodes={"found": found}, driver_api=missing, nvml={"load_error": "none"})
    assert headline(facts) == finding


def test_a_pod_that_owns_its_whole_node_by_the_images_variable(tmp_path):
    environment = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "NVIDIA_VISIBLE_DEVICES": "all"}
    works = {"nodes": {"found": [refused(name, "ok") for name in NODES]}, "driver_api": {"init": 0, "count": 1}}
    findings = judge(look(host(tmp_path), environment, **works, nvml={"init": 0}))
    assert [finding.id for finding in findings if finding.id == "whole-node-in-pod"] != []
    assert json.dumps([finding.fixes[0].command for finding in findings]).count("nvidia.com/gpu") == 1
