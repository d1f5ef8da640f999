"""Nodes that cannot be opened: who refuses, and what mends it."""

from dataclasses import replace

import pytest
from machine_facts import commands, gpu_machine, headline, ids, nodes
from rule_tests import fires, silent

from rl.doctor.rules import judge
from rl.doctor.schema import DriverApi, Facts, KernelDriver, Node, Nodes, Nvml, Platform

ALL = ("nvidiactl", "nvidia-uvm", "nvidia0")
CONTAINER_T = "system_u:system_r:container_t:s0:c123,c456"
WORKED = "2026-11-30T08:15:00Z"


def shut(error: str, names: tuple[str, ...] = ALL, *, mode: str = "0666", group: int = 0, uid: int | None = 0, **more):
    """A machine whose nodes `names` answer `error` to user `uid`; the others open."""
    platform = {name: more.pop(name) for name in ("engine", "rootless", "selinux") if name in more}
    found = tuple(Node(name, mode, group, 195, error if name in names else "ok") for name in ALL)
    groups = more.pop("groups", (uid,) if uid is not None else ())
    parts = {
        "platform": Platform(**{"kernel": "6.8.0", "engine": "docker"} | platform),
        "nodes": Nodes(ended="ok", found=found, uid=uid, groups=groups),
        "driver_api": DriverApi(ended="ok", version=13000, init=100, init_name="CUDA_ERROR_NO_DEVICE"),
        "nvml": Nvml(ended="ok", init=4 if error == "EACCES" else 999),
        "torch": replace(gpu_machine().torch, available=False, count=0, names=()),
    }
    return gpu_machine(**parts | more)


def refused(names: tuple[str, ...] = ALL, **more) -> Facts:
    return shut("EPERM", names, **more)


@fires("gpu-lost", WORKED, "docker restart", "create-dev-char-symlinks", "--device /dev/nvidia-uvm-tools", "EPERM")
def test_a_gpu_that_worked_and_is_refused_now_was_lost():
    return refused(worked=WORKED)


@fires("gpu-lost")
@pytest.mark.parametrize("uid", [0, 1000])
@pytest.mark.parametrize("engine", ["podman", "kubernetes", "lxc", "container"])
def test_a_gpu_is_lost_in_any_engine_and_to_any_user(engine, uid):
    return refused(worked=WORKED, engine=engine, uid=uid)


def test_a_lost_gpu_is_one_finding():
    assert ids(refused(worked=WORKED)) == ["gpu-lost"]
    assert headline(refused(worked=WORKED)) == ("gpu-lost", 3)
    assert "kubectl delete pod" in commands(refused(worked=WORKED, engine="kubernetes"))


@silent("gpu-lost")
def test_a_gpu_that_never_worked_in_here_was_not_lost():
    return refused()


@silent("gpu-lost")
def test_an_unknown_error_without_a_refused_node_is_no_loss():
    return gpu_machine(
        driver_api=DriverApi(ended="ok", version=13000, init=999),
        nvml=Nvml(ended="ok", init=999),
        torch=refused().torch,
        worked=WORKED,
    )


@silent("gpu-lost")
def test_a_gpu_that_still_works_is_not_lost():
    return gpu_machine(worked=WORKED)


@fires("device-cgroup-refuses", "no-cgroups=false", "/dev/nvidiactl cannot be opened: EPERM")
@pytest.mark.parametrize("uid", [0, 1000])
def test_nodes_refused_from_the_start_are_the_engines_cgroup(uid):
    return refused(uid=uid)


def test_a_container_without_the_note_is_also_told_what_to_do_if_the_gpu_has_worked():
    restart = next(fix for fix in judge(refused())[0].fixes if fix.command.startswith("docker restart"))
    assert restart.note == "if the GPU has worked in here before"


@fires("device-cgroup-refuses", "srun --gpus=1")
@pytest.mark.parametrize("engine", [None, "apptainer"])
def test_a_slurm_job_that_asked_for_no_gpu_is_refused_every_gpu(engine):
    return refused(("nvidia0",), engine=engine)


@fires("device-cgroup-refuses", "lxc.cgroup2.devices.allow: c 195:* rwm")
def test_a_rootless_engine_is_refused_by_what_is_around_it():
    return refused(rootless=True)


@pytest.mark.parametrize(("rootless", "engine"), [(True, "docker"), (False, None), (False, "apptainer")])
def test_no_cgroups_is_not_blamed_where_the_engine_has_no_cgroup_of_devices(rootless, engine):
    assert "no-cgroups" not in commands(refused(rootless=rootless, engine=engine))


@silent("device-cgroup-refuses")
def test_one_gpu_refused_beside_one_that_opens_is_a_choice():
    both = (*nodes(*ALL).found, *nodes("nvidia1", opened="EPERM").found)
    return replace(refused(()), nodes=Nodes(ended="ok", found=both))


@silent("device-cgroup-refuses")
def test_nodes_that_cuda_does_without_may_be_refused():
    extra = (*nodes(*ALL).found, *nodes("nvidia-modeset", "nvidia-uvm-tools", opened="EPERM").found)
    return replace(refused(()), nodes=Nodes(ended="ok", found=extra))


@silent("device-cgroup-refuses")
@pytest.mark.parametrize("error", ["EACCES", "ENXIO", "EIO", "ok"])
def test_another_error_is_not_the_cgroups(error):
    return shut(error)


@silent("device-cgroup-refuses")
def test_lxc_has_a_finding_of_its_own():
    return refused(engine="lxc")


MAJORS = KernelDriver(True, "580.95.05", True, True, majors={"nvidia": 195, "nvidia-uvm": 508, "nvidia-caps": 511})


@fires("lxc-device-refused", "allow: c 195:* rwm", "allow: c 508:* rwm", "allow: c 511:* rwm", "/dev/nvidia-uvm cannot")
def test_lxc_gets_a_line_for_each_number_of_the_driver():
    return refused(("nvidia-uvm",), engine="lxc", kernel_driver=MAJORS)


@fires("lxc-device-refused", "allow: c 195:* rwm")
def test_lxc_gets_the_nodes_own_number_where_the_drivers_are_unknown():
    return refused(engine="lxc")


@silent("lxc-device-refused")
def test_docker_has_no_such_lines():
    return refused(kernel_driver=MAJORS)


@silent("lxc-device-refused")
def test_an_lxc_container_whose_nodes_open_lacks_no_line():
    return shut("ok", engine="lxc")


def closed(**more) -> Facts:
    """Nodes of root:video, mode 0660."""
    return shut("EACCES", **{"mode": "0660", "group": 44, "uid": 1000} | more)


@fires("node-permissions", "--group-add 44", "NVreg_DeviceFileMode=0666", "mode 0660 and group 44", "user 1000")
def test_nodes_of_a_group_are_closed_to_a_user_outside_it():
    return closed()


@fires("node-permissions", "podman run --group-add 44")
def test_a_notebook_user_in_podman_is_outside_the_group_too():
    return closed(engine="podman", uid=1000, groups=(100,))


@pytest.mark.parametrize(
    ("more", "command"),
    [
        ({"engine": "kubernetes"}, "supplementalGroups: [44]"),
        ({"engine": None}, "usermod -aG 44"),
        ({"engine": "apptainer"}, "usermod -aG 44"),
        ({"engine": "podman", "rootless": True, "group": 65534}, "--group-add keep-groups"),
    ],
)
def test_the_group_is_joined_where_the_engine_lets_one(more, command):
    assert command in commands(closed(**more))
    assert "docker" not in commands(closed(**more))


@pytest.mark.parametrize(
    "more",
    [{"mode": "1232"}, {"group": 0}, {"group": 65534}, {"mode": "0600"}],
    ids=["decimal 666", "root's", "nobody's", "no group"],
)
def test_a_group_that_would_not_help_is_not_offered(more):
    assert ids(closed(**more)) == ["node-permissions"]
    assert commands(closed(**more)).count("\n") == 0
    assert "NVreg_DeviceFileMode=0666" in commands(closed(**more))


@fires("node-permissions", "EACCES")
def test_root_without_its_capabilities_obeys_the_mode():
    return closed(uid=0, groups=(0,))


@fires("node-permissions", "mode 0640")
def test_a_member_of_a_group_that_may_only_read_is_shut_out():
    return closed(mode="0640", groups=(1000, 44))


@silent("node-permissions")
def test_a_node_open_to_everybody_is_not_shut_by_its_mode():
    return closed(mode="0666")


@silent("node-permissions")
def test_a_member_of_the_group_is_not_shut_out_by_the_mode():
    return closed(groups=(1000, 44))


@silent("node-permissions")
@pytest.mark.parametrize("unknown", [{"mode": ""}, {"mode": "rw-rw----"}, {"uid": None}])
def test_an_unknown_mode_or_user_is_not_judged(unknown):
    return closed(**unknown)


@silent("node-permissions")
def test_a_node_that_opens_may_have_any_mode():
    return shut("ok", mode="0660", group=44, uid=1000)


@fires("selinux-refuses", "label=disable", "container_use_devices", CONTAINER_T, "mode 0666")
@pytest.mark.parametrize("uid", [0, 1000])
def test_selinux_refuses_nodes_that_are_open_to_everybody(uid):
    return shut("EACCES", selinux=CONTAINER_T, uid=uid)


@fires("selinux-refuses")
def test_selinux_refuses_root_whatever_the_mode():
    return closed(selinux=CONTAINER_T, uid=0, groups=(0,))


@fires("selinux-refuses", "podman run --security-opt=label=disable")
def test_selinux_refuses_a_member_of_the_nodes_group():
    return closed(selinux=CONTAINER_T, groups=(44,), engine="podman")


@silent("selinux-refuses")
@pytest.mark.parametrize("label", ["", "unconfined_u:unconfined_r:spc_t:s0", "system_u:system_r:container_device_t:s0"])
def test_an_unconfined_label_refuses_nothing(label):
    return shut("EACCES", selinux=label)


@silent("selinux-refuses")
def test_a_mode_that_is_shut_comes_first():
    return closed(selinux=CONTAINER_T)


@silent("selinux-refuses")
def test_root_in_a_user_namespace_obeys_the_mode():
    return closed(selinux=CONTAINER_T, uid=0, groups=(0,), rootless=True)


@silent("selinux-refuses")
def test_a_confined_container_whose_cgroup_refuses_is_not_selinuxs():
    return refused(selinux=CONTAINER_T)
