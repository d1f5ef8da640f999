"""Which user the container is: the built-in one, any other, or root stepping down."""

import shlex

import pytest
from workbench import HARDENED, IMAGE, Folders, docker

WHO = "import getpass, os, pwd; print(getpass.getuser(), os.getuid(), os.getgid(), pwd.getpwuid(os.getuid()).pw_dir)"


def who(*arguments, check=True):
    return docker("run", "--rm", *arguments, IMAGE, "python", "-c", WHO, check=check)


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


ASK_JUPYTER = (
    "import urllib.request as u; t = open('/tmp/rl/token').read();"
    "print(u.urlopen(f'http://127.0.0.1:8888/api/status?token={t}').status)"
)
COMPILE = "import torch; print(torch.compile(lambda x: x + 1)(torch.zeros(2)).tolist())"
LOGIN = "ssh -i /tmp/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -p 2222 rl@127.0.0.1"
CAPABILITIES, ROOT_FILES, NETWORK = HARDENED[:4], HARDENED[4:7], HARDENED[7:]


@pytest.mark.parametrize(
    ("user", "flags"),
    [
        *((user, HARDENED) for user in ("1000:1000", "1234:1234", "1234", "501:20", "1000660000:0")),
        *(("1234:0", flags) for flags in ([], CAPABILITIES, ROOT_FILES, NETWORK)),
        ("0", [*ROOT_FILES, *NETWORK]),  # steps down, for which it needs its capabilities
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value) or "no flag",
)
def test_any_user_has_python_jupyter_ssh_git_and_compile_and_owns_what_it_makes(launch, made_by, user, flags):
    uid, _, gid = user.partition(":")
    uid, gid = ("4321", "4322") if user == "0" else (uid, gid or "0")
    owned = Folders(made_by(int(uid), int(gid)), made_by(int(uid), int(gid)), int(uid))
    workbench = launch("--user", user, *owned.mounts, *flags, ports=False)
    workbench.exec("sh", "-c", f"umask 077; printf %s '{workbench.key.read_text()}' >/tmp/key; echo >>/tmp/key")

    def by_ssh(command):
        return workbench.exec("sh", "-c", f"{LOGIN} {shlex.quote(command)}").stdout

    assert workbench.python(ASK_JUPYTER) == "200"
    assert by_ssh(f'python -c "{WHO}"').split() == ["rl", uid, gid, "/tmp/rl/home"]
    assert by_ssh(f'python -c "{COMPILE}"') == "[1.0, 1.0]\n"
    commit = "git init -q repo && git -C repo -c user.name=a -c user.email=b commit -q --allow-empty -m m && echo done"
    assert by_ssh(commit) == "done\n"
    assert {path.stat().st_uid for path in (owned.code / "repo").iterdir()} == {int(uid)}
    assert {path.stat().st_gid for path in (owned.code / "repo").iterdir()} == {int(gid)}


def test_read_only_without_a_writable_tmp_says_what_is_missing():
    done = docker("run", "--rm", "--read-only", IMAGE, "true", check=False)
    assert done.returncode == 1
    assert "--tmpfs /tmp" in done.stderr
