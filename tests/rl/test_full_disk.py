"""A disk that fills up while a run goes on: one message, and nothing that was saved is lost."""

import json
import os
import subprocess

import pytest
from rl_process import rl

from rl import checkpoint

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small file system to fill")
SMALL = ["--total-steps", "20000", "--log-interval", "8", "--buffer-size", "1000", "--hidden-sizes", "8"]


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", disk], check=True)
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize(("interval", "step"), [(100_000, 0), (400, 400)], ids=["by metrics", "by checkpoints"])
def test_a_run_that_fills_its_disk_says_so_and_goes_on_when_there_is_room_again(small_disk, interval, step):
    run = small_disk / "run"
    failed = rl("train", "dqn", "--run-dir", run, *SMALL, "--checkpoint-interval", interval)
    assert failed.returncode == 1
    assert len(failed.stderr.splitlines()) == 1, failed.stderr
    assert "No space left on device" in failed.stderr
    for path in run.glob("checkpoints/*"):
        assert checkpoint.load(path)["counters"]["step"] >= 0
    assert checkpoint.load(run / "checkpoints" / "latest.pt")["counters"]["step"] >= step
    json.loads((run / "status.json").read_text())
    subprocess.run(["mount", "-o", "remount,size=20m", small_disk], check=True)
    resumed = rl("resume", run)
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads((run / "status.json").read_text())["state"] == "finished"
