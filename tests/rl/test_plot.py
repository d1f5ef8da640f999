"""Pictures and tables of runs: what is grouped, averaged and shown, and what is said where nothing can be."""

import json
from types import SimpleNamespace

import matplotlib.image
import numpy as np
import pytest
from rl_process import rl

from rl import dqn, plot, ppo
from rl.train import RunConfig, train


def made_run(
    folder, name, returns, *, seed=0, lr=1e-3, state="finished", evaluations=(), algorithm="dqn", env_id="CartPole-v1"
):
    """A run folder with one row of metrics for each return, every 100 steps."""
    run = folder / name
    run.mkdir(parents=True)
    config = {"learning_rate": lr, "hidden_sizes": [8, 8]}
    settings = {"env_id": env_id, "seed": seed, "device": "cpu", "total_steps": 1000}
    (run / "config.json").write_text(json.dumps({"algorithm": algorithm, "run": settings, "config": config}))
    (run / "status.json").write_text(json.dumps({"state": state, "step": 100 * len(returns), "episodes": 7}))
    rows = [f"{100 * (i + 1)},{value}," for i, value in enumerate(returns)]
    rows += [f"{100 * len(returns)},,{value}" for value in evaluations]
    (run / "metrics.csv").write_text("\n".join(["step,average_return,eval_return", *rows]) + "\n")
    return run


def test_a_curve_leaves_out_what_is_empty_or_no_number(tmp_path):
    run = made_run(tmp_path, "run", ["nan", 1.5, "", 3.0], evaluations=[9.0])
    steps, values = plot.read_curve(run)
    assert (steps.tolist(), values.tolist()) == ([200, 400], [1.5, 3.0])
    assert plot.read_curve(run, "eval_return").values.tolist() == [9.0]


def test_runs_that_differ_in_their_seed_only_are_one_setting_named_by_what_differs(tmp_path):
    runs = [made_run(tmp_path, f"{lr}-{seed}", [1.0], seed=seed, lr=lr) for lr in (0.01, 0.001) for seed in (1, 2)]
    other = made_run(tmp_path, "ppo", [1.0], algorithm="ppo", lr=0.01)
    assert plot.groups(runs[:2]) == {"dqn": runs[:2]}
    assert plot.groups([*runs, other]) == {
        "dqn, learning_rate 0.01": runs[:2],
        "dqn, learning_rate 0.001": runs[2:],
        "ppo": [other],
    }


def test_a_notebooks_own_environments_are_named_as_there(tmp_path):
    runs = [made_run(tmp_path, name, [1.0], env_id=f"__main__:{name}") for name in ("make_easy", "make_hard")]
    assert list(plot.groups(runs)) == ["dqn on make_easy", "dqn on make_hard"]


def test_the_mean_over_seeds_ends_where_the_first_seed_ends():
    slow = plot.Curve(np.array([100, 200, 300]), np.array([0.0, 2.0, 4.0]))
    fast = plot.Curve(np.array([100, 150, 200]), np.array([4.0, 5.0, 6.0]))
    mean, deviation = plot.mean_curve([slow, fast])
    assert mean.steps.tolist() == [100, 150, 200]
    assert mean.values.tolist() == [2.0, 3.0, 4.0]  # of 0 and 4, 1 and 5, 2 and 6
    assert deviation.tolist() == [2.0, 2.0, 2.0]


def test_a_picture_has_a_band_for_seeds_and_a_line_in_the_legend_for_each_setting(tmp_path):
    runs = [made_run(tmp_path, f"{lr}-{seed}", [seed, 5], seed=seed, lr=lr) for lr in (0.01, 0.001) for seed in (1, 2)]
    figure = plot.draw(runs[:3])
    (axes,) = figure.axes
    assert len(axes.collections) == 1  # the single run of the second setting has no band
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["dqn, learning_rate 0.01 (2 seeds)", "dqn, learning_rate 0.001"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("environment steps", "average return")


def test_the_table_has_one_row_for_each_setting_the_best_first(tmp_path):
    made_run(tmp_path, "a", [10, 20], seed=1, evaluations=[30])
    made_run(tmp_path, "b", [10, 40], seed=2, evaluations=[50], state="interrupted")
    made_run(tmp_path, "c", [90], lr=0.01)
    made_run(tmp_path, "d", [], lr=0.1, state="failed")
    best, both, none = plot.compare(tmp_path)
    assert (best.setting, best.runs, best.final_return) == ("dqn, learning_rate 0.01", 1, 90.0)
    assert (both.runs, both.final_return, both.final_return_std, both.best_eval) == (2, 30.0, 10.0, 40.0)
    assert (both.steps, both.episodes, both.states) == (200.0, 7.0, {"finished": 1, "interrupted": 1})
    assert none.states == {"failed": 1}
    lines = plot.table([best, both, none]).splitlines()
    assert "30.0 ± 10.0" in lines[2]
    assert lines[2].endswith("1 interrupted")


def test_the_missions_loop_ends_in_one_table_and_one_picture(tmp_path, monkeypatch):
    monkeypatch.delenv("RL_MODELS_DIR", raising=False)  # the image sets it
    for lr in ("1e-2", "1e-3"):
        for seed in (1, 2):
            done = rl("train", "dqn", "--lr", lr, "--seed", seed, "--total-steps", 1500, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
    compared = rl("compare", "models/runs", cwd=tmp_path)
    assert sorted(line.split("  ")[0] for line in compared.stdout.splitlines()[1:]) == [
        "dqn, learning_rate 0.001",
        "dqn, learning_rate 0.01",
    ]
    rows = json.loads(rl("compare", "models/runs", "--json", cwd=tmp_path).stdout)
    assert [row["runs"] for row in rows] == [2, 2]
    runs = sorted(map(str, tmp_path.glob("models/runs/*")))
    drawn = rl("plot", *runs, "--out", "pictures/all.png", cwd=tmp_path)
    assert drawn.stdout == "pictures/all.png\n"
    assert matplotlib.image.imread(tmp_path / "pictures/all.png").shape == (675, 1200, 4)


def test_a_run_ends_with_its_curve_in_its_folder(tmp_path):
    run = RunConfig(total_steps=1024, eval_episodes=1, run_dir=tmp_path / "run")
    train(run, ppo.Config(num_steps=64), progress=False)
    assert matplotlib.image.imread(tmp_path / "run/curve.png").shape[2] == 4


def test_a_run_without_an_episode_has_no_curve(tmp_path):
    train(RunConfig(total_steps=8, eval_episodes=0, run_dir=tmp_path / "run"), dqn.Config(), progress=False)
    assert not (tmp_path / "run/curve.png").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["plot"], 2, "RUN"),
        (["plot", "nowhere"], 2, "is not a run folder"),
        (["plot", "runs/run", "--metric", "q_valeu"], 2, "it has average_return, eval_return"),
        (["plot", "runs/run", "--out", "x.docx"], 2, "take .png, .svg or .pdf"),
        (["plot", "runs/run", "--out", "file/x.png"], 1, "cannot write file/x.png"),
        (["compare", "nowhere"], 2, "is not a folder"),
        (["compare", "runs/run"], 2, "holds no runs"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_mistake_gets_one_clear_error(tmp_path, arguments, code, message):
    made_run(tmp_path / "runs", "run", [1.0])
    (tmp_path / "file").write_text("")
    done = rl(*arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_live_curve_is_redrawn_at_intervals_and_at_the_end(monkeypatch):
    shown, clock = [], [100.0]
    screen = SimpleNamespace(update=lambda figure: shown.append(figure.axes[0].get_title(loc="left")))
    monkeypatch.setattr("IPython.display.display", lambda *_, **__: screen)
    monkeypatch.setattr(plot.time, "monotonic", lambda: clock[0])
    with plot.LiveCurve(goal=2.0) as curve:
        for step, later in ((10, 0.0), (20, 0.2), (30, 0.4), (40, 0.1)):
            clock[0] += later
            curve(SimpleNamespace(recent_returns=[step / 10], average_return=step / 20, step=step), None)
    assert shown == ["step 10", "step 30", "4 episodes"]
    assert curve.returns == [1.0, 2.0, 3.0, 4.0]
    dots, line, goal = curve.axes.lines
    assert (dots.get_ydata().tolist(), line.get_ydata().tolist()) == ([1, 2, 3, 4], [0.5, 1, 1.5, 2])
    assert goal.get_ydata() == [2.0, 2.0]
