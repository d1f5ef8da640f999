"""The packages in here, from their files: nothing of them is imported."""

import ast
import json
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from rl.doctor.facts.files import text_of
from rl.doctor.schema import TorchBuild, decode


def torch_build(root: Path) -> TorchBuild:
    """The installed torch, every other copy of it, and the version that the image was built with."""
    found = {"copies": _copies(), "image": _of_image(root)}
    spec = PathFinder.find_spec("torch")
    if spec and spec.origin:
        found |= {"installed": True, **_assignments(Path(spec.origin).with_name("version.py"))}
    build: TorchBuild = decode(TorchBuild, found)
    return build


def _assignments(version_file: Path) -> dict[str, object]:
    """`__version__`, cuda and hip; nothing where the install is torn."""
    values: dict[str, object] = {}
    try:
        tree = ast.parse(text_of(version_file))
    except (SyntaxError, ValueError):
        return values
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
            values[target.id.replace("__version__", "version")] = value.value
    return {name: values[name] for name in ("version", "cuda", "hip") if name in values}


def _copies() -> list[str]:
    found = [f"{version} in {folder}" for folder, version in installed("torch")]
    listed = {folder for folder, _ in installed("torch")}
    for folder in package_folders():
        if folder not in listed and (folder / "torch/__init__.py").exists():  # no pip put it there
            found.append(f"{_assignments(folder / 'torch/version.py').get('version', 'no version')} in {folder}")
    order = {str(folder): place for place, folder in enumerate(package_folders())}
    return sorted(found, key=lambda copy: order[copy.split(" in ", 1)[1]])


def _of_image(root: Path) -> object:
    try:
        recorded = json.loads(text_of(root / "opt/rl/build-info.json"))
    except ValueError:
        return None
    return recorded.get("torch") if isinstance(recorded, dict) else None


def installed(package: str) -> Iterator[tuple[Path, str]]:
    """Folder and version of each copy that pip knows of, in the order of Python's search: as importlib.metadata would
    say, without the 30 ms of its import.
    """
    for folder in package_folders():
        for info in sorted(folder.glob(f"{package}-*.dist-info")):
            yield folder, info.name.removesuffix(".dist-info").split("-", 1)[1]


def package_folders() -> list[Path]:
    """The folders of Python's search path, each once: lib64 is often a link to lib."""
    return list({entry.resolve(): None for entry in map(Path, sys.path) if entry.is_absolute() and entry.is_dir()})
