"""The notebook kernels, from Jupyter's files; neither Jupyter is imported nor an interpreter started."""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from rl.doctor.facts.files import text_of
from rl.doctor.facts.software import package_folders
from rl.doctor.schema import Kernel


def kernels(root: Path, environment: Mapping[str, str]) -> tuple[Kernel, ...]:
    """The kernels for Python that are not the doctor's own Python; of two with one name the one that Jupyter takes."""
    found: dict[str, Kernel | None] = {}
    for folder in _jupyter_folders(root, environment):
        for file in sorted(folder.glob("kernels/*/kernel.json")):
            name = file.parent.name.lower()
            if name not in found:
                found[name] = _kernel(file, environment)
    return tuple(kernel for kernel in found.values() if kernel)


def _jupyter_folders(root: Path, environment: Mapping[str, str]) -> list[Path]:
    """Jupyter's data folders, the first one first; as jupyter_core.paths.jupyter_path."""
    home = environment.get("HOME", "/")
    share = environment.get("XDG_DATA_HOME") or f"{home}/.local/share"
    user = [Path(environment.get("JUPYTER_DATA_DIR") or f"{share}/jupyter")]
    prefix = _jupyter_prefix()
    own = [prefix / "share/jupyter"] if prefix else []
    system = [root / "usr/local/share/jupyter", root / "usr/share/jupyter"]
    given = [Path(path) for path in environment.get("JUPYTER_PATH", "").split(":") if path]
    # A venv of the user's own comes before the user's folder, another one's (/opt/venv in the image) after it.
    first = prefix is not None and (prefix / "pyvenv.cfg").exists() and os.access(prefix, os.W_OK)
    return [*given, *(own + user if first else user + own), *system]


def _jupyter_prefix() -> Path | None:
    """The installation that Jupyter belongs to, if the doctor's Python finds it."""
    folders = (folder for folder in package_folders() if (folder / "jupyter_core").is_dir())
    return next((folder.parents[2] for folder in folders if len(folder.parents) > 3), None)


def _kernel(file: Path, environment: Mapping[str, str]) -> Kernel | None:
    try:
        spec = json.loads(text_of(file))
        words = [str(word) for word in spec["argv"]]
        variables = {**environment, **{name: str(value) for name, value in dict(spec.get("env") or {}).items()}}
        language = str(spec.get("language", "")).lower()
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    if language != "python" or not words:
        return None
    python = _interpreter(words, variables)
    if python is None or _is_own(python):
        return None
    exists = python.exists()
    torch = _has_torch(python, variables) if exists and python.name.startswith("python") else None
    return Kernel(file.parent.name, str(python), exists, torch)


def _interpreter(words: list[str], environment: Mapping[str, str]) -> Path | None:
    """The program that the kernel's command starts; None where only the shell's PATH could tell, and it does not."""
    if Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word] or words
    elif words[0] in ("python", "python3", f"python3.{sys.version_info[1]}"):  # Jupyter puts its own in their place
        prefix = _jupyter_prefix()
        return prefix / "bin/python3" if prefix else None
    found = words[0] if "/" in words[0] else shutil.which(words[0], path=environment.get("PATH"))
    return Path(found) if found else None


def _is_own(python: Path) -> bool:
    own = Path(sys.executable)
    return python.parent.resolve() == own.parent.resolve() and python.resolve() == own.resolve()


def _has_torch(python: Path, environment: Mapping[str, str]) -> bool | None:
    """Whether a folder torch lies where this interpreter looks for packages; None where none of those is known."""
    folders = [folder for folder in _package_folders(python, environment) if folder.is_dir()]
    if not folders:
        return None
    linked = [path for folder in folders for path in _linked(folder)]
    return any((folder / "torch/__init__.py").exists() for folder in [*folders, *linked])


def _package_folders(python: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    yield from (Path(path) for path in environment.get("PYTHONPATH", "").split(":") if path)
    settings = dict(line.partition("=")[::2] for line in text_of(python.parent.parent / "pyvenv.cfg").splitlines())
    venv = {name.strip(): value.strip() for name, value in settings.items()}
    version = re.search(r"3\.\d+", python.resolve().name)
    lib = f"python{version[0] if version else '3*'}"
    prefixes = [python.parent.parent if venv else python.resolve().parent.parent]
    if not venv or venv.get("include-system-site-packages") == "true":
        prefixes += [Path(venv["home"]).parent] if "home" in venv else []
        yield from Path(environment.get("HOME", "/"), ".local/lib").glob(f"{lib}/site-packages")
    for prefix in prefixes:
        for pattern in (f"lib*/{lib}/site-packages", f"lib*/{lib}/dist-packages", f"local/lib/{lib}/dist-packages"):
            yield from prefix.glob(pattern)
        yield prefix / "lib/python3/dist-packages"


def _linked(folder: Path) -> Iterator[Path]:
    """Folders that its .pth files add: a path a line, or the call by which the image's venv is shown to the user's."""
    for file in folder.glob("*.pth"):
        for line in text_of(file).splitlines():
            call = re.search(r"addsitedir\(['\"](.+?)['\"]\)", line)
            if call:
                yield Path(call[1])
            elif line.strip() and not line.startswith(("import ", "import\t", "#")):
                yield folder / line.strip()
