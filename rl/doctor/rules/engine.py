"""The container engine on the host: whether it is there, answers, and has what a container needs."""

from rl.doctor.rules.driver import major
from rl.doctor.rules.rule import Fix, Found, found, rule
from rl.doctor.schema.host import HostFacts

COMPOSE = (2, 18)  # the first one that knows `!reset`, with which docker-compose.cpu.yml takes the GPUs back
IMAGE_SPACE = 15 * 10**9  # bytes that an image takes while it is pulled: packed and unpacked at once


@rule(
    "engine-missing",
    "fatal",
    cause="no container engine is installed: neither docker nor podman",
    symptom="`docker: command not found`, `Command 'docker' not found`, `docker: not found`.",
    fixes=(
        Fix(
            "host", "sudo apt-get install -y docker.io docker-compose-v2", "on Ubuntu; elsewhere Docker's own packages"
        ),
        Fix("host", "make lab", "without a container: Jupyter Lab from a local .venv"),
    ),
)
def missing(facts: HostFacts) -> Found | None:
    """There is no command docker and no command podman on the PATH."""
    if facts.docker.path != "" or facts.podman != "":
        return None
    inside = ("this is itself a container: run this on its host",) if facts.platform.engine else ()
    return found("no docker and no podman on the PATH", *inside)


@rule(
    "engine-not-permitted",
    "fatal",
    cause="this user may not talk to the Docker daemon",
    symptom="`permission denied while trying to connect to the Docker daemon socket`, `permission denied while trying"
    " to connect to the docker API`, `dial unix /var/run/docker.sock: connect: permission denied`.",
    fixes=(
        Fix("host", 'sudo usermod -aG docker "$USER" && newgrp docker', "members of that group are as good as root"),
        Fix("host", "newgrp docker", "or log in anew: you are in the group since, only this session is older"),
        Fix("host", "ls -l /var/run/docker.sock", "you are in the group docker; the socket should be, too"),
    ),
)
def not_permitted(facts: HostFacts) -> Found | None:
    """The daemon's socket refuses the user. Someone whom the group has already, but not in this session, needs a new
    session only.
    """
    if "permission denied" not in facts.docker.error.lower():
        return None
    join, renew, look = not_permitted.fixes
    here, later = "docker" in facts.groups, "docker" in facts.groups_listed
    evidence = f"the groups of {facts.user or 'this user'} in this session: {' '.join(facts.groups) or 'unknown'}"
    return found(facts.docker.error, evidence, fixes=(look,) if here else (renew,) if later else (join,))


@rule(
    "engine-not-running",
    "fatal",
    cause="the Docker daemon does not answer",
    symptom="`Cannot connect to the Docker daemon`, `Is the docker daemon running?`, `failed to connect to the docker"
    " API`, `unable to configure the Docker daemon with file`.",
    fixes=(
        Fix("host", "sudo systemctl enable --now docker || sudo service docker start"),
        Fix("host", "sudo journalctl -u docker -n 20", "to see why, if that fails"),
        Fix("host", "docker context ls", "if another daemon was meant: DOCKER_HOST and the context choose it"),
    ),
)
def not_running(facts: HostFacts) -> Found | None:
    """`docker info` fails, hangs for 20 s, or names no daemon, and not because this user is refused."""
    docker = facts.docker
    if not docker.error or "permission denied" in docker.error.lower():
        return None
    looked = (f"it was looked for at {docker.endpoint}",) if docker.endpoint else ()
    config = (docker.config_error,) if docker.config_error else ()
    fixes = not_running.fixes[-1:] if docker.elsewhere else None  # which daemon is asked; starting one here is no help
    return found(docker.error, *looked, *config, fixes=fixes)


@rule(
    "engine-elsewhere",
    "info",
    cause="the Docker daemon runs on another machine (<endpoint>), which could not be looked at from here",
    symptom="--gpus all gives the GPUs of the daemon's machine, not those of this one.",
    fixes=(Fix("host", "scripts/preflight", "on that machine"),),
)
def elsewhere(facts: HostFacts) -> Found | None:
    """The client's endpoint is neither a socket nor a pipe of this machine."""
    docker = facts.docker
    return found(f"its endpoint is {docker.endpoint}", endpoint=docker.endpoint) if docker.elsewhere else None


@rule(
    "compose-too-old",
    "degraded",
    cause="docker has no compose plugin of version 2.18 or newer, which make up needs",
    symptom="`'compose' is not a docker command`, `unknown shorthand flag: 'f' in -f`, `this engine has no compose"
    " plugin`, `docker-compose: command not found`; the old docker-compose 1 says `The Compose file is invalid`.",
    fixes=(
        Fix("host", "sudo apt-get install -y docker-compose-v2", "Ubuntu's package"),
        Fix("host", "sudo apt-get install -y docker-compose-plugin", "from Docker's own repository"),
        Fix("docker", "docker run --gpus all ...", "without compose: the line is in README.md"),
    ),
)
def compose_too_old(facts: HostFacts) -> Found | None:
    """`docker compose version` fails, or is below 2.18. Asked only where docker itself is there."""
    if not facts.docker.path or facts.compose is None:
        return None
    first, _, rest = facts.compose.lstrip("v").partition(".")
    version = (major(first), major(rest))
    if facts.compose and (None in version or tuple(part or 0 for part in version) >= COMPOSE):
        return None
    return found(f"docker compose is {facts.compose}" if facts.compose else "docker compose version fails")


@rule(
    "port-taken",
    "info",
    cause="port <port> is taken on this machine, by another program or by the workbench itself",
    symptom="`port is already allocated`, `address already in use`, `ports are not available`.",
    fixes=(
        Fix("compose", "unset <variable>; make up", "it takes the next free port by itself, unless one was asked for"),
        Fix("docker", "docker run -p 127.0.0.1:<other>:<inside> ...", "any free port on the left"),
    ),
)
def port_taken(facts: HostFacts) -> Found | None:
    """A socket cannot be bound to the port. A fault only where the port was asked for by its variable, since `make up`
    looks for a free one otherwise.
    """
    taken = sorted((port for port in facts.ports if port.taken), key=lambda port: not port.asked)
    if not taken:
        return None
    first = taken[0]
    asked = (f"{port.variable} asks for {port.number}" for port in taken if port.asked)
    return found(
        *(f"127.0.0.1:{port.number} cannot be bound" for port in taken),
        *asked,
        severity="degraded" if first.asked else None,
        port=first.number,
        variable=first.variable,
        other=first.number + 1,
        inside={"SSH_PORT": 2222}.get(first.variable, 8888),
    )


@rule(
    "disk-full",
    "degraded",
    cause="there is too little disk space for an image, which takes about 15 GB while it is pulled",
    symptom="`no space left on device`, `failed to register layer`.",
    fixes=(
        Fix("docker", "docker system df && docker image prune", "removes images that no tag names any more"),
        Fix("podman", "podman system df && podman image prune"),
        Fix("host", "df -h <folder>", "to see whose disk it is"),
    ),
)
def disk_full(facts: HostFacts) -> Found | None:
    """Less than 15 GB are free where images are kept, and the current image is not here yet. Unknown where the daemon
    runs on another machine, or in Docker Desktop's.
    """
    free, docker = facts.disk_free, facts.docker
    if free is None or free >= IMAGE_SPACE or docker.image is True or docker.elsewhere or docker.desktop:
        return None
    folder = facts.disk_folder or "/var/lib"
    return found(f"{max(free, 0) // 10**9} GB are free in {folder}", folder=folder)


ANSWERS = (missing, not_permitted, not_running)
BESIDE = (elsewhere, compose_too_old, port_taken, disk_full)
