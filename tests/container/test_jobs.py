"""Work that outlives the connection, the container, and `docker stop`."""

import time

import pexpect
import pytest
from workbench import IMAGE, docker, kernel_starts, new_name, run, states, terminal_types, wait_until


def start_and_log_out(workbench, line):
    """Types a line after an interactive login, and logs out."""
    command = workbench.ssh_command()
    shell = pexpect.spawn(command[0], command[1:], encoding="utf-8", timeout=30)
    shell.expect(r"\$ ")
    shell.sendline(line)
    shell.expect(r"\$ ")
    time.sleep(1)
    shell.sendline("exit")
    shell.expect(pexpect.EOF)


def test_the_missions_two_ssh_lines_leave_a_job_that_outlives_the_login(launch, folders):
    workbench = launch(*folders.arguments)
    start_and_log_out(workbench, "nohup python train_ppo.py --epochs 1000 &")

    wait_until(lambda: states(folders) == ["running"], 60, "a run")
    assert not workbench.exec("pgrep", "-f", "sshd.*rl@", check=False).stdout
    assert "train_ppo.py" in workbench.exec("ps", "-eo", "args").stdout
    assert (folders.code / "nohup.out").exists()


LONG = "python /workspace/code/train_ppo.py --epochs 100000"
IN_A_NOTEBOOK = """
from rl import ppo
from rl.run_config import RunConfig
from rl.train import train
train(RunConfig("CartPole-v1", total_steps=10**9), ppo.Config())
"""
WAYS_TO_START = {
    "ssh and nohup": lambda w: w.ssh(f"nohup {LONG} >/dev/null 2>&1 &"),
    "tmux": lambda w: w.ssh(f"tmux new-session -d '{LONG}'"),
    "docker exec": lambda w: docker("exec", "--detach", w.name, *LONG.split()),
    "a notebook's cell": lambda w: kernel_starts(w, IN_A_NOTEBOOK, w.token)[1].close(),
    "a notebook's shell line": lambda w: kernel_starts(w, f"!{LONG}", w.token)[1].close(),
    "a Jupyter terminal": lambda w: terminal_types(w, LONG, w.token).close(),
}


@pytest.mark.parametrize("way", WAYS_TO_START)
def test_docker_stop_lets_training_save_itself_and_auto_resume_goes_on_with_it(launch, folders, way):
    workbench = launch(*folders.arguments)
    WAYS_TO_START[way](workbench)
    wait_until(lambda: states(folders) == ["running"], 60, "a run")

    began = time.monotonic()
    docker("stop", workbench.name)
    assert time.monotonic() - began < 9.5
    assert workbench.state("ExitCode") == "0"
    assert states(folders) == ["interrupted"]

    launch(*folders.arguments, "-e", "AUTO_RESUME=1")
    wait_until(lambda: states(folders) == ["running"], 60, "the run to go on")


def test_docker_stop_lets_a_command_save_itself(folders):
    name = new_name()
    docker("run", "--detach", "--rm", "--name", name, *folders.arguments, IMAGE, *LONG.split(), check=False)
    wait_until(lambda: states(folders) == ["running"], 60, "a run")
    docker("stop", name)
    assert states(folders) == ["interrupted"]


def test_a_power_cut_loses_at_most_the_steps_since_the_last_checkpoint(launch, folders):
    workbench = launch(*folders.arguments)
    interval = 2_000
    line = f"rl train dqn --num-envs 1 --total-steps 1000000 --log-interval 100 --checkpoint-interval {interval}"
    docker("exec", "--detach", workbench.name, *line.split())

    def logged():
        for metrics in folders.models.glob("runs/*/metrics.csv"):
            rows = metrics.read_text().splitlines()
            return int(rows[-1].split(",")[0]) if len(rows) > 1 else 0
        return 0

    wait_until(lambda: logged() > 3 * interval, 120, "some checkpoints")
    docker("kill", workbench.name)
    reached = logged()
    assert states(folders) == ["running"]  # it could not say otherwise

    again = launch(*folders.arguments)
    latest = "glob.glob('/workspace/models/runs/*/checkpoints/latest.pt')[0]"
    program = f"import glob, torch; print(torch.load({latest})['counters']['step'])"
    saved = int(again.python(program))
    assert 0 <= reached - saved <= interval + 100
    resumed = again.exec("bash", "-c", "timeout -s TERM 20 rl resume --all /workspace/models/runs", check=False)
    assert resumed.returncode in (124, 143), resumed.stderr
    assert logged() > reached


def no_zombies_after(workbench, logins, tmp_path):
    stranger = tmp_path / "stranger"
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(stranger))
    for login in range(logins):
        key = None if login % 2 else stranger
        assert workbench.ssh("true", key=key, check=False).returncode == (0 if login % 2 else 255)
    processes = workbench.exec("ps", "-eo", "stat=,comm=").stdout
    assert [line for line in processes.splitlines() if line.startswith("Z")] == []
    assert len(processes.splitlines()) < 40


def test_logins_and_refused_ones_leave_no_zombie(launch, folders, tmp_path):
    no_zombies_after(launch(*folders.arguments), 20, tmp_path)


@pytest.mark.slow
def test_500_logins_leave_no_zombie(launch, folders, tmp_path):
    no_zombies_after(launch(*folders.arguments), 500, tmp_path)


def test_a_nohup_job_solves_cartpole_after_logout(launch, folders):
    workbench = launch(*folders.arguments)
    start_and_log_out(workbench, "nohup python train_dqn.py --seed 1 &")
    out = folders.code / "nohup.out"
    wait_until(lambda: out.exists() and "Solved in episode" in out.read_text(), 150, "Solved in episode …")


def test_a_workbench_without_jobs_stops_at_once_with_status_0(launch, folders):
    workbench = launch(*folders.arguments)
    began = time.monotonic()
    docker("stop", workbench.name)
    assert time.monotonic() - began < 5
    assert workbench.state("ExitCode") == "0"


def test_a_restarted_container_is_the_same_workbench(launch, folders):
    workbench = launch(*folders.arguments)
    token = workbench.token
    docker("restart", workbench.name)
    workbench.until_healthy()
    assert workbench.token == token
    assert workbench.http("/api/status", token)[0] == 200


def test_state_can_have_a_volume_of_its_own(launch, folders):
    volume = new_name()
    try:
        workbench = launch(*folders.arguments, "-v", f"{volume}:/workspace/.state")
        assert workbench.exec("readlink", "/tmp/rl/state").stdout == "/workspace/.state\n"
        assert not (folders.models / ".state").exists()
        docker("rm", "--force", workbench.name)
    finally:
        docker("volume", "rm", volume)


def test_delete_and_recreate_keeps_files_host_key_token_and_models(launch, folders):
    def identity(workbench):
        keys = workbench.exec("cat", "/tmp/rl/state/ssh/ssh_host_ed25519_key.pub").stdout
        return keys, workbench.token

    first = launch(*folders.arguments)
    first.ssh("echo mine > train_dqn.py; rm train_ppo.py; echo m > /workspace/models/kept.pt; echo h > ~/kept")
    before = identity(first)
    docker("rm", "--force", first.name)

    second = launch(*folders.arguments)
    assert identity(second) == before
    assert second.ssh("cat train_dqn.py /workspace/models/kept.pt ~/kept").stdout == "mine\nm\nh\n"
    assert not (folders.code / "train_ppo.py").exists()  # templates come into an empty folder only
    assert (folders.models / ".state").stat().st_mode & 0o777 == 0o700
    assert (folders.models / "kept.pt").stat().st_uid == folders.uid
