"""Puts the GPUs to work, for `rl doctor --full`: one after the other, then all together, then a picture."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rl.doctor.child import PROBE_FULL
from rl.doctor.schema import AllReduce, Full, Rendering, Work, decode

# torch.compile takes 40 s from an empty cache on a slow disk, NCCL ten to find its way between eight GPUs.
WORK_LIMIT = 300.0  # seconds
ALL_REDUCE_LIMIT = 90.0
RENDER_LIMIT = 60.0


def full(
    devices: list[str],
    ask: Callable[..., Any],
    *,
    work_limit: float = WORK_LIMIT,
    all_reduce_limit: float = ALL_REDUCE_LIMIT,
) -> Full:
    """See `Full`. The devices are cuda:0, cuda:1 …, and cpu in tests; none where torch has no GPU."""
    works = []
    for index, device in enumerate(devices):  # in turn: they share the host's memory and the cache of compiled code
        (said,) = _collect([ask("work", device, limit=work_limit, script=PROBE_FULL)])
        works.append(decode(Work, said | {"device": index}))
    together = _all_reduce(devices, ask, all_reduce_limit, p2p=True)
    failed = any(rank.error != "" for rank in together)
    (drawn,) = _collect([ask("render", limit=RENDER_LIMIT, script=PROBE_FULL)])
    return Full(
        works=tuple(works),
        all_reduce=together,
        all_reduce_without_p2p=_all_reduce(devices, ask, all_reduce_limit, p2p=False) if failed else (),
        rendering=decode(Rendering, drawn),
    )


def _all_reduce(devices: list[str], ask: Callable[..., Any], limit: float, *, p2p: bool) -> tuple[AllReduce, ...]:
    if len(devices) < 2:
        return ()
    with tempfile.TemporaryDirectory() as folder:
        meeting, ranks = str(Path(folder, "meeting")), str(len(devices))
        children = [
            ask("all_reduce", device, str(rank), ranks, meeting, str(int(p2p)), limit=limit, script=PROBE_FULL)
            for rank, device in enumerate(devices)
        ]
        return tuple(decode(AllReduce, said | {"rank": rank}) for rank, said in enumerate(_collect(children)))


def _collect(children: list[Any]) -> list[dict[str, Any]]:
    try:
        return [child.collect() for child in children]
    finally:
        for child in children:
            child.kill()
