"""Drives containers of the image as a user does: by the docker command, an ssh client, and HTTP."""

import contextlib
import json
import os
import re
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from dataclasses import dataclass
from pathlib import Path

import websocket

IMAGE = os.environ.get("IMAGE", "pytorch-cuda-rl:torch2.13")
REPO = Path(__file__).parents[1]
# A shell command: what is or could be committed here, as a tar archive.
WORKING_TREE = f"git -C {REPO} ls-files -z --cached --others --exclude-standard | tar c -C {REPO} --null -T -"
HARDENED = [
    *("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
    *("--read-only", "--tmpfs", "/tmp", "--network", "none"),
]


def run(*command, check=True, timeout=120, **options):
    """One command; its output as text. A failure shows what it printed."""
    done = subprocess.run(command, text=True, capture_output=True, timeout=timeout, **options)
    if check and done.returncode:
        raise AssertionError(f"{' '.join(map(str, command))}\nexit {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


def docker(*arguments, **options):
    return run("docker", *arguments, **options)


def why_not_testable():
    """Why the image cannot be tested here, or None."""
    with contextlib.suppress(FileNotFoundError):
        if docker("info", check=False).returncode:
            return "no container engine runs here"
        if docker("image", "inspect", IMAGE, check=False).returncode:
            return f"no image {IMAGE} here: make image"
        return None
    return "no docker command here"


def states(folders):
    """The state of each run in the models folder."""
    return [json.loads(status.read_text())["state"] for status in sorted(folders.models.glob("runs/*/status.json"))]


def wait_until(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.2)
    return found


@dataclass(frozen=True)
class Folders:
    """The two mounted folders, owned by one user."""

    code: Path
    models: Path
    uid: int

    @property
    def mounts(self):
        return ["-v", f"{self.code}:/workspace/code", "-v", f"{self.models}:/workspace/models"]

    @property
    def arguments(self):
        return ["--user", f"{self.uid}:{self.uid}", *self.mounts]


@dataclass(frozen=True)
class Workbench:
    """A running container with its services."""

    name: str
    key: Path

    def exec(self, *command, **options):
        return docker("exec", self.name, *command, **options)

    def python(self, program):
        return self.exec("python", "-c", program).stdout.strip()

    @property
    def log(self):
        done = docker("logs", self.name)
        return done.stdout + done.stderr

    def state(self, path):
        return docker("inspect", "--format", f"{{{{.State.{path}}}}}", self.name).stdout.strip()

    def until_healthy(self):
        def healthy():
            assert self.state("Running") == "true", self.log
            return self.state("Health.Status") == "healthy"

        wait_until(healthy, 60, f"healthy\n{self.log}")

    @property
    def token(self):
        return self.exec("cat", "/tmp/rl/token").stdout

    def port(self, inside):
        return int(docker("port", self.name, str(inside)).stdout.splitlines()[0].rsplit(":", 1)[1])

    def url(self, path):
        return f"http://127.0.0.1:{self.port(8888)}{path}"

    def http(self, path, *arguments, **options):
        """See `http`."""
        return http(self.url(path), *arguments, **options)

    def ssh_command(self, *options, key=None):
        return [
            *("ssh", "-F", "none", "-i", str(key or self.key), "-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none"),
            *("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"),
            *(*options, "rl@127.0.0.1", "-p", str(self.port(2222))),
        ]

    def ssh(self, command, *options, key=None, **more):
        return run(*self.ssh_command("-o", "BatchMode=yes", *options, key=key), command, **more)


def terminal_types(workbench, line, token="given-token"):
    """Types a line into a Jupyter terminal; the open connection."""
    name = json.loads(workbench.http("/api/terminals", token, "POST", {})[1])["name"]
    address = f"ws://127.0.0.1:{workbench.port(8888)}/terminals/websocket/{name}?token={token}"
    connection = websocket.create_connection(address, timeout=30)
    connection.send(json.dumps(["stdin", f"{line}\r"]))
    return connection


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


def http(url, token=None, method="GET", body=None):
    """Status and body of an answer, without following redirects."""
    headers = {"Authorization": f"token {token}"} if token else {}
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url, data, headers, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), NoRedirect)
    try:
        with opener.open(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def kernel_starts(workbench, code, token="given-token", address=None):
    """Sends a notebook cell to a kernel of its own; the kernel, the connection to it, and the request's id."""
    address = address or f"127.0.0.1:{workbench.port(8888)}"
    kernel = json.loads(http(f"http://{address}/api/kernels", token, "POST", {})[1])["id"]
    connection = websocket.create_connection(f"ws://{address}/api/kernels/{kernel}/channels?token={token}", timeout=60)
    header = {
        "msg_id": uuid.uuid4().hex,
        "msg_type": "execute_request",
        "session": "s",
        "username": "u",
        "version": "5",
    }
    content = {"code": code, "silent": False, "store_history": False, "user_expressions": {}, "allow_stdin": False}
    message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
    connection.send(json.dumps(message))
    return f"http://{address}/api/kernels/{kernel}", connection, header["msg_id"]


def kernel_runs(workbench, code, token="given-token", address=None):
    """What a notebook cell prints, through Jupyter's own API at `address`, HOST:PORT/PATH (else its published port)."""
    kernel, connection, request = kernel_starts(workbench, code, token, address)
    printed = ""
    while True:
        answer = json.loads(connection.recv())
        if answer["msg_type"] == "stream":
            printed += answer["content"]["text"]
        if answer["msg_type"] == "execute_reply":
            assert answer["content"]["status"] == "ok", answer["content"]
        ours = answer["parent_header"].get("msg_id") == request
        if ours and answer["msg_type"] == "status" and answer["content"]["execution_state"] == "idle":
            break
    connection.close()
    http(kernel, token, "DELETE")
    return printed


def program_on_page(page, name):
    """The block of that page in docs/ whose first line names it so."""
    return re.search(
        rf"^```python\n(# {name}\n.*?)^```$", (REPO / "docs" / page).read_text(), re.DOTALL | re.MULTILINE
    )[1]


def new_name():
    return f"rl-test-{uuid.uuid4().hex[:12]}"
