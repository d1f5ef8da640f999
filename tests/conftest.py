"""Fixtures of the image's tests (container, browser): folders, keys, and containers that are removed again."""

import os

import pytest
from workbench import IMAGE, Folders, Workbench, docker, new_name, run, why_not_testable

TESTER = os.getuid() or 1234


def pytest_collection_modifyitems(items):
    of_the_image = [item for item in items if {"container", "browser"} & set(item.path.parts)]
    why = of_the_image and why_not_testable()
    for item in of_the_image:
        if why:
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def key(tmp_path_factory):
    """A private key's path; the public one lies beside it."""
    path = tmp_path_factory.mktemp("ssh") / "key"
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "tester", "-f", str(path))
    return path


@pytest.fixture(scope="session")
def made_by(tmp_path_factory):
    """Makes an empty folder that belongs to a uid, as anybody: the engine does the chown."""

    def make(uid, gid=None):
        folder = tmp_path_factory.mktemp("owned")
        folder.chmod(0o755)
        chown(folder, f"{uid}:{uid if gid is None else gid}")
        return folder

    yield make
    if os.getuid():  # so that pytest can clear up
        chown(tmp_path_factory.getbasetemp(), str(os.getuid()), "--recursive")


def chown(folder, owner, *options):
    docker(
        *("run", "--rm", "--user", "0", "--network", "none", "-v", f"{folder}:/folder"),
        *("--entrypoint", "chown", IMAGE, *options, owner, "/folder"),
    )


@pytest.fixture
def folders(made_by):
    """Two empty folders of a user that the image does not know: the tester, or one of root's choice."""
    return Folders(made_by(TESTER), made_by(TESTER), TESTER)


@pytest.fixture(scope="session")
def launch_for_session(key):
    yield from launcher(key)


@pytest.fixture
def launch(key):
    """Starts a container with services, waits until it is healthy, and removes it after the test."""
    yield from launcher(key)


def launcher(key):
    names = []

    def start(*arguments, ports=True, wait=True, with_key=True):
        name = new_name()
        names.append(name)
        published = ["-p", "127.0.0.1::8888", "-p", "127.0.0.1::2222"] if ports else []
        keys = ["-e", f"SSH_PUBLIC_KEY={key.with_suffix('.pub').read_text()}"] if with_key else []
        docker("run", "--detach", "--name", name, *published, *keys, *arguments, IMAGE)
        workbench = Workbench(name, key)
        if wait:
            workbench.until_healthy()
        return workbench

    yield start
    for name in names:
        docker("rm", "--force", "--volumes", name, check=False)


@pytest.fixture(scope="session")
def workbench(launch_for_session, made_by):
    """One running workbench for the tests that change nothing in it; hardened but for the network, to be reached."""
    owned = Folders(made_by(TESTER), made_by(TESTER), TESTER)
    return launch_for_session(
        *owned.arguments,
        *("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--read-only", "--tmpfs", "/tmp"),
        *("-e", 'TRICKY=it\'s "q" $HOME\n=ünï', "-e", "JUPYTER_TOKEN=given-token"),
    )
