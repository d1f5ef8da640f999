"""The mission's own lines, typed into a pseudo-terminal, where the folder is not there yet or is another's."""

import os
import re
import shlex

import pexpect
import pytest
from workbench import IMAGE, REPO, docker, new_name, states, wait_until

CONTRACT_LINE = 'mkdir -p code models && docker run --user "$(id -u):$(id -g)" …'


@pytest.fixture
def typed(tmp_path):
    """Types a docker run line in a folder; the container gets a name, to be removed by."""
    names = []

    def spawn(line, folder=tmp_path):
        name = new_name()
        names.append(name)
        shell = pexpect.spawn(
            "bash",
            ["-c", line.replace("docker run", f"docker run --rm --name {name}", 1)],
            cwd=str(folder),
            encoding="utf-8",
            timeout=60,
            dimensions=(50, 200),
        )
        shell.container = name
        return shell

    yield spawn
    for name in names:
        docker("rm", "--force", name, check=False)


MISSION_LINE = f"docker run --gpus all -it -v ./rl_code:/workspace {IMAGE}"


def says(shell, command):
    """What a shell in the container answers to a command."""
    shell.sendline(f"{command}; echo e''nd")
    shell.expect("end\r\n")
    return shell.before


def leave(shell):
    shell.sendline("exit")
    shell.expect(pexpect.EOF, timeout=30)
    shell.close()
    return shell.exitstatus


def test_the_missions_line_gives_a_shell_where_the_folder_is_not_there_yet(typed):
    shell = typed(MISSION_LINE)
    shell.expect_exact(CONTRACT_LINE)
    shell.expect("Jupyter Lab")
    shell.expect(r"\$ ")
    assert "rl" in says(shell, "whoami")
    assert "train_dqn.py" in says(shell, "ls")
    assert "/tmp/rl/packages/bin/python" in says(shell, "command -v python")
    assert leave(shell) == 0


def test_the_contract_line_appears_once(typed):
    shell = typed(MISSION_LINE)
    shell.expect(r"SSH .*\$ ")
    assert shell.before.count(CONTRACT_LINE) == 1
    assert leave(shell) == 0


def test_the_missions_line_keeps_files_in_a_folder_of_uid_1000(typed, tmp_path, made_by):
    (tmp_path / "rl_code").symlink_to(made_by(1000))
    shell = typed(MISSION_LINE)
    shell.expect(r"\$ ")
    assert "/workspace/code" in says(shell, "pwd")
    says(shell, "touch kept")
    assert leave(shell) == 0
    assert (tmp_path / "rl_code/code/kept").stat().st_uid == 1000
    assert (tmp_path / "rl_code/models/.state").exists()


def test_the_missions_line_starts_in_an_empty_folder_of_another_uid_and_says_how_to_own_it(typed, tmp_path, made_by):
    folder = made_by(4321)
    (tmp_path / "rl_code").symlink_to(folder)
    shell = typed(MISSION_LINE)
    shell.expect_exact(CONTRACT_LINE)
    shell.expect(r"\$ ")
    assert "train_ppo.py" in says(shell, "ls")
    assert leave(shell) == 0
    assert os.listdir(folder) == []


def test_the_readmes_line_gives_a_shell_and_keeps_the_callers_files(typed, tmp_path):
    readme = (REPO / "README.md").read_text()
    line = re.search(r"^docker run (?:.*\\\n)*.*$", readme, re.MULTILINE)[0]
    for port in ("8888", "2222"):  # these may be taken here
        line = line.replace(f"127.0.0.1:{port}:{port}", f"127.0.0.1::{port}")
    shell = typed(f"mkdir -p code models && {line.replace('pytorch-cuda-rl', IMAGE)}")
    shell.expect("Jupyter Lab")
    shell.expect(r"\$ ")
    assert "/workspace/code" in says(shell, "pwd")
    says(shell, "touch kept")
    assert leave(shell) == 0
    assert (tmp_path / "code/kept").stat().st_uid == (os.getuid() or 1000)
    assert (tmp_path / "models/.state/token").exists()


def test_the_simulated_gpu_is_seen_by_watch_and_by_the_self_check(typed):
    shell = typed(f"docker run --gpus all -it {IMAGE} watch -n 1 nvidia-smi")
    shell.expect("GPU ready: NVIDIA H200")
    shell.expect("NVIDIA-SMI 580")
    shell.sendintr()
    shell.expect(pexpect.EOF)


def test_docker_stop_ends_a_shell_with_a_program_in_it(typed, folders):
    shell = typed(f"docker run -it {' '.join(folders.arguments)} {IMAGE}")
    shell.expect(r"\$ ")
    shell.sendline("python train_ppo.py --epochs 100000")
    wait_until(lambda: states(folders) == ["running"], 60, "a run")
    docker("stop", shell.container)
    shell.expect(pexpect.EOF)
    shell.close()
    assert shell.exitstatus == 0
    assert states(folders) == ["interrupted"]


def test_ctrl_c_in_the_shell_ends_a_program_and_not_the_workbench(typed):
    shell = typed(f"docker run -it {IMAGE}")
    shell.expect(r"\$ ")
    shell.sendline('python -c \'import time; print("be" + "gun"); time.sleep(600)\'')
    shell.expect("begun")
    shell.sendintr()
    shell.expect("KeyboardInterrupt")
    shell.expect(r"\$ ")
    assert "jupyter-lab" in says(shell, "ps -e")
    assert leave(shell) == 0


def test_a_command_after_the_image_is_run_in_the_work_folder_and_alone_on_stdout(folders):
    (folders.code / "x.py").write_text("import os, sys; print(os.getcwd(), sys.argv[1:])")
    done = docker("run", "--rm", *folders.arguments, IMAGE, *shlex.split("python x.py 'a b' --gpus"))
    assert done.stdout == "/workspace/code ['a b', '--gpus']\n"
    assert done.stderr.startswith("CPU only")


def test_a_commands_exit_status_is_the_containers():
    assert docker("run", "--rm", IMAGE, "bash", "-c", "exit 42", check=False).returncode == 42


def test_an_option_after_the_images_name_is_explained():
    done = docker("run", "--rm", IMAGE, "--gpus", "all", check=False)
    assert done.returncode == 1
    assert "--gpus stands after the image's name" in done.stderr
