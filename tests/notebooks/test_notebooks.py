"""Each notebook runs from top to bottom, as a reader would run it, and leaves something to look at."""

import os
import shutil
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

REPO = Path(__file__).parents[2]


def run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> nbformat.NotebookNode:
    """The notebook after a run in a work folder like that of the image: scripts and notebooks side by side."""
    for file in (*REPO.glob("scripts/train_*.py"), *REPO.glob("notebooks/*.ipynb")):
        shutil.copy(file, tmp_path)
    # `!rl` and `!python` mean those of this environment, as in the image
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("RL_MODELS_DIR", str(tmp_path / "models"))
    notebook = nbformat.read(tmp_path / name, as_version=4)
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    return notebook


def printed(notebook: nbformat.NotebookNode) -> str:
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return "".join(output.text for output in outputs if output.output_type == "stream")


def pictures(notebook: nbformat.NotebookNode) -> int:
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return sum("image/png" in output.get("data", {}) for output in outputs)


def test_the_first_notebook_shows_the_doctors_verdict_and_solves_cartpole(tmp_path, monkeypatch):
    text = printed(run("00_start_here.ipynb", tmp_path, monkeypatch))
    assert "torch" in text
    assert "Solved in episode" in text


def test_the_dqn_notebook_draws_the_curve_the_network_and_the_evaluation(tmp_path, monkeypatch):
    notebook = run("01_dqn_cartpole.ipynb", tmp_path, monkeypatch)
    assert "finished: average return" in printed(notebook)
    assert pictures(notebook) == 3


@pytest.mark.parametrize("path", sorted(REPO.glob("notebooks/*.ipynb")), ids=lambda path: path.name)
def test_a_notebook_is_kept_without_outputs(path):
    for cell in nbformat.read(path, as_version=4).cells:
        assert not cell.get("outputs")
        assert not cell.get("execution_count")
