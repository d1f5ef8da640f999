"""One file, whole or refused (pitfall 4.3: 58)."""

import os
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from rl import checkpoint
from rl.errors import RunError

STATE = {"weights": torch.arange(10_000, dtype=torch.float32), "step": 3}


def save(path: Path, state: dict = STATE) -> None:
    checkpoint.save(path, agent=state, envs={}, counters={})


def test_a_checkpoint_has_the_documented_top_keys_and_loads_as_data_alone(tmp_path):
    save(tmp_path / "latest.pt")
    content = torch.load(tmp_path / "latest.pt", weights_only=True)
    assert set(content) == {"agent", "envs", "rng", "counters", "version"}
    assert torch.equal(content["agent"]["weights"], STATE["weights"])


def test_every_global_generator_goes_on_where_the_checkpoint_was_made(tmp_path):
    checkpoint.seed_random_state(1)
    np.random.standard_normal()  # leaves a cached second value, which is part of the state
    save(tmp_path / "latest.pt")
    expected = random.random(), np.random.standard_normal(), torch.rand(1).item()
    checkpoint.seed_random_state(2)
    checkpoint.restore_random_state(checkpoint.load(tmp_path / "latest.pt")["rng"])
    assert (random.random(), np.random.standard_normal(), torch.rand(1).item()) == expected


@pytest.mark.parametrize("stride", [11, pytest.param(1, marks=pytest.mark.slow)])
def test_no_damaged_byte_goes_unnoticed(tmp_path, stride):
    path = tmp_path / "latest.pt"
    save(path, {"weights": torch.arange(100.0), "step": 3})
    sound = path.read_bytes()
    for position in range(0, len(sound), stride):
        for change in (0x01, 0xFF):
            path.write_bytes(sound[:position] + bytes([sound[position] ^ change]) + sound[position + 1 :])
            with pytest.raises(RunError, match=r"damaged|no whole") as raised:
                checkpoint.load(path)
            assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "no whole checkpoint"), (b"not a checkpoint", "no whole checkpoint"), (None, "no whole checkpoint")],
    ids=["empty", "text", "cut short"],
)
def test_a_file_that_is_no_checkpoint_gives_one_line_that_says_what_to_do(tmp_path, content, message):
    path = tmp_path / "latest.pt"
    save(path)
    path.write_bytes(path.read_bytes()[:-2000] if content is None else content)
    with pytest.raises(RunError, match=message) as raised:
        checkpoint.load(path)
    assert "\n" not in str(raised.value)
    assert "use another" in str(raised.value)


def test_a_checkpoint_of_another_version_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "VERSION", 99)
    save(tmp_path / "latest.pt")
    monkeypatch.undo()
    with pytest.raises(RunError, match="another version of rl"):
        checkpoint.load(tmp_path / "latest.pt")


def test_a_file_of_torch_alone_is_refused(tmp_path):
    torch.save({"version": checkpoint.VERSION}, tmp_path / "latest.pt")
    with pytest.raises(RunError, match="no whole checkpoint of this version"):
        checkpoint.load(tmp_path / "latest.pt")


def test_a_checkpoint_that_holds_code_is_refused(tmp_path):
    save(tmp_path / "latest.pt", {"agent": Path("x")})
    with pytest.raises(RunError, match="cannot be read"):
        checkpoint.load(tmp_path / "latest.pt")


def test_a_write_that_fails_half_way_leaves_the_old_file_and_no_litter(tmp_path):
    path = tmp_path / "latest.pt"
    save(path)
    before = path.read_bytes()

    def fill_the_disk(file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(RunError, match="No space left on device"):
        checkpoint.write_atomically(path, fill_the_disk)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["latest.pt"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small file system to fill")
def test_a_full_disk_keeps_the_old_checkpoint_and_says_so(tmp_path):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(tmp_path)], check=True)
    try:
        save(tmp_path / "latest.pt")
        with pytest.raises(RunError, match="No space left on device"):
            save(tmp_path / "latest.pt", {"weights": torch.zeros(100_000)})
        assert torch.equal(checkpoint.load(tmp_path / "latest.pt")["agent"]["weights"], STATE["weights"])
        assert [file.name for file in tmp_path.iterdir()] == ["latest.pt"]
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
