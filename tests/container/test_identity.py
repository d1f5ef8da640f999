"""Which user the container is: the built-in one, any other, or root stepping down."""

import pytest
from workbench import HARDENED, IMAGE, Folders, docker

WHO = "import getpass, os, pwd; print(getpass.getuser(), os.getuid(), os.getgid(), pwd.getpwuid(os.getuid()).pw_dir)"


def who(*arguments, check=True):
    return docker("run", "--rm", *arguments, IMAGE, "python", "-c", WHO, check=check)


@pytest.mark.parametrize("user", ["1000:1000", "1234:1234", "1234", "501:20", "1000660000:0"])
def test_any_uid_from_500_on_is_called_rl_under_all_hardening_flags(user):
    uid, _, gid = user.partition(":")
    assert who("--user", user, *HARDENED).stdout.split() == ["rl", uid, gid or "0", "/tmp/rl/home"]


def test_a_uid_below_500_gets_one_line_that_says_what_to_give():
    done = who("--user", "499", check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        'entrypoint: uid 499 is a system user\'s: start with a uid of 500 or more, as in --user "$(id -u):$(id -g)"'
    ]


def test_without_user_the_container_is_uid_1000():
    assert who().stdout.split()[:3] == ["rl", "1000", "1000"]


def test_as_root_it_steps_down_to_the_owner_of_the_work_folder(made_by):
    owned = Folders(made_by(4321, 4322), made_by(4321, 4322), 4321)
    assert who("--user", "0", *owned.mounts).stdout.split()[:3] == ["rl", "4321", "4322"]


def test_as_root_it_keeps_no_capability(made_by):
    owned = Folders(made_by(4321), made_by(4321), 4321)
    status = docker("run", "--rm", "--user", "0", *owned.mounts, IMAGE, "grep", "CapEff", "/proc/self/status").stdout
    assert int(status.split()[1], 16) == 0


def test_as_root_it_hands_an_empty_folder_of_roots_to_uid_1000(made_by):
    owned = Folders(made_by(0), made_by(0), 0)
    assert who("--user", "0", *owned.mounts).stdout.split()[:2] == ["rl", "1000"]
    assert (owned.code / "train_dqn.py").stat().st_uid == 1000


def test_as_root_it_hands_an_empty_models_folder_to_the_owner_of_the_work_folder(made_by):
    owned = Folders(made_by(4321), made_by(0), 4321)
    assert who("--user", "0", *owned.mounts).stdout.split()[:2] == ["rl", "4321"]
    assert owned.models.stat().st_uid == 4321


def test_as_root_it_does_not_touch_a_folder_of_roots_with_files_in_it(made_by):
    owned = Folders(made_by(0), made_by(0), 0)
    docker("run", "--rm", "-u", "0", *owned.mounts, "--entrypoint", "touch", IMAGE, "/workspace/code/mine")
    done = who("--user", "0", *owned.mounts, check=False)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "/workspace/code belongs to uid 0" in done.stderr
    assert owned.code.stat().st_uid == 0


def test_as_root_without_capabilities_it_says_in_one_line_why_it_cannot_step_down(folders):
    done = who("--user", "0", "--cap-drop", "ALL", *folders.mounts, check=False)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "start it with --user 1234:1234" in done.stderr


def test_services_run_for_a_root_start_too(launch, folders):
    workbench = launch("--user", "0", *folders.mounts)
    assert workbench.ssh("id -un").stdout == "rl\n"
    assert "Jupyter Server" in workbench.log


def test_all_hardening_flags_together_leave_jupyter_and_ssh_working(launch, folders):
    workbench = launch(*folders.arguments, *HARDENED, ports=False)
    ask = (
        "import urllib.request as u; t = open('/tmp/rl/token').read();"
        "print(u.urlopen(f'http://127.0.0.1:8888/api/status?token={t}').status)"
    )
    assert workbench.python(ask) == "200"
    workbench.exec("sh", "-c", f"umask 077; printf %s '{workbench.key.read_text()}' >/tmp/key; echo >>/tmp/key")
    login = "ssh -i /tmp/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -p 2222 rl@127.0.0.1 pwd"
    assert workbench.exec("sh", "-c", login).stdout == "/workspace/code\n"


def test_read_only_without_a_writable_tmp_says_what_is_missing():
    done = docker("run", "--rm", "--read-only", IMAGE, "true", check=False)
    assert done.returncode == 1
    assert "--tmpfs /tmp" in done.stderr
