"""Each notebook runs from top to bottom, as a reader would run it, and leaves something to look at."""

import os
import re
import shutil
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

REPO = Path(__file__).parents[2]
NOTEBOOKS = sorted(REPO.glob("notebooks/*.ipynb"))
MINUTES = 15  # for one notebook: the longest takes three on one core, and more beside other work


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a notebook in a work folder like that of the image: scripts and notebooks side by side."""
    for file in (*REPO.glob("scripts/train_*.py"), *NOTEBOOKS):
        shutil.copy(file, tmp_path)
    # `!rl` and `!python` mean those of this environment, as in the image
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("RL_MODELS_DIR", str(tmp_path / "models"))

    def run(notebook):
        if isinstance(notebook, str):
            notebook = nbformat.read(tmp_path / notebook, as_version=4)
        NotebookClient(notebook, timeout=60 * MINUTES, resources={"metadata": {"path": str(tmp_path)}}).execute()
        last = [cell for cell in notebook.cells if cell.cell_type == "code"][-1]
        assert any(shows(last.outputs)), "it ends without anything to look at"
        return notebook

    return run


def outputs(notebook):
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def printed(notebook):
    return "".join(output.text for output in outputs(notebook) if output.output_type == "stream")


def is_picture(output):
    return "image/png" in output.get("data", {})


def is_film(output):
    """Whether it is one of ten frames or more."""
    return output.get("data", {}).get("text/html", "").count("data:image/png;base64,") >= 10


def shows(outputs):
    """How many pictures and films there are."""
    return sum(map(is_picture, outputs)), sum(map(is_film, outputs))


def numbers(pattern, notebook):
    """The numbers that `pattern` finds in what was printed."""
    return [float(number.replace(",", "")) for number in re.findall(pattern, printed(notebook))]


def test_00_shows_the_doctors_verdict_solves_cartpole_and_draws_its_curve(run):
    notebook = run("00_start_here.ipynb")
    assert "torch" in printed(notebook)
    assert "Solved in episode" in printed(notebook)
    assert shows(outputs(notebook)) == (1, 0)


def test_00_names_every_other_notebook():
    text = (REPO / "notebooks/00_start_here.ipynb").read_text()
    assert [path.name for path in NOTEBOOKS[1:] if f"]({path.name})" not in text] == []


def test_a_live_curve_is_a_picture_in_a_notebook_that_has_drawn_nothing_else(run):
    source = "from rl.plot import LiveCurve\nwith LiveCurve():\n    pass"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    assert shows(outputs(run(notebook))) == (1, 0)


@pytest.mark.slow
@pytest.mark.timeout(60 * MINUTES + 60)
class TestTheOnesThatTrain:
    def test_01_draws_the_live_curve_the_network_the_evaluation_and_plays_an_episode(self, run):
        notebook = run("01_dqn_cartpole.ipynb")
        assert "finished: average return" in printed(notebook)
        assert shows(outputs(notebook)) == (3, 1)

    def test_02_ppo_stays_at_the_top_where_its_unclipped_self_does_not(self, run):
        notebook = run("02_policy_gradient_to_ppo.ipynb")
        assert shows(outputs(notebook)) == (6, 0)
        slow, fast, ppo, unclipped = (numbers(r"at the end (\d+)", notebook)[i : i + 3] for i in (0, 3, 6, 9))
        assert min(slow) > 195
        assert max(slow) < 475
        assert min(ppo) > 475
        assert sum(unclipped) < sum(fast) < sum(ppo)
        one, baseline, eight = numbers(r"mean cosine (0\.\d+)", notebook)
        assert one < baseline < eight

    def test_03_swings_the_pendulum_up(self, run):
        notebook = run("03_sac_continuous.ipynb")
        assert numbers(r"mean return (-\d+)", notebook)[0] > -250
        assert shows(outputs(notebook)) == (5, 1)

    def test_04_compares_fifteen_runs_and_repeats_none(self, run):
        notebook = run("04_comparing_runs.ipynb")
        rows = re.findall(r"^dqn, learning_rate (\S+) +5 +15,000", printed(notebook), re.MULTILINE)
        assert rows[0] == "0.001"
        assert sorted(rows) == ["0.0001", "0.001", "0.01"]
        assert shows(outputs(notebook)) == (3, 0)
        assert printed(run("04_comparing_runs.ipynb")) == printed(notebook)

    def test_05_checks_trains_and_hands_the_environment_to_the_command(self, run, tmp_path):
        notebook = run("05_your_own_environment.ipynb")
        for wrong in ("WrongNumbers: ", "ForgetsSeed: ", "SameArray: "):
            assert wrong in printed(notebook)
        assert numbers(r"greedy return, mean of 100 episodes: (-?[\d.]+)", notebook)[0] > 0.5
        assert "class Courtyard" in (tmp_path / "courtyard.py").read_text()
        assert "over 50 episodes" in printed(notebook)
        assert shows(outputs(notebook)) == (4, 1)

    def test_06_learns_from_pictures_and_looks_at_atari_and_mujoco(self, run):
        pytest.importorskip("ale_py", reason="the extra atari is not installed")
        pytest.importorskip("mujoco", reason="the extra mujoco is not installed")
        notebook = run("06_atari_mujoco.ipynb")
        assert "finished: average return 0.9" in printed(notebook)
        assert "steps a second here" in printed(notebook)
        assert numbers(r"greedy return: ([\d,]+)", notebook)[0] > 500
        assert "skipped: " not in printed(notebook)
        assert shows(outputs(notebook)) == (5, 2)

    def test_06_says_what_is_missing_where_neither_is_installed(self, run, tmp_path, monkeypatch):
        hide = "import sys\nsys.modules |= dict.fromkeys(['ale_py', 'mujoco'])\n"  # None there: no such module
        (tmp_path / "sitecustomize.py").write_text(hide)
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
        notebook = run("06_atari_mujoco.ipynb")
        assert printed(notebook).count("skipped: ") == 4
        assert shows(outputs(notebook)) == (3, 1)

    def test_07_makes_each_failure_visible(self, run):
        notebook = run("07_when_it_does_not_learn.ipynb")
        returns = dict(re.findall(r"^(.+): average return ([\d.]+)$", printed(notebook), re.MULTILINE))
        returns = {name: float(value) for name, value in returns.items()}
        assert returns["healthy"] > 150 > max(returns["rate 0.1"], returns["rate 1e-5"])
        assert returns["rewards x 1000, normalized"] > 150_000 > returns["rewards x 1000"]
        assert returns["DQN, healthy"] > 1.2 * returns["DQN, replay of 300"]
        right, wrong = numbers(r"V = ([\d.]+)", notebook)
        assert (right, wrong) == (pytest.approx(10, abs=0.3), pytest.approx(4.4, abs=1))
        assert "gave reward = nan" in printed(notebook)
        assert shows(outputs(notebook)) == (7, 0)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_kept_without_outputs(path):
    cells = nbformat.read(path, as_version=4).cells
    assert [cell.id for cell in cells] == [f"cell-{number}" for number in range(len(cells))]
    for cell in cells:
        assert not cell.get("outputs")
        assert not cell.get("execution_count")
