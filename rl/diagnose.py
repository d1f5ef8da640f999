"""Repeats an update that failed, from the bundle that the run wrote."""

from pathlib import Path

import torch
from torch import Tensor

from rl import checkpoint
from rl.errors import NotFiniteError
from rl.train import build_to_act, parse


def diagnose(bundle: Path, device: str = "cpu") -> str:
    """Repeat the update in `bundle`; returns a table of every tensor of it, with what is not finite."""
    content = checkpoint.load(bundle)
    run, algorithm, config = parse(content)
    title = f"{algorithm} on {run.env_id}, step {content['step']:,}: {content['message']}"
    if not content["descent"]:
        return title
    agent = build_to_act(run, algorithm, config, device)
    agent.load_state_dict(content["agent"])
    descent = agent.descents[content["descent"]]
    batch = descent.batch_type(*(value.to(device) for value in content["batch"]))
    try:
        descent.backward(batch)
    except NotFiniteError as error:
        rows = [_row(name, value.detach()) for name, value in error.tensors]
        header = f"{'tensor':<40} {'shape':>14} {'least':>11} {'greatest':>11} {'not finite':>11}"
        return "\n".join([title, header, *rows, f"first: {error}"])
    return f"{title}\nevery number is finite when the update is repeated on {device}"


def _row(name: str, value: Tensor) -> str:
    finite = torch.isfinite(value)
    numbers = value[finite].double()
    least, greatest = (f"{numbers.min():.4g}", f"{numbers.max():.4g}") if numbers.numel() else ("", "")
    shape = "x".join(map(str, value.shape)) or "scalar"
    return f"{name:<40} {shape:>14} {least:>11} {greatest:>11} {int((~finite).sum()):>11}"
