"""The folder .devcontainer, opened by the command-line tool that VS Code and Codespaces use."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from workbench import REPO, docker, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
DEVCONTAINER = ["npx", "--yes", "@devcontainers/cli@0.89.0"]
NOBODY = 65534  # the tool asks for the caller's name, which root has too, but root's files stay root's


@pytest.fixture(scope="module")
def caller(tmp_path_factory):
    """Words before a command that run it as an ordinary user who may speak to the engine; and their uid."""
    if not shutil.which("npx"):
        pytest.skip("no npx here to run @devcontainers/cli with: apt-get install npm")
    home = tmp_path_factory.mktemp("home")
    if os.getuid():
        return ["env", f"HOME={home}"], os.getuid()
    shutil.chown(home, NOBODY, NOBODY)
    engine = Path("/var/run/docker.sock").stat().st_gid
    drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", f"--groups={engine}"]
    return [*drop, "env", f"HOME={home}"], NOBODY


@pytest.fixture(scope="module")
def opened(caller, tmp_path_factory):
    """Runs a command in the dev container of a copy of this repository; the copy's folder."""
    words, uid = caller
    folder = tmp_path_factory.mktemp("repository")
    for parent in (folder.parent, folder.parent.parent):
        parent.chmod(0o755)
    files = f"git -C {REPO} ls-files -z --cached --others --exclude-standard"
    subprocess.run(f"{files} | tar c -C {REPO} --null -T - | tar x -C {folder}", shell=True, check=True)
    if not os.getuid():
        run("chown", "--recursive", f"{uid}:{uid}", str(folder))
    started = run(*words, *DEVCONTAINER, "up", "--workspace-folder", str(folder), timeout=600)
    container = json.loads(started.stdout.splitlines()[-1])["containerId"]
    image = docker("inspect", "--format", "{{.Config.Image}}", container).stdout.strip()
    yield lambda *command: run(*words, *DEVCONTAINER, "exec", "--workspace-folder", str(folder), *command), folder
    docker("rm", "--force", "--volumes", container)
    docker("rmi", image)


def test_it_runs_as_rl_with_the_callers_uid_in_the_repository(opened, caller):
    inside, folder = opened
    who = inside("bash", "-c", "id -un; id -u; pwd; touch made-inside; rl --help >/dev/null && echo rl runs").stdout
    assert who.split("\n")[:4] == ["rl", str(caller[1]), "/workspace/code", "rl runs"]
    assert (folder / "made-inside").stat().st_uid == caller[1]


def test_jupyter_serves_beside_the_editor(opened):
    inside, _ = opened
    asked = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8888/api', timeout=30).status)"
    script = f'until [ -e /tmp/rl/started ]; do sleep 0.2; done; python -c "{asked}"'
    assert inside("timeout", "60", "bash", "-c", script).stdout.strip() == "200"
