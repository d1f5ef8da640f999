"""Where figures go (pitfall 4.3: 65)."""

import csv

import pytest

from rl.metrics import Console, Metrics


def rows(folder):
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_metric_that_appears_later_gets_a_column_and_earlier_rows_stay(tmp_path):
    metrics = Metrics(tmp_path, step=0)
    metrics.log(1, {"a": 1.0})
    metrics.log(2, {"a": 2.0, "b": 3.0})
    metrics.log(3, {"b": 4.0})
    metrics.close()
    assert [(row["step"], row["a"], row["b"]) for row in rows(tmp_path)] == [
        ("1", "1.0", ""), ("2", "2.0", "3.0"), ("3", "", "4.0"),
    ]  # fmt: skip


def test_rows_after_the_checkpoint_are_dropped_on_resume(tmp_path):
    metrics = Metrics(tmp_path, step=0)
    for step in (100, 200, 300):
        metrics.log(step, {"a": float(step)})
    metrics.close()
    resumed = Metrics(tmp_path, step=200)
    resumed.log(300, {"a": -1.0})
    resumed.close()
    assert [(row["step"], row["a"]) for row in rows(tmp_path)] == [("100", "100.0"), ("200", "200.0"), ("300", "-1.0")]


def test_a_row_cut_short_by_a_power_loss_is_dropped_on_resume(tmp_path):
    (tmp_path / "metrics.csv").write_text("step,a,b\n100,1.0,2.0\n200,1.0")
    Metrics(tmp_path, step=500).close()
    assert [row["step"] for row in rows(tmp_path)] == ["100"]


def test_an_output_that_is_no_terminal_gets_plain_lines(capsys):
    console = Console(total_steps=1000, step=0)
    console.show(500, 7, 21.5)  # within ten seconds of the start: silent
    console.show(1000, 9, 22.0, last=True)
    console.close()
    (line,) = capsys.readouterr().out.splitlines()
    assert "step 1,000 of 1,000, episodes 9, return 22.0" in line


def test_the_speed_after_a_resume_counts_only_new_steps(capsys, monkeypatch):
    console = Console(total_steps=2_000_000, step=1_000_000)
    console.started -= 10  # as if ten seconds had passed
    console.show(1_000_100, 1, 1.0, last=True)
    speed = float(capsys.readouterr().out.split(", ")[-1].split()[0].replace(",", ""))
    assert speed == pytest.approx(10, abs=1)
