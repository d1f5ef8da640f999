"""How long the image's start takes, and what its space goes to: `python benchmarks/image.py` prints both tables.

Every phase is counted from `docker run`, with the image on this machine; each figure is the median of `--starts`
starts, the fastest and the slowest beside it. First start: with an empty volume for the models. Later start: with that
of the first, in a new container. The container is asked afterwards when its start left its marks in /tmp/rl.
"""

import argparse
import contextlib
import json
import re
import socket
import statistics
import subprocess
import time
import urllib.request
from datetime import datetime

MARKS = {  # files in /tmp/rl, in the order in which a start writes them
    "the user has a name": "passwd",
    "folders and the venv of the user's own packages are there": "packages",
    "keys, environment: the services begin": "path",
    "the self-check has its verdict, the card is printed": "started",
}
BYTES_BY_WHEEL = """
import importlib.metadata, json
wheels = importlib.metadata.distributions()
print(json.dumps({wheel.name.lower(): sum(file.size or 0 for file in wheel.files or []) for wheel in wheels}))
"""


def docker(*arguments: str) -> str:
    """What a docker command prints."""
    return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True).stdout.strip()


def engine_time(text: str) -> float:
    """Seconds since the epoch, from a time with nanoseconds and a zone as the engine writes it."""
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d*", r"\1", text).replace("Z", "+00:00")).timestamp()


def answers_http(port: int) -> bool:
    """Whether Jupyter answers a request."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with contextlib.suppress(OSError), opener.open(f"http://127.0.0.1:{port}/api", timeout=1) as answer:
        return answer.status == 200
    return False


def answers_ssh(port: int) -> bool:
    """Whether sshd sends its greeting."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
        return connection.recv(4) == b"SSH-"
    return False


def start(image: str, volume: str) -> dict[str, float]:
    """Seconds from `docker run` to each phase of one start."""
    begun = time.time()
    ports = ("--publish=127.0.0.1::8888", "--publish=127.0.0.1::2222")
    name = docker("run", "--detach", f"--volume={volume}:/workspace/models", *ports, image)
    try:
        jupyter, sshd = (int(docker("port", name, port).splitlines()[0].rsplit(":", 1)[1]) for port in ("8888", "2222"))
        waiting = {"sshd answers": lambda: answers_ssh(sshd), "Jupyter answers": lambda: answers_http(jupyter)}
        reached: dict[str, float] = {}
        while waiting:
            if time.time() - begun > 60:
                raise SystemExit(f"image.py: within 60 s not {', not '.join(waiting)}:\n{docker('logs', name)}")
            for phase in [phase for phase, answers in waiting.items() if answers()]:
                reached[phase] = time.time() - begun
                del waiting[phase]
            time.sleep(0.05)
        while docker("inspect", "--format={{.State.Health.Status}}", name) != "healthy":
            time.sleep(0.5)
        state = json.loads(docker("inspect", "--format={{json .State}}", name))
        healthy = next(check["End"] for check in state["Health"]["Log"] if check["ExitCode"] == 0)
        marks = docker("exec", name, "stat", "--format=%.Z", *(f"/tmp/rl/{file}" for file in MARKS.values()))
        times = {
            "the engine has made the container": engine_time(state["StartedAt"]),
            **dict(zip(MARKS, map(float, marks.splitlines()), strict=True)),
            "the first health check that passes has ended": engine_time(healthy),
        }
        return reached | {phase: at - begun for phase, at in times.items()}
    finally:
        docker("rm", "--force", name)


def print_starts(image: str, starts: int) -> None:
    """The table of start phases."""
    first, later = [], []
    for _ in range(starts):
        volume = docker("volume", "create")
        first.append(start(image, volume))
        later.append(start(image, volume))
        docker("volume", "rm", volume)
    print("| seconds after `docker run` | first start | later start |\n|---|---|---|")
    for phase in sorted(first[0], key=lambda phase: statistics.median(run[phase] for run in first)):
        columns = [[run[phase] for run in runs] for runs in (first, later)]
        cells = [f"{statistics.median(column):.2f} ({min(column):.2f} to {max(column):.2f})" for column in columns]
        print(f"| {phase} | {' | '.join(cells)} |")


def print_space(image: str) -> None:
    """The table of what takes the space."""
    wheels = json.loads(docker("run", "--rm", "--entrypoint=/opt/venv/bin/python", image, "-c", BYTES_BY_WHEEL))
    cuda = sum(size for name, size in wheels.items() if re.match(r"nvidia-(?!ml-py)|cuda-", name))
    history = docker("history", "--human=false", "--no-trunc", "--format={{.Size}} {{.CreatedBy}}", image).splitlines()
    debian, installed = (
        next(int(line.split()[0]) for line in history if step in line)
        for step in ("apt-get install", "--require-hashes")
    )
    total = int(docker("inspect", "--format={{.Size}}", image))
    rows = {
        "CUDA libraries, as wheels": cuda,
        "torch": wheels["torch"],
        "triton": wheels["triton"],
        "the other wheels": sum(wheels.values()) - cuda - wheels["torch"] - wheels["triton"],
        "their bytecode": installed - sum(wheels.values()),
        "Debian packages": debian,
        "base, rl, configuration": total - debian - installed,
        "all": total,
    }
    print(f"\n| {image} | GB |\n|---|---|")
    for what, size in rows.items():
        print(f"| {what} | {size / 1e9:.2f} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", default="pytorch-cuda-rl:torch2.13")
    parser.add_argument("--starts", type=int, default=5, help="starts of each kind")
    arguments = parser.parse_args()
    print_starts(arguments.image, arguments.starts)
    print_space(arguments.image)
