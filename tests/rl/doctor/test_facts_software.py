"""What is gathered of the software: packages, compilers, caches and notebook kernels from files, torch in a child."""

import json
import os
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest
from fake_machine import REPO, clean_environment, fake_torch, make_root

from rl.doctor.facts import gather, notebooks
from rl.doctor.facts.session import with_forks
from rl.doctor.schema import GpuProcess, Kernel


class Nobody:
    """Answers in place of every child: nothing."""

    def __init__(self, probe, *arguments, limit, without=()):
        pass

    def collect(self):
        return {}

    def kill(self):
        pass


@pytest.fixture
def root(tmp_path):
    return make_root(tmp_path / "root")


@pytest.fixture(autouse=True)
def only_our_variables(monkeypatch):
    for name in set(os.environ) - set(clean_environment()):
        monkeypatch.delenv(name)


def look(root, **environment):
    return gather(root, with_torch=False, ask=Nobody, environment={"HOME": str(root / "home")} | environment)


def install(folder: Path, name: str, version: str) -> Path:
    """The record that pip leaves of a package."""
    (folder / f"{name}-{version}.dist-info").mkdir(parents=True)
    return folder


def first_on_path(monkeypatch, *folders):
    """Before what is there, but without the true torch."""
    found = PathFinder.find_spec("torch").submodule_search_locations[0]
    kept = [entry for entry in sys.path if Path(entry) != Path(found).parent]
    monkeypatch.setattr(sys, "path", [*map(str, folders), *kept])


def test_every_torch_on_the_search_path_is_listed_in_its_order(root, tmp_path, monkeypatch):
    user, image = fake_torch(install(tmp_path / "user", "torch", "2.15.0")), fake_torch(tmp_path / "image")
    install(image, "torch", "2.13.0")
    by_hand, empty = fake_torch(tmp_path / "by hand"), tmp_path / "empty"
    (empty / "torch").mkdir(parents=True)  # a folder of that name, but no package
    link = tmp_path / "lib64"
    link.symlink_to(user)
    first_on_path(monkeypatch, user, link, by_hand, empty, tmp_path / "not there", image)
    assert look(root).torch_build.copies == (f"2.15.0 in {user}", f"2.13.0 in {by_hand}", f"2.13.0 in {image}")


def test_two_records_of_torch_in_one_folder_are_two_copies(root, tmp_path, monkeypatch):
    folder = install(fake_torch(install(tmp_path / "a", "torch", "2.12.0")), "torch", "2.13.0")
    first_on_path(monkeypatch, folder)
    assert look(root).torch_build.copies == (f"2.12.0 in {folder}", f"2.13.0 in {folder}")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('{"torch": "2.13.0", "variant": "torch2.13"}', "2.13.0"),
        ('{"torch": 2}', None),
        ("[]", None),
        ("{", None),
        (None, None),
    ],
)
def test_the_torch_of_the_image_is_what_the_image_recorded(root, text, version):
    if text:
        (root / "opt/rl").mkdir(parents=True)
        (root / "opt/rl/build-info.json").write_text(text)
    assert look(root).torch_build.image == version


def test_packages_that_answer_for_nvml_are_listed(root, tmp_path, monkeypatch):
    folder = install(install(tmp_path / "site", "pynvml", "11.5.3"), "nvidia_ml_py", "13.595.45")
    monkeypatch.setattr(sys, "path", [str(folder)])
    assert look(root).tools.nvml_packages == ("nvidia-ml-py 13.595.45", "pynvml 11.5.3")


def run_torch(packages, monkeypatch, **variables):
    monkeypatch.setenv("PYTHONPATH", f"{packages}{os.pathsep}{REPO}")
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    return gather(packages / "no-root")


def test_torch_tells_uuid_and_capability_of_each_gpu(tmp_path, monkeypatch):
    gpus = run_torch(fake_torch(tmp_path, gpus=2), monkeypatch).torch.gpus
    assert [(gpu.name, gpu.uuid, gpu.capability) for gpu in gpus] == [
        ("NVIDIA H200", "GPU-0000-0", (9, 0)),
        ("NVIDIA H200", "GPU-0000-1", (9, 0)),
    ]


def test_a_torch_that_does_not_describe_its_gpus_is_asked_all_the_rest(tmp_path, monkeypatch):
    packages = fake_torch(tmp_path, gpus=1, total="3.0", after="del cuda.get_device_properties; cuda.warn = 0")
    run = run_torch(packages, monkeypatch).torch
    assert (run.gpus, run.kernel_error) == ((), None)
    assert "get_device_properties" in run.error


def test_what_torch_warns_of_is_kept_whenever_it_does(tmp_path, monkeypatch):
    late = "import warnings; cuda.current_device = lambda: warnings.warn('no kernels for this GPU') or 0"
    run = run_torch(fake_torch(tmp_path, gpus=1, after=late), monkeypatch).torch
    assert (run.warnings, run.kernel_error) == (("no kernels for this GPU",), None)


def test_a_cudnn_that_torch_refuses_is_kept_with_its_path(tmp_path, monkeypatch):
    library = tmp_path / "libcudnn.so.8"
    (tmp_path / "empty.c").touch()
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "empty.c"], check=True)
    body = f"import ctypes; ctypes.CDLL({str(library)!r})"
    refuse = "def refuse(): raise RuntimeError('cuDNN version incompatibility')\nbackends.cudnn.version = refuse"
    run = run_torch(fake_torch(tmp_path / "packages", body=body, after=refuse), monkeypatch).torch
    assert run.cudnn_error == "RuntimeError: cuDNN version incompatibility"
    assert run.cudnn_path == str(library)
    assert (run.error, run.available) == (None, False)  # and goes on


FAILS_WITH_VARIABLE = {
    "raises": "import os\nif 'LD_LIBRARY_PATH' in os.environ: raise ImportError('undefined symbol: __nvJitLink')",
    "crashes": "import os\nif 'LD_LIBRARY_PATH' in os.environ: os.kill(os.getpid(), 11)",
}


@pytest.mark.parametrize("kind", FAILS_WITH_VARIABLE)
def test_a_torch_that_fails_is_asked_again_without_the_library_path(tmp_path, monkeypatch, kind):
    packages = fake_torch(tmp_path, body=FAILS_WITH_VARIABLE[kind])
    facts = run_torch(packages, monkeypatch, LD_LIBRARY_PATH=tmp_path)
    assert facts.torch.version is None
    assert (facts.torch_alone.ended, facts.torch_alone.error, facts.torch_alone.version) == ("ok", None, "2.13.0")


def test_a_torch_that_works_is_asked_once(tmp_path, monkeypatch):
    facts = run_torch(fake_torch(tmp_path), monkeypatch, LD_LIBRARY_PATH=tmp_path)
    assert facts.torch_alone.ended == "not run"


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("programs", "variables", "found"),
    [
        ((), {}, ("", "")),
        (("gcc", "cc", "g++"), {}, ("gcc", "g++")),
        (("clang",), {}, ("clang", "")),
        (("gcc", "g++", "ccache"), {"CC": "ccache gcc", "CXX": "gone"}, ("ccache", "")),
    ],
)
def test_the_compilers_are_those_that_torch_compile_takes(root, tmp_path, programs, variables, found):
    folder = tmp_path / "bin"
    for name in programs:
        program(folder / name)
    tools = look(root, PATH=str(folder), **variables).tools
    assert (tools.compiler, tools.cpp_compiler) == tuple(str(folder / name) if name else "" for name in found)


def test_the_cache_is_where_torch_puts_it(root, tmp_path):
    assert look(root, LOGNAME="ann", TMPDIR=str(tmp_path)).tools.cache == str(tmp_path / "torchinductor_ann")
    assert look(root, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "x")).tools.cache == str(tmp_path / "x")


def test_trying_the_cache_leaves_nothing_behind(root, tmp_path):
    tools = look(root, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "deep/er")).tools
    assert (tools.cache_error, tools.cache_nfs) == ("", False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["root"]


def test_a_cache_that_cannot_be_made_is_an_error(root, tmp_path):
    (tmp_path / "file").touch()
    tools = look(root, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "file/cache")).tools
    assert tools.cache_error == f"{tmp_path / 'file'}: Not a directory"


def test_tritons_own_cache_counts_where_it_is_the_one_that_fails(root, tmp_path):
    (tmp_path / "file").touch()
    folders = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "x"), "TRITON_CACHE_DIR": str(tmp_path / "file/triton")}
    assert look(root, **folders).tools.cache == folders["TRITON_CACHE_DIR"]


def mounted(root: Path, folder: Path, options: str, kind: str) -> None:
    lines = ["1 0 0:1 / / rw - overlay overlay rw", f"2 1 0:2 / {folder} {options} shared:1 - {kind} source rw"]
    (root / "proc/self/mountinfo").write_text("\n".join(lines))


def test_a_file_system_that_executes_nothing_is_noticed(root, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "tmpfs")
    (tmp_path / "tmpfs").mkdir()
    mounted(root, tmp_path / "tmpfs", "rw,nosuid,noexec", "tmpfs")
    assert look(root, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "link/cache")).tools.cache_noexec
    assert not look(root, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache")).tools.cache_noexec


def test_a_cache_on_nfs_is_not_tried(root, tmp_path):
    mounted(root, tmp_path, "rw", "nfs4")
    tools = look(root, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache")).tools
    assert (tools.cache_nfs, tools.cache_error) == (True, None)


def loader_cache(root: Path, *libraries: str, exist: bool = True) -> None:
    for library in libraries:
        (root / library.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        if exist:
            (root / library.lstrip("/")).touch()
    data = b"glibc-ld.so.cache1.1" + b"\0".join(f"{Path(name).name}\0{name}".encode() for name in libraries) + b"\0"
    (root / "etc/ld.so.cache").write_bytes(data)


def test_libcuda_is_looked_for_where_triton_does(root, tmp_path):
    assert look(root).tools.libcuda is None  # there is no cache, so nobody knows
    loader_cache(root, "/usr/lib/libz.so.1")
    assert look(root).tools.libcuda is False
    assert look(root, TRITON_LIBCUDA_PATH="/x").tools.libcuda is None
    (tmp_path / "libcuda.so.1").touch()
    assert look(root, LD_LIBRARY_PATH=f":{tmp_path}").tools.libcuda is True
    loader_cache(root, "/usr/lib/x/libcuda.so.1", exist=False)
    assert look(root).tools.libcuda is False
    loader_cache(root, "/usr/lib/x/libcuda.so.1")
    assert look(root).tools.libcuda is True


def test_nvidias_egl_and_the_file_that_names_it_are_found(root):
    assert look(root).tools.egl_library == "libEGL_nvidia.so.0 is in none of the loader's folders"
    assert look(root).tools.egl_vendor is False
    loader_cache(root, "/usr/lib/x/libEGL_nvidia.so.0")
    vendors = root / "usr/share/glvnd/egl_vendor.d"
    vendors.mkdir(parents=True)
    (vendors / "50_mesa.json").write_text('{"ICD": {"library_path": "libEGL_mesa.so.0"}}')
    assert (look(root).tools.egl_library, look(root).tools.egl_vendor) == ("", False)
    (vendors / "10_nvidia.json").write_text('{"ICD": {"library_path": "libEGL_nvidia.so.0"}}')
    assert look(root).tools.egl_vendor is True
    assert look(root, __EGL_VENDOR_LIBRARY_FILENAMES=str(vendors / "50_mesa.json")).tools.egl_vendor is False


def python_in(prefix: Path, *, torch: bool = False, venv: bool = True) -> Path:
    """A Python of its own: an interpreter and a folder of packages."""
    site = prefix / "lib/python3.12/site-packages"
    site.mkdir(parents=True)
    if venv:
        (prefix / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    if torch:
        fake_torch(site)
    return program(prefix / "bin/python3.12")


def kernel(data: Path, name: str, *argv: object, **fields: object) -> None:
    folder = data / "kernels" / name
    folder.mkdir(parents=True)
    spec = {"argv": [*map(str, argv), "-m", "ipykernel_launcher"], "language": "python"} | fields
    (folder / "kernel.json").write_text(json.dumps(spec))


@pytest.fixture
def user(root, monkeypatch):
    """Jupyter's folder of the user; and Jupyter belongs to this Python, which in the image it does not."""
    monkeypatch.setattr(notebooks, "_jupyter_prefix", lambda: Path(sys.prefix))
    return root / "home/.local/share/jupyter"


def test_a_kernel_of_another_python_is_looked_into(root, user, tmp_path):
    kernel(user, "with", python_in(tmp_path / "a", torch=True))
    kernel(user, "without", python_in(tmp_path / "b"))
    kernel(user, "plain", python_in(tmp_path / "c", venv=False))
    kernel(user, "gone", tmp_path / "d/bin/python")
    assert look(root).kernels == (
        Kernel("gone", str(tmp_path / "d/bin/python"), False, None),
        Kernel("plain", str(tmp_path / "c/bin/python3.12"), True, False),
        Kernel("with", str(tmp_path / "a/bin/python3.12"), True, True),
        Kernel("without", str(tmp_path / "b/bin/python3.12"), True, False),
    )


def test_kernels_that_say_nothing_of_torch_are_left_out(root, user, tmp_path):
    kernel(user, "own", sys.executable)
    kernel(user, "jupyters-own", "python")
    kernel(user, "r", "/usr/bin/R", language="R")
    kernel(user, "odd", language=None)
    (user / "kernels/torn").mkdir()
    (user / "kernels/torn/kernel.json").write_text('{"argv": ')
    (user / "kernels/empty").mkdir()
    (user / "kernels/empty/kernel.json").write_text('{"argv": [], "language": "python"}')
    assert look(root).kernels == ()


def test_a_program_that_starts_some_python_is_not_judged(root, user, tmp_path):
    kernel(user, "conda", program(tmp_path / "bin/conda"), "run", "python")
    shim = program(tmp_path / "shims/bin/python")  # a script without packages beside it
    kernel(user, "pyenv", shim)
    assert [found.torch for found in look(root).kernels] == [None, None]


def test_env_in_a_kernel_takes_the_python_of_the_path(root, user, tmp_path):
    other = python_in(tmp_path / "a")
    other.rename(other.with_name("python3"))
    kernel(user, "env", "/usr/bin/env", "X=1", "python3")
    assert [found.python for found in look(root, PATH=str(tmp_path / "a/bin")).kernels] == [
        str(other.parent / "python3")
    ]


@pytest.mark.parametrize("line", ["{image}", "import site; site.addsitedir('{image}')"])
def test_torch_behind_a_pth_file_is_found(root, user, tmp_path, line):
    image = fake_torch(tmp_path / "image")
    kernel(user, "overlay", python_in(tmp_path / "a"))
    (tmp_path / "a/lib/python3.12/site-packages/image.pth").write_text(f"import sys\n{line.format(image=image)}\n")
    assert [found.torch for found in look(root).kernels] == [True]


def test_torch_in_the_kernels_own_variables_is_found(root, user, tmp_path):
    kernel(user, "path", python_in(tmp_path / "a"), env={"PYTHONPATH": str(fake_torch(tmp_path / "lib"))})
    assert [found.torch for found in look(root).kernels] == [True]


def test_torch_of_the_user_counts_where_the_python_sees_it(root, user, tmp_path):
    fake_torch(root / "home/.local/lib/python3.12/site-packages")
    kernel(user, "apart", python_in(tmp_path / "a"))
    kernel(user, "plain", python_in(tmp_path / "b", venv=False))
    assert [(found.name, found.torch) for found in look(root).kernels] == [("apart", False), ("plain", True)]


def test_of_two_kernels_with_one_name_the_first_counts(root, user, tmp_path):
    kernel(root / "usr/share/jupyter", "python3", python_in(tmp_path / "a"))
    kernel(tmp_path / "given", "python3", python_in(tmp_path / "b"))
    folders = {"JUPYTER_PATH": str(tmp_path / "given"), "JUPYTER_DATA_DIR": str(tmp_path / "nothing")}
    named = [found.python for found in look(root, **folders).kernels if found.name == "python3"]
    assert named == [str(tmp_path / "b/bin/python3.12")]


def test_the_environment_of_process_1_is_read_by_the_same_list(root):
    (root / "proc/1").mkdir()
    entries = ["NVIDIA_VISIBLE_DEVICES=all", "JUPYTER_TOKEN=hunter2", "LD_LIBRARY_PATH=/a=b", "torn", ""]
    (root / "proc/1/environ").write_bytes("\0".join(entries).encode())
    assert look(root).init_environment == {"NVIDIA_VISIBLE_DEVICES": "all", "LD_LIBRARY_PATH": "/a=b"}


def test_of_another_users_process_1_nothing_is_known(root):
    assert look(root).init_environment == {}


def test_a_forked_process_has_its_parents_command_line(root):
    commands = {100: "python\0train.py\0", 101: "python\0train.py\0", 102: "python\0-c\0spawn_main()\0", 103: ""}
    for pid, command in commands.items():
        (root / f"proc/{pid}").mkdir()
        (root / f"proc/{pid}/cmdline").write_text(command)
    holders = tuple(GpuProcess(pid, "python", "S", 100 if pid != 100 else 1) for pid in (*commands, 104))
    assert [process.pid for process in with_forks(root, holders) if process.forked] == [101]
