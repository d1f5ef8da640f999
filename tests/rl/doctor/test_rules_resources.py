"""Shared memory, processes, files, cores, memory and dead processes: facts from a tree, and what is made of them."""

import os
from dataclasses import replace

import pytest
from fake_machine import make_root
from machine_facts import LIMITS, cpu_machine, gpu_machine
from rule_tests import fires, silent

from rl.doctor.facts import gather
from rl.doctor.facts.limits import gpu_processes, limits
from rl.doctor.schema import GpuProcess, Platform

MIB = 2**20
GONE, ALIVE = 2**22 + 1, 2**22 + 2  # beyond the largest process number of Linux
BARE = Platform(kernel="6.8.0")


class Silent:
    """Answers in place of every child: nothing."""

    def __init__(self, *_args, **_settings) -> None: ...

    def collect(self):
        return {"ended": "ok"}

    def kill(self) -> None: ...


def tree(root, files: dict[str, str]):
    make_root(root)
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def limited(machine=cpu_machine, **changes):
    return machine(limits=replace(LIMITS, **changes))


def shared_memory(total: int, free: int, machine=cpu_machine, **changes):
    return machine(limits=replace(LIMITS, shm_total=total * MIB, shm_free=free * MIB), **changes)


# --- /dev/shm ---


@fires("shared-memory-small", "64 MiB of 64 MiB are free", "--shm-size=8g", severity="info")
@pytest.mark.parametrize("machine", [cpu_machine, gpu_machine])
def test_the_engines_own_64_mib_are_a_note_with_one_gpu_or_none(machine):
    return shared_memory(64, 64, machine)


@fires("shared-memory-small", "NCCL", severity="degraded")
def test_64_mib_are_a_fault_where_nccl_connects_several_gpus():
    return shared_memory(64, 64, gpu_machine, gpus=2)


@fires("shared-memory-small", "15 MiB of 1024 MiB", severity="degraded")
def test_a_large_shared_memory_that_is_full_is_a_fault():
    return shared_memory(1024, 15)


@fires("shared-memory-small", "/dev/shm/nccl-AbC", "rm ", severity="degraded")
def test_what_dead_processes_left_is_named_with_the_command_that_removes_it():
    return limited(shm_total=64 * MIB, shm_free=MIB, shm_stale=("nccl-AbC", "torch_7_1_0"))


@fires("shared-memory-small", "'/dev/shm/nccl-; rm -rf ~'")
def test_a_name_from_a_strangers_file_is_quoted():
    return limited(shm_total=64 * MIB, shm_free=MIB, shm_stale=("nccl-; rm -rf ~",))


@silent("shared-memory-small")
def test_more_than_the_engines_own_shared_memory_is_enough():
    return shared_memory(65, 16, gpu_machine, gpus=8)


@silent("shared-memory-small")
def test_leftovers_alone_are_no_fault():
    return limited(shm_stale=("nccl-AbC",))


@silent("shared-memory-small")
@pytest.mark.parametrize("unknown", ["shm_total", "shm_free"])
def test_a_shared_memory_of_unknown_size_is_not_called_small(unknown):
    return limited(**{"shm_total": 64 * MIB, "shm_free": 0, unknown: None})


def test_shared_memory_is_measured_and_what_nobody_uses_in_it_is_listed(tmp_path):
    root = tree(
        tmp_path / "root",
        {
            f"dev/shm/torch_{GONE}_17_0": "",
            f"dev/shm/torch_{ALIVE}_17_0": "",
            "dev/shm/nccl-gone": "",
            "dev/shm/nccl-mapped": "",
            "dev/shm/nccl-open": "",
            "dev/shm/sem.other": "",
            f"proc/{ALIVE}/maps": "7f00-7f01 rw-s 00000000 00:19 5  /dev/shm/nccl-mapped\n",
        },
    )
    (root / f"proc/{ALIVE}/fd").mkdir()
    (root / f"proc/{ALIVE}/fd/3").symlink_to("/dev/shm/nccl-open")
    found = gather(root, with_torch=False, ask=Silent).limits
    space = os.statvfs(root / "dev/shm")
    assert found.shm_total == space.f_blocks * space.f_frsize
    assert 0 < found.shm_free <= found.shm_total
    assert found.shm_stale == ("nccl-gone", f"torch_{GONE}_17_0")


def test_a_tree_without_any_limit_has_none(tmp_path):
    found = limits(tmp_path / "nothing")
    assert found == type(found)()


# --- processes and threads ---


@fires("process-limit-low", "pids.max allows 30 more", "--pids-limit=-1", severity="degraded")
def test_a_cgroup_that_is_full_of_processes():
    return limited(pids_max=100, pids_current=70, cores=2)


@fires("process-limit-low", "allows 0 more")
def test_a_cgroup_over_its_limit_allows_nothing():
    return limited(pids_max=10, pids_current=70)


@fires("process-limit-low", "ulimit -u allows 40 more", severity="degraded")
def test_a_shells_limit_counts_as_the_cgroups():
    return limited(pids_max=None, processes=40, cores=16)


@fires(
    "process-limit-low", "64 environments in processes of their own, 64 threads each, would need 4160", severity="info"
)
def test_podmans_limit_is_a_note_where_threads_times_workers_exceed_it():
    return limited(pids_max=2048, pids_current=40, cores=64)


@silent("process-limit-low")
def test_one_thread_for_each_worker_fits_podmans_limit():
    return cpu_machine(
        limits=replace(LIMITS, pids_max=2048, pids_current=40, cores=64), environment={"OMP_NUM_THREADS": "1"}
    )


@fires("process-limit-low", severity="info")
@pytest.mark.parametrize("words", ["", "many", "0", "99999999999"])
def test_a_thread_count_that_is_no_number_counts_as_not_set(words):
    return cpu_machine(
        limits=replace(LIMITS, pids_max=2048, pids_current=40, cores=64), environment={"OMP_NUM_THREADS": words}
    )


@silent("process-limit-low")
def test_a_cgroup_without_limit_leaves_room():
    return limited(pids_max=None, pids_current=10**6, cores=256)


@silent("process-limit-low")
def test_podmans_limit_is_enough_on_few_cores():
    return limited(pids_max=2048, pids_current=40, cores=32)


V2 = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/pids.max": "2048\n", "sys/fs/cgroup/pids.current": "17\n"}
V1 = {
    "proc/self/cgroup": "9:pids:/docker/abc\n4:memory:/docker/abc\n",
    "sys/fs/cgroup/pids/pids.max": "2048\n",
    "sys/fs/cgroup/pids/pids.current": "17\n",
}
SLICE = {  # a login on a bare machine: the user's slice limits all of its sessions
    "proc/self/cgroup": "0::/user.slice/session-1.scope\n",
    "sys/fs/cgroup/user.slice/session-1.scope/pids.max": "max\n",
    "sys/fs/cgroup/user.slice/session-1.scope/pids.current": "5\n",
    "sys/fs/cgroup/user.slice/pids.max": "2048\n",
    "sys/fs/cgroup/user.slice/pids.current": "17\n",
}


@pytest.mark.parametrize("files", [V2, V1, SLICE], ids=["v2", "v1, whose path is the host's", "around the own one"])
def test_the_cgroups_limit_of_processes_is_read(tmp_path, files):
    found = gather(tree(tmp_path / "root", files), with_torch=False, ask=Silent).limits
    assert (found.pids_max, found.pids_current) == (2048, 17)


@pytest.mark.parametrize("words", ["max", "", "-1", "99999999999999999999999"])
def test_a_cgroup_without_a_number_has_no_limit(tmp_path, words):
    files = V2 | {"sys/fs/cgroup/pids.max": words, "sys/fs/cgroup/memory.max": words}
    found = limits(tree(tmp_path / "root", files))
    assert (found.pids_max, found.memory) == (None, None)


PROC_LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max processes             4096                 8192                 processes
Max open files            200                  1048576              files
Max locked memory         8388608              unlimited            bytes
"""


@pytest.mark.parametrize(("uid", "processes"), [(1000, 4096), (0, None)])
def test_a_shells_limits_are_the_soft_ones_and_root_has_none_of_processes(tmp_path, uid, processes):
    status = f"Name:\tpython\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nCpus_allowed_list:\t0-3,8,10-11\n"
    root = tree(tmp_path / "root", {"proc/self/limits": PROC_LIMITS, "proc/self/status": status})
    found = gather(root, with_torch=False, ask=Silent).limits
    assert (found.processes, found.open_files, found.memlock, found.cores) == (processes, 200, 8388608, 7)


def test_unlimited_is_no_number(tmp_path):
    root = tree(tmp_path / "root", {"proc/self/limits": PROC_LIMITS.replace("8388608  ", "unlimited")})
    assert limits(root).memlock is None


# --- open files ---


@fires("open-files-low", "only 255 files", "ulimit -n")
def test_a_process_that_may_open_few_files():
    return limited(open_files=255)


@silent("open-files-low")
@pytest.mark.parametrize("limit", [256, 1024, None])
def test_the_usual_limit_of_open_files_is_enough(limit):
    return limited(open_files=limit)


# --- cores ---


def quota(cpus: float, cores: int | None, **changes):
    platform = Platform(kernel="6.8.0", engine="docker", cpus=cpus)
    return cpu_machine(platform=platform, limits=replace(LIMITS, cores=cores), **changes)


@fires(
    "threads-exceed-cpus", "2.5 cores' worth", "of 64 cores", "OMP_NUM_THREADS=2", "--cpuset-cpus=0-1", severity="info"
)
def test_a_quota_far_below_the_cores_that_threads_are_started_for():
    return quota(2.5, 64)


@silent("threads-exceed-cpus")
def test_a_quota_with_the_number_of_threads_set():
    return quota(2.5, 64, environment={"OMP_NUM_THREADS": "2"})


@silent("threads-exceed-cpus")
@pytest.mark.parametrize(("cpus", "cores"), [(64.0, 64), (33.0, 64), (2.0, None)])
def test_all_or_most_cores_allowed_is_no_quota_to_speak_of(cpus, cores):
    return quota(cpus, cores)


# --- memory ---


@fires("memory-kills", "3 since the container started", "4096 MiB", "--memory=8g", severity="degraded")
def test_processes_that_the_kernel_killed_for_their_memory():
    return limited(out_of_memory_kills=3, memory=4 * 2**30)


@fires("memory-kills", "1 since", "--memory=<more>g")
def test_a_kill_without_a_limit_of_the_cgroup():
    return limited(out_of_memory_kills=1)


@silent("memory-kills")
def test_a_limit_that_nobody_has_hit():
    return limited(memory=2**30)


@pytest.mark.parametrize(
    "files",
    [
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.events": "low 0\noom 5\noom_kill 2\noom_group_kill 0\n",
            "sys/fs/cgroup/memory.max": "4294967296\n",
        },
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n",
            "sys/fs/cgroup/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "4294967296\n",
        },
        {  # of the whole user, whose other sessions are no business of this one
            "proc/self/cgroup": "0::/user/one\n",
            "sys/fs/cgroup/user/one/memory.events": "oom_kill 2\n",
            "sys/fs/cgroup/user/one/memory.max": "max\n",
            "sys/fs/cgroup/user/memory.events": "oom_kill 9\n",
            "sys/fs/cgroup/user/memory.max": "4294967296\n",
        },
    ],
    ids=["v2", "v1", "nested"],
)
def test_the_cgroups_kills_and_its_limit_of_memory_are_read(tmp_path, files):
    found = gather(tree(tmp_path / "root", files), with_torch=False, ask=Silent).limits
    assert (found.out_of_memory_kills, found.memory) == (2, 4 * 2**30)


def test_version_1_writes_no_limit_as_a_huge_number(tmp_path):
    files = {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}
    assert limits(tree(tmp_path / "root", files)).memory is None


# --- dead processes that hold the GPU ---


def held_by(**process):
    return gpu_machine(processes=(GpuProcess(pid=77, name="python", **process),))


@fires("gpu-held-by-dead-process", "process 77 (python) is stopped", "kill 77")
def test_a_stopped_process_holds_the_gpu():
    return held_by(state="T", parent=30)


@fires("gpu-held-by-dead-process", "worker whose parent is gone", "ps -o pid,ppid,stat,etime,args -p 77")
def test_a_worker_without_its_parent_holds_the_gpu():
    return held_by(state="S", parent=1, worker=True)


@silent("gpu-held-by-dead-process")
def test_a_job_under_nohup_has_lost_its_parent_and_lives():
    return held_by(state="S", parent=1)


@silent("gpu-held-by-dead-process")
def test_a_worker_with_its_parent_lives():
    return held_by(state="S", parent=30, worker=True)


def process(root, pid: int, stat: str, target: str, cmdline: str = "python\0train.py\0"):
    folder = root / f"proc/{pid}"
    (folder / "fd").mkdir(parents=True)
    (folder / "fd/5").symlink_to(target)
    (folder / "stat").write_text(f"{pid} {stat} " + "0 " * 17 + f"{100 * os.sysconf('SC_CLK_TCK')} 0 0\n")
    (folder / "cmdline").write_text(cmdline)


def test_processes_with_a_gpus_node_open_are_found_with_state_parent_and_age(tmp_path):
    root = make_root(tmp_path / "root", device_nodes=("nvidia0", "nvidiactl"))
    (root / "proc/uptime").write_text("160.50 300.00\n")
    process(root, GONE, "(a )b) (c) T 30", "/dev/nvidia0")
    spawned = "python\0-c\0from multiprocessing.spawn import spawn_main; spawn_main()\0--multiprocessing-fork\0"
    process(root, GONE + 1, "(python) S 1", "/dev/nvidia12", spawned)
    process(root, GONE + 2, "(pt_data_worker) S 1", "/dev/nvidia0")
    process(root, GONE + 3, "(monitor) S 1", "/dev/nvidiactl")
    process(root, GONE + 4, "(editor) S 1", "/dev/null")
    process(root, GONE + 5, f"(the doctor's own child) S {os.getpid()}", "/dev/nvidia0")
    assert gather(root, with_torch=False, ask=Silent).processes == (
        GpuProcess(GONE, "a ?b? ?c", "T", 30, 60, worker=False),
        GpuProcess(GONE + 1, "python", "S", 1, 60, worker=True),
        GpuProcess(GONE + 2, "pt_data_worker", "S", 1, 60, worker=True),
    )


def test_without_a_gpus_node_no_process_is_looked_at(tmp_path):
    root = make_root(tmp_path / "root", device_nodes=("nvidiactl",))
    process(root, GONE, "(python) S 1", "/dev/nvidia0")
    assert gpu_processes(root) == ()


@pytest.mark.parametrize("stat", ["", "(", "7 (python)", "7 (python) S x"])
def test_a_process_that_ends_while_it_is_read_never_makes_the_doctor_fail(tmp_path, stat):
    root = make_root(tmp_path / "root", device_nodes=("nvidia0",))
    process(root, GONE, "(python) S 1", "/dev/nvidia0")
    (root / f"proc/{GONE}/stat").write_text(stat)
    assert [found.pid for found in gpu_processes(root)] == [GONE]


# --- locked memory ---


@fires("memlock-low", "ulimit -l is 8192 KiB", "--ulimit memlock=-1", severity="info")
def test_little_locked_memory_beside_infiniband():
    return limited(gpu_machine, memlock=8 * MIB, infiniband=True)


@silent("memlock-low")
def test_little_locked_memory_without_infiniband():
    return limited(gpu_machine, memlock=8 * MIB)


@silent("memlock-low")
def test_unlimited_locked_memory_beside_infiniband():
    return limited(gpu_machine, memlock=None, infiniband=True)


def test_infiniband_and_an_iommu_are_seen(tmp_path):
    root = make_root(tmp_path / "root")
    (root / "sys/kernel/iommu_groups").mkdir(parents=True)
    assert (limits(root).infiniband, limits(root).iommu) == (False, False)
    (root / "sys/kernel/iommu_groups/0").mkdir()
    (root / "dev/infiniband").mkdir()
    assert (limits(root).infiniband, limits(root).iommu) == (True, True)
