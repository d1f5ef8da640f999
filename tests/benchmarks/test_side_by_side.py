"""The pure parts of the comparison with peers, worked out by hand, and short runs of our own side."""

import json
import math
from pathlib import Path

import pytest

from benchmarks import side_by_side
from benchmarks.peers.measure import WORKS
from benchmarks.side_by_side import (
    RL,
    ROWS,
    Row,
    as_json,
    best_peer,
    better,
    lines,
    measure,
    met,
    number,
    sides,
    times_better,
)

SPEED = Row("ppo-cartpole", "steps/s", ("sb3", "skrl"), target=1.5)
GOAL = Row("dqn-cartpole-195", "s", ("sb3", "tianshou"), target=8.0)
MEMORY = Row("memory dqn-cartpole-195", "MB", ("sb3",), target=1.0)


def result(peer, **changes):
    blank = {"peer": peer, "work": "ppo-cartpole", "seed": 0, "threads": 1, "peak_memory_mb": 300.0, "reached": None}
    return blank | changes


def rates(peer, *values):
    return [result(peer, rate=value) for value in values]


def goals(peer, *seconds, reached=True, memory=300.0):
    of_goal = {"work": "dqn-cartpole-195", "peak_memory_mb": memory}
    return [result(peer, seconds=value, reached=reached, **of_goal) for value in seconds]


def test_a_row_holds_the_median_of_our_rates_against_the_fastest_peers():
    table = sides(SPEED, rates(RL, 90, 170, 100) + rates("sb3", 40, 60, 50) + rates("skrl", 10, 20, 500))
    assert (table[RL].median, table[RL].low, table[RL].high) == (100, 90, 170)
    assert best_peer(SPEED, table) == "sb3"
    assert times_better(SPEED, table[RL], table["sb3"]) == 2.0
    assert met(SPEED, table) is True


def test_a_rate_below_the_target_misses_it():
    assert met(SPEED, sides(SPEED, rates(RL, 149) + rates("sb3", 100))) is False
    assert met(SPEED, sides(SPEED, rates(RL, 150) + rates("sb3", 100))) is True


def test_seconds_and_memory_count_the_other_way_round():
    results = goals(RL, 3.0, memory=400.0) + goals("sb3", 60.0, memory=300.0) + goals("tianshou", 30.0)
    table = sides(GOAL, results)
    assert best_peer(GOAL, table) == "tianshou"
    assert times_better(GOAL, table[RL], table["tianshou"]) == 10.0
    assert met(GOAL, table) is True
    memory = sides(MEMORY, results)
    assert times_better(MEMORY, memory[RL], memory["sb3"]) == 0.75
    assert met(MEMORY, memory) is False


def test_a_goal_that_most_seeds_of_a_peer_missed_gives_a_lower_bound():
    one_missed = sides(GOAL, goals("sb3", 20.0, reached=False) + goals("sb3", 50.0, 70.0))["sb3"]
    assert (one_missed.median, one_missed.at_least, one_missed.reached) == (70.0, False, 2)
    two_missed = sides(GOAL, goals("sb3", 20.0, 30.0, reached=False) + goals("sb3", 50.0))["sb3"]
    assert (two_missed.median, two_missed.at_least, two_missed.reached) == (30.0, True, 1)


def test_a_goal_that_one_of_our_seeds_missed_is_not_met_however_fast_the_others_are():
    ours = goals(RL, 1.0, 1.0) + goals(RL, 1.0, reached=False)
    assert met(GOAL, sides(GOAL, ours + goals("sb3", 90.0))) is False


def test_tries_of_other_thread_counts_do_not_enter_the_median():
    tried = [result(RL, rate=10, threads=2, **{"try": True})]
    one = sides(SPEED, rates(RL, 100, 110, 120) + tried)[RL]
    assert (one.median, one.runs, one.threads) == (110, 3, 1)


def test_the_better_try_is_the_faster_that_reached_the_goal():
    one, two = result(RL, rate=10), result(RL, rate=20, threads=2)
    assert better(SPEED, [one, two]) is two
    slow, fast, early = goals(RL, 9.0) + goals(RL, 5.0) + goals(RL, 1.0, reached=False)
    assert better(GOAL, [slow, fast, early]) is fast
    failed = result(RL, error="exit 1")
    assert better(SPEED, [failed, one]) is one
    assert better(SPEED, [failed]) is failed


def test_a_peer_that_failed_says_so_and_the_others_are_compared():
    table = sides(SPEED, rates(RL, 100) + rates("skrl", 50) + [result("sb3", error="exit 1: no module")])
    text = "\n".join(lines(SPEED, table))
    assert "exit 1: no module" in text
    assert "target: 1.5 x skrl: met" in text


def test_a_row_without_a_figure_of_ours_or_of_a_peer_stays_open():
    assert met(SPEED, sides(SPEED, rates(RL, 100))) is None
    assert met(SPEED, sides(SPEED, [*rates("sb3", 100), result(RL, error="exit 1")])) is None
    assert "open" in lines(SPEED, sides(SPEED, rates(RL, 100)))[-1]


def test_the_table_has_a_line_for_every_side_with_median_spread_and_ratio():
    ours, theirs, target = lines(SPEED, sides(SPEED, rates(RL, 3_000, 2_000, 4_000) + rates("sb3", 2_000)))
    assert ours.split() == ["ppo-cartpole", "rl", "3,000", "steps/s", "2,000", "to", "4,000", "3/3", "1", "300"]
    assert theirs.split()[-1] == "1.50"
    assert target.strip() == "target: 1.5 x sb3: met"


@pytest.mark.parametrize(("value", "text"), [(math.nan, "-"), (2.345, "2.35"), (4_963.4, "4,963"), (5.5e7, "55M")])
def test_numbers_are_printed_to_three_digits_or_four(value, text):
    assert number(value) == text


def test_the_results_file_holds_plain_json_even_without_figures():
    table = sides(SPEED, [*rates(RL, 100), result("sb3", error="not installed")])
    text = json.dumps(as_json(SPEED, table), allow_nan=False)
    row = json.loads(text)
    assert (row["work"], row["target"], row["best_peer"], row["met"]) == ("ppo-cartpole", 1.5, None, None)
    assert row["sides"]["rl"]["median"] == 100
    assert row["sides"]["sb3"]["median"] is None
    assert row["sides"]["sb3"]["error"] == "not installed"


def test_every_row_has_a_work_and_every_peer_a_runner():
    for row in ROWS:
        assert row.work == "start" or row.work.removeprefix("memory ") in WORKS
        for peer in (*row.peers, *row.beside, RL):
            assert row.work == "start" or (side_by_side.RUNNERS / f"run_{peer}.py").exists()


def test_a_peer_that_is_not_installed_gives_a_line_that_says_so(monkeypatch):
    monkeypatch.setitem(side_by_side.ENVIRONMENTS, "sb3", ".venv-that-nobody-made")
    line = measure("sb3", "ppo-cartpole", seed=3, threads=2, limit=1.0, share=0.1)
    assert (line["peer"], line["seed"], line["threads"]) == ("sb3", 3, 2)
    assert line["error"].startswith("not installed: no .venv-that-nobody-made here")


def test_our_runner_trains_the_work_that_was_asked_for():
    line = measure(RL, "ppo-cartpole", seed=1, threads=1, limit=60.0, share=0.06)
    assert "error" not in line, line
    assert (line["peer"], line["work"], line["seed"], line["reached"]) == ("rl", "ppo-cartpole", 1, None)
    assert (line["steps"], line["updates"]) == (3 * 8 * 32, 3 * 20)  # rollouts of 8 x 32 steps, 20 epochs of one batch
    assert line["rate"] > 0
    assert line["peak_memory_mb"] > 100


def test_our_runner_steps_through_the_contract_and_by_the_functions_alone():
    line = measure(RL, "step-pendulum-1024", seed=0, threads=1, limit=60.0, share=0.02)
    assert "error" not in line, line
    assert line["steps"] % 1_024 == 0
    assert line["rate"] > 0
    assert line["raw_rate"] > 0
    raw = sides(Row("step-pendulum-1024", "steps/s", ("gymnasium",), 50.0), [line])[side_by_side.RAW]
    assert raw.median == line["raw_rate"]


def test_a_run_of_ours_that_fails_is_an_error_with_its_last_line():
    line = measure(RL, "no-such-work", seed=0, threads=1, limit=1.0, share=1.0)
    assert line["error"].startswith("exit 2: ")
    assert "no-such-work" in line["error"]


def test_results_are_named_by_date_and_processor(monkeypatch, tmp_path):
    monkeypatch.setattr(side_by_side, "ROOT", tmp_path)
    (tmp_path / "benchmarks").mkdir()
    file = side_by_side.results_file({"date": "2026-12-02", "cpu": "Intel(R) Xeon(R) @ 2.10GHz"}, ".json")
    assert file == Path(tmp_path, "benchmarks", "results", "2026-12-02-intel-r-xeon-r-2-10ghz.json")
    assert file.parent.is_dir()


def test_the_machine_is_described_with_commit_versions_and_processor():
    described = side_by_side.machine()
    assert {"cpu", "cores", "memory_gib", "gpu", "os", "python", "torch", "commit", "dirty"} <= described.keys()
    assert described["cores"] >= 1
