"""What the user installs with pip: kept in the state folder, over the image's packages, which stay as they are."""

import zipfile

import pytest
from workbench import IMAGE, docker, kernel_runs


def wheel(folder, name, version, body=""):
    """A wheel of one module, without an index to get it from."""
    info = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", f"version = {version!r}\n{body}")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    path.chmod(0o644)
    return f"/workspace/code/{path.name}"


@pytest.fixture
def in_container(folders):
    """Runs a script in a fresh container each time, on the same folders."""

    def run(script, *arguments, check=True):
        command = ("run", "--rm", "--network", "none", *folders.arguments, *arguments, IMAGE, "bash", "-c", script)
        return docker(*command, check=check)

    return run


def test_an_installed_package_survives_the_container_and_is_the_callers(in_container, folders):
    path = wheel(folders.code, "mine", "1.0")
    in_container(f"pip install -q {path}")
    assert in_container("python -c 'import mine; print(mine.version)'").stdout == "1.0\n"
    kept = next((folders.models / ".state/packages").glob("lib/python*/site-packages/mine.py"))
    assert kept.stat().st_uid == folders.uid


def test_python_minus_m_pip_does_the_same_under_a_read_only_root(in_container, folders):
    path = wheel(folders.code, "mine", "1.0")
    in_container(f"python -m pip install -q {path}", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL")
    assert in_container("python -c 'import mine; print(mine.version)'").stdout == "1.0\n"


def test_a_package_of_the_image_can_be_overridden_and_the_override_taken_back(in_container, folders):
    path = wheel(folders.code, "absl_py", "99.0")
    in_container(f"pip install -q --no-deps {path}")
    asks = "python -c 'import importlib.metadata as m; print(m.version(\"absl-py\"))'"
    assert in_container(asks).stdout == "99.0\n"
    assert in_container(asks.replace("python", "/opt/venv/bin/python", 1)).stdout != "99.0\n"
    in_container("pip uninstall -q -y absl-py")
    assert in_container(asks).stdout != "99.0\n"


def test_torch_is_not_replaced_by_accident(in_container, folders):
    path = wheel(folders.code, "torch", "9.9")
    refused = in_container(f"pip install --no-deps {path}", check=False)
    assert refused.returncode != 0
    assert "(constraint) torch==2.13.0" in refused.stdout + refused.stderr
    in_container(f"PIP_CONSTRAINT= pip install -q --no-deps {path}")
    assert in_container("python -c 'import torch; print(torch.version)'").stdout == "9.9\n"


def test_packages_of_another_image_are_set_aside_with_the_line_that_installs_them_again(in_container, folders):
    in_container(f"pip install -q {wheel(folders.code, 'mine', '1.0')}")
    in_container("echo python3.1-torch1.0 >/tmp/rl/packages/made_for")
    later = in_container("python -c 'import mine'", check=False)
    assert "No module named 'mine'" in later.stderr
    assert "set aside in" in later.stderr
    assert "pip install mine==1.0" in later.stderr
    aside = folders.models / ".state/packages-for-python3.1-torch1.0"
    assert list(aside.glob("lib/python*/site-packages/mine.py"))
    assert "set aside" not in in_container("true").stderr


def test_notebooks_see_the_package_and_a_broken_one_does_not_keep_jupyter_from_starting(launch, folders):
    mine = wheel(folders.code, "mine", "1.0")
    broken = wheel(folders.code, "tornado", "99.0", "raise ImportError('broken')")
    arguments = [*folders.arguments, "-e", "JUPYTER_TOKEN=given-token"]
    first = launch(*arguments)
    first.exec("pip", "install", "-q", mine)
    assert kernel_runs(first, "import mine; print(mine.version)") == "1.0\n"
    first.exec("pip", "install", "-q", "--no-deps", broken)
    docker("rm", "--force", first.name)
    second = launch(*arguments)
    assert second.http("/api/status", "given-token")[0] == 200
