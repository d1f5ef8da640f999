"""What the container may use: shared memory, processes, open files, cores, memory, and who holds the GPU."""

import shlex

from rl.doctor.rules.rule import Fix, Found, Severity, found, rule
from rl.doctor.schema import Facts

MIB = 2**20
DOCKERS_SHARED_MEMORY = 64 * MIB  # unless --shm-size says otherwise
SPARE = 32  # processes and threads beside those of one training run: shells, TensorBoard, a notebook


@rule(
    "shared-memory-small",
    "degraded",
    cause="/dev/shm is small: <free> MiB of <total> MiB are free",
    symptom="DataLoader worker is killed by signal: Bus error. It is possible that dataloader's workers are out of "
    "shared memory; OSError: [Errno 28] No space left on device; NCCL: Error while creating shared memory segment "
    "/dev/shm/nccl-….",
    fixes=(
        Fix("inside", "rm <stale>", "its owners are gone; not if other containers share /dev/shm (--ipc=host)"),
        Fix("docker", "docker run --shm-size=8g ..."),
        Fix("compose", "shm_size: 8gb", "in the service"),
        Fix("podman", "podman run --shm-size=8g ..."),
        Fix("kubernetes", "volumes: [{name: shm, emptyDir: {medium: Memory}}]", "mounted at /dev/shm"),
        Fix("host", "sudo mount -o remount,size=8g /dev/shm", "without a container"),
    ),
)
def shared_memory_small(facts: Facts) -> Found | None:
    """Less than 16 MiB of /dev/shm are free, or it has the 64 MiB that engines give by themselves. Those are a fault
    only with several GPUs, which NCCL connects through it: small vector environments fit, and then it is a note.
    """
    limits = facts.limits
    total, free, stale = limits.shm_total, limits.shm_free, limits.shm_stale
    if total is None or free is None:
        return None
    tight, default = free < 16 * MIB, total <= DOCKERS_SHARED_MEMORY
    if not (tight or default):
        return None
    several = facts.usable and (facts.torch.count or facts.driver_api.count or 0) > 1
    evidence = ["several GPUs are here, and NCCL connects them through /dev/shm"] if several else []
    evidence += [f"left behind there: {', '.join(stale[:10])}"] if stale else []
    remove, *enlarge, remount = shared_memory_small.fixes
    fixes = ([remove] if stale else []) + (enlarge if facts.platform.engine else [remount])
    severity: Severity = "degraded" if tight or several else "info"
    paths = shlex.join(f"/dev/shm/{name}" for name in stale[:10])
    size = {"free": free // MIB, "total": total // MIB}
    return found(*evidence, severity=severity, fixes=tuple(fixes), stale=paths, **size)


@rule(
    "process-limit-low",
    "degraded",
    cause="few processes and threads may still be started here: <room>",
    symptom="RuntimeError: can't start new thread; OpenBLAS blas_thread_init: pthread_create failed: Resource "
    "temporarily unavailable; BlockingIOError: [Errno 11] Resource temporarily unavailable.",
    fixes=(
        Fix("docker", "docker run --pids-limit=-1 ..."),
        Fix("compose", "pids_limit: -1", "in the service"),
        Fix("podman", "podman run --pids-limit=-1 ..."),
        Fix("kubernetes", "podPidsLimit: -1", "in the node's kubelet configuration"),
        Fix("inside", "ulimit -u $(ulimit -H -u)", "where the limit is the shell's"),
        Fix("inside", "export OMP_NUM_THREADS=1", "one thread for each environment's process"),
    ),
)
def process_limit_low(facts: Facts) -> Found | None:
    """The cgroup's pids.max less what runs, or RLIMIT_NPROC, leaves no room for one training run with a thread on each
    core. A note where it leaves none for an environment in a process on each core, all with that many threads.
    """
    limits = facts.limits
    rooms = {}
    if limits.pids_max is not None and limits.pids_current is not None:
        rooms["cgroup: pids.max"] = max(limits.pids_max - limits.pids_current, 0)
    if limits.processes is not None:
        rooms["ulimit -u"] = limits.processes
    if not rooms:
        return None
    limit, room = min(rooms.items(), key=lambda item: item[1])
    cores = max(limits.cores or 1, 1)
    threads = _threads(facts) or cores
    one, many = cores + SPARE, cores * (threads + 1)
    if room >= max(one, many):
        return None
    evidence = [f"{limit} allows {room} more"]
    if room >= one:
        evidence.append(f"{cores} environments in processes of their own, {threads} threads each, would need {many}")
    return found(*evidence, severity="info" if room >= one else None, room=room)


@rule(
    "open-files-low",
    "degraded",
    cause="a process may open only <limit> files here",
    symptom="OSError: [Errno 24] Too many open files; RuntimeError: received 0 items of ancdata.",
    fixes=(
        Fix("inside", "ulimit -n $(ulimit -H -n)"),
        Fix("docker", "docker run --ulimit nofile=65536:65536 ..."),
        Fix("compose", "ulimits: {nofile: 65536}", "in the service"),
        Fix("podman", "podman run --ulimit nofile=65536:65536 ..."),
    ),
)
def open_files_low(facts: Facts) -> Found | None:
    """RLIMIT_NOFILE is below 256: each environment in a process of its own takes a few. 1024 is usual, and enough."""
    limit = facts.limits.open_files
    return found("ulimit -n", limit=limit) if limit is not None and limit < 256 else None


@rule(
    "threads-exceed-cpus",
    "info",
    cause="<quota> cores' worth of time is allowed, and numerical libraries start a thread on each of <cores> cores",
    symptom="Training on the CPU, or an environment, is many times slower in the container than outside; all cores "
    "look half idle.",
    fixes=(Fix("inside", "export OMP_NUM_THREADS=<threads>"), Fix("docker", "docker run --cpuset-cpus=0-<last> ...")),
)
def threads_exceed_cpus(facts: Facts) -> Found | None:
    """The cgroup's CPU quota is at most half of the cores that threads may run on, and OMP_NUM_THREADS is not set."""
    quota, cores = facts.platform.cpus, facts.limits.cores
    if quota is None or cores is None or not 0 < quota <= cores // 2 or _threads(facts):
        return None
    threads = max(round(quota), 1)
    return found("OMP_NUM_THREADS is not set", quota=f"{quota:g}", cores=cores, threads=threads, last=threads - 1)


@rule(
    "memory-kills",
    "degraded",
    cause="the kernel has killed processes of this container for their memory",
    symptom="Killed; exit code 137; DataLoader worker (pid 63) is killed by signal: Killed.; a kernel that restarts.",
    fixes=(
        Fix("docker", "docker run --memory=<more>g ...", "or less memory: fewer environments, a smaller --buffer-size"),
        Fix("compose", "mem_limit: <more>g", "in the service"),
        Fix("podman", "podman run --memory=<more>g ..."),
        Fix("kubernetes", "resources: {limits: {memory: <more>Gi}}", "in the container's spec"),
        Fix("host", "sudo dmesg | grep -i 'killed process'", "which ones"),
    ),
)
def memory_kills(facts: Facts) -> Found | None:
    """The count of kills in the container's own cgroup is not zero; it starts anew with the container."""
    limits = facts.limits
    if limits.out_of_memory_kills < 1:
        return None
    evidence = [f"{limits.out_of_memory_kills} since the container started"]
    if limits.memory is not None:
        evidence.append(f"its limit is {limits.memory // MIB} MiB")
    more = max(2 * (limits.memory or 0) // 2**30, 1)
    return found(*evidence, more=more if limits.memory else "<more>")


@rule(
    "gpu-held-by-dead-process",
    "degraded",
    cause="a process that does no work any more holds the GPU",
    symptom="CUDA out of memory while nothing trains; nvidia-smi shows memory in use, by a notebook or worker of old.",
    fixes=(
        Fix("inside", "kill <pids>", "after a look at: ps -o pid,ppid,stat,etime,args -p <list>"),
        Fix("docker", "docker run --init ...", "so that orphans are reaped"),
    ),
)
def held_by_dead_process(facts: Facts) -> Found | None:
    """A process with a GPU's node open is stopped or a zombie, or is a worker of multiprocessing or a DataLoader whose
    parent is gone. Jobs under nohup have lost their parent too, and are none of these.
    """
    dead = [process for process in facts.processes if process.state in ("T", "Z")]
    orphans = [process for process in facts.processes if process.worker and process.parent == 1]
    evidence = [f"process {it.pid} ({it.name}) is {'stopped' if it.state == 'T' else 'a zombie'}" for it in dead]
    evidence += [f"process {it.pid} ({it.name}) is a worker whose parent is gone" for it in orphans if it not in dead]
    if not evidence:
        return None
    pids = list(dict.fromkeys(str(process.pid) for process in (*dead, *orphans)))
    return found(*evidence, pids=" ".join(pids), list=",".join(pids))


@rule(
    "memlock-low",
    "info",
    cause="little memory may be locked here, and NCCL over InfiniBand locks its buffers",
    symptom="NCCL WARN Call to ibv_create_cq failed with error Cannot allocate memory; ibv_reg_mr failed.",
    fixes=(
        Fix("docker", "docker run --ulimit memlock=-1 --ulimit stack=67108864 ..."),
        Fix("compose", "ulimits: {memlock: -1, stack: 67108864}", "in the service"),
        Fix("podman", "podman run --ulimit memlock=-1:-1 --ulimit stack=67108864 ..."),
    ),
)
def memlock_low(facts: Facts) -> Found | None:
    """RLIMIT_MEMLOCK is set, and /dev/infiniband is here: without it nothing locks much."""
    limit = facts.limits.memlock
    if limit is None or not facts.limits.infiniband:
        return None
    return found(f"ulimit -l is {limit // 1024} KiB", "/dev/infiniband is here")


def _threads(facts: Facts) -> int | None:
    """OMP_NUM_THREADS, if it is a number (a list of them is for nested loops: the first one counts)."""
    first = facts.environment.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdecimal() and len(first) < 6 and int(first) else None


RULES = (
    shared_memory_small,
    process_limit_low,
    open_files_low,
    threads_exceed_cpus,
    memory_kills,
    held_by_dead_process,
    memlock_low,
)
