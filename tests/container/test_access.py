"""Who gets in, by which way, and what they find there: Jupyter's token, ssh keys, one environment, no other socket."""

import json

import pexpect
import pytest
from workbench import IMAGE, docker, kernel_runs, run, terminal_types, wait_until

TOKEN = "given-token"  # as conftest's workbench has it

# what a way in has of its own
OF_A_SESSION = {"_", "HOME", "HOSTNAME", "MAIL", "OLDPWD", "PWD", "SHLVL", "TERM", "LS_COLORS", "BASH_ENV"}
OWN_PREFIXES = ("SSH_", "SUPERVISOR_", "JPY_", "JUPYTER_SERVER_", "JUPYTERHUB_", "PYDEVD_", "PYXTERM_", "GIT_", "LESS")
PRINT_ENVIRONMENT = "python -c 'import json, os; print(json.dumps(dict(os.environ)))'"


def test_jupyter_refuses_a_wrong_token_and_takes_the_right_one(workbench):
    assert workbench.http("/api/status", "wrong")[0] == 403
    assert workbench.http("/api/status")[0] == 403
    assert workbench.http("/api/status", TOKEN)[0] == 200
    assert workbench.http(f"/lab?token={TOKEN}")[0] in (200, 302)
    assert workbench.http("/lab")[0] == 302
    assert workbench.http("/lab", TOKEN)[0] == 200
    assert "JupyterLab" in workbench.http("/lab", TOKEN)[1]


def test_a_given_token_is_never_printed(workbench):
    assert "token: the one you gave" in workbench.log
    assert TOKEN not in workbench.log


def test_a_generated_token_is_printed_once_and_lets_in(launch):
    workbench = launch()
    assert workbench.log.count(workbench.token) == 1
    assert workbench.http("/api/status", workbench.token)[0] == 200
    assert workbench.token not in workbench.exec("ps", "-eo", "args").stdout


def test_a_token_can_come_from_a_file(launch, made_by):
    secret = made_by(1000)
    docker(
        "run", "--rm", "-u", "0", "-v", f"{secret}:/s", "--entrypoint", "sh", IMAGE, "-c", "echo from-a-file >/s/token"
    )
    workbench = launch("-v", f"{secret}:/run/secrets", "-e", "JUPYTER_TOKEN_FILE=/run/secrets/token")
    assert workbench.http("/api/status", "from-a-file")[0] == 200
    assert "from-a-file" not in workbench.log


def test_tensorboard_stands_behind_jupyters_login(workbench):
    assert workbench.http("/tensorboard/")[0] in (302, 403)
    status, page = workbench.http("/tensorboard/", TOKEN)
    assert status == 200
    assert "TensorBoard" in page


def test_ssh_lets_the_key_in(workbench):
    assert workbench.ssh("whoami").stdout == "rl\n"


def test_ssh_refuses_another_key(workbench, tmp_path):
    other = tmp_path / "other"
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other))
    done = workbench.ssh("whoami", key=other, check=False)
    assert done.returncode == 255
    assert "Permission denied (publickey)" in done.stderr


def test_ssh_refuses_passwords_without_asking_for_one(workbench):
    command = workbench.ssh_command("-o", "PubkeyAuthentication=no", "-o", "PreferredAuthentications=password")
    shell = pexpect.spawn(command[0], command[1:], encoding="utf-8", timeout=20)
    assert shell.expect([r"Permission denied \(publickey\)", "password:"]) == 0


def test_a_key_taken_away_is_refused_after_the_next_start(launch, folders):
    assert launch(*folders.arguments).ssh("true", check=False).returncode == 0
    assert launch(*folders.arguments, with_key=False).ssh("true", check=False).returncode == 255


def test_keys_can_be_mounted(launch, folders, key):
    mounted = ["-v", f"{key.with_suffix('.pub')}:/etc/ssh/authorized_keys:ro"]
    assert launch(*folders.arguments, *mounted, with_key=False).ssh("echo in").stdout == "in\n"


def test_scp_works_and_lands_in_the_work_folder(workbench, tmp_path):
    (tmp_path / "sent.txt").write_text("by scp")
    command = workbench.ssh_command("-o", "BatchMode=yes")
    options, port = command[1:-3], command[-1]
    run("scp", "-P", port, *options, str(tmp_path / "sent.txt"), "rl@127.0.0.1:")
    assert workbench.exec("cat", "/workspace/code/sent.txt").stdout == "by scp"


def test_an_interactive_login_greets_with_the_verdict_and_lands_in_the_work_folder(workbench):
    command = workbench.ssh_command()
    shell = pexpect.spawn(command[0], command[1:], encoding="utf-8", timeout=20)
    shell.expect("CPU only: ")
    shell.expect(r"rl@.*:/workspace/code\$ ")
    shell.sendline("exit")
    shell.expect(pexpect.EOF)


def test_a_notebook_cell_computes_with_torch(workbench):
    assert kernel_runs(workbench, "import torch; print(torch.arange(4.0).sum().item())") == "6.0\n"


def terminal_runs(workbench, command):
    """What a command prints in a Jupyter terminal."""
    connection = terminal_types(workbench, f"{command} >/tmp/from-terminal; echo do''ne")
    shown = ""
    while "done" not in shown:
        kind, *text = json.loads(connection.recv())
        shown += text[0] if kind == "stdout" else ""
    connection.close()
    return workbench.exec("cat", "/tmp/from-terminal").stdout


def interactive_ssh_runs(workbench, command):
    shell = workbench.ssh_command()
    shell = pexpect.spawn(shell[0], shell[1:], encoding="utf-8", timeout=30)
    shell.expect(r"\$ ")
    shell.sendline(f"{command} >/tmp/from-ssh; exit")
    shell.expect(pexpect.EOF)
    return workbench.exec("cat", "/tmp/from-ssh").stdout


WAYS_IN = {
    "ssh HOST COMMAND": lambda w: w.ssh(PRINT_ENVIRONMENT).stdout,
    "ssh, interactive": lambda w: interactive_ssh_runs(w, PRINT_ENVIRONMENT),
    "a notebook": lambda w: kernel_runs(w, "import json, os; print(json.dumps(dict(os.environ)))"),
    "a terminal": lambda w: terminal_runs(w, PRINT_ENVIRONMENT),
    "docker exec bash": lambda w: w.exec("bash", "-c", PRINT_ENVIRONMENT).stdout,
}


@pytest.fixture(scope="module")
def environment_of_exec(workbench):
    found = json.loads(workbench.exec("python", "-c", "import json, os; print(json.dumps(dict(os.environ)))").stdout)
    return {k: v for k, v in found.items() if k not in OF_A_SESSION | {"JUPYTER_TOKEN", "SSH_PUBLIC_KEY"}}


@pytest.mark.parametrize("way", WAYS_IN)
def test_every_way_in_has_the_environment_of_docker_exec_without_the_secrets(workbench, environment_of_exec, way):
    found = json.loads(WAYS_IN[way](workbench))
    assert "JUPYTER_TOKEN" not in found
    assert "SSH_PUBLIC_KEY" not in found
    of_kernels = {"CLICOLOR", "CLICOLOR_FORCE", "FORCE_COLOR", "MPLBACKEND", "PAGER", "COLUMNS", "LINES"}
    own = {k for k in found if k in OF_A_SESSION | of_kernels or k.startswith(OWN_PREFIXES)}
    assert {k: v for k, v in found.items() if k not in own} == environment_of_exec
    assert found["HOME"] == "/tmp/rl/home"


def test_what_the_user_changes_stays_changed_in_nested_shells(workbench):
    assert workbench.ssh("TRICKY=mine bash -c 'echo $TRICKY'").stdout == "mine\n"
    assert workbench.ssh("export PATH=/mine:$PATH; bash -c 'echo ${PATH%%:*}'").stdout == "/mine\n"
    assert workbench.exec("bash", "-c", "TRICKY=mine bash -c 'echo $TRICKY'").stdout == "mine\n"


def test_no_socket_but_the_declared_ports_listens_beyond_loopback(workbench):
    kernel_runs(workbench, "print(1)")
    declared = json.loads(docker("inspect", "--format", "{{json .Config.ExposedPorts}}", workbench.name).stdout)
    found = set()
    for table in ("tcp", "tcp6"):
        for row in workbench.exec("cat", f"/proc/net/{table}").stdout.splitlines()[1:]:
            address, _, port = row.split()[1].rpartition(":")
            loopback = address.endswith("0100007F") or address == "0" * 24 + "01000000"
            if row.split()[3] == "0A" and not loopback:
                found.add(f"{int(port, 16)}/tcp")
    assert found == set(declared) == {"8888/tcp", "2222/tcp"}


def test_published_ports_stay_on_loopback_by_default():
    compose = docker("compose", "-f", "docker-compose.yml", "config", "--format", "json").stdout
    ports = json.loads(compose)["services"]["workbench"]["ports"]
    assert {port["host_ip"] for port in ports} == {"127.0.0.1"}


def test_the_health_check_follows_jupyter_and_sshd(launch):
    workbench = launch()
    check = ["python", "-I", "/etc/rl/healthcheck.py"]

    def complaint():
        done = workbench.exec(*check, check=False)
        return done.stderr if done.returncode == 1 else None

    jupyter = workbench.exec("pgrep", "-o", "-x", "jupyter-lab").stdout.strip()
    workbench.exec("kill", "-STOP", jupyter)
    assert "Jupyter on 8888" in complaint()
    workbench.exec("kill", "-CONT", jupyter)
    assert complaint() is None
    workbench.exec("pkill", "-KILL", "-o", "-x", "sshd")
    assert "sshd does not listen on 2222" in complaint()
    wait_until(lambda: complaint() is None, 20, "sshd to be started again")
