"""`rl doctor`: says whether torch can use a GPU here, if not exactly why, and the command that mends it.

facts.py gathers plain data, rules/ judge it, report.py prints. Nothing of the rest of rl is imported, and torch only in
a child process: the doctor must report when torch is broken.
"""

import argparse
import io
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from rl.doctor import facts as gathering
from rl.doctor.report import as_json, as_text
from rl.doctor.schema import SCHEMA, Facts, decode

__all__ = ["main"]

USAGE = "rl doctor [--quick | --full] [--json] [--save-facts FILE | --facts FILE]"


def main(argv: list[str], *, root: Path = Path("/")) -> int:
    """Run the self-check and print its report.

    Returns 0 healthy, or CPU by choice; 1 degraded; 2 wrong usage; 3 no usable GPU although one was expected; 4 the
    doctor itself failed, told in one line. `root` is the tree of /proc, /sys and /dev, another one in tests.
    """
    try:
        parser = _parser()
        options = parser.parse_args(argv)
        if (options.quick or options.full) and options.facts:
            flag = "--quick" if options.quick else "--full"
            parser.error(f"{flag} says how to gather facts, and --facts brings them: give one of the two")
    except SystemExit as stop:  # argparse has printed why
        return int(stop.code or 0)
    try:
        return _run(options, root)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001 - the container starts with this: a fault of ours must stay one line
        print(f"rl doctor failed itself, which says nothing of the GPU: {_line(error)}", file=sys.stderr)
        return 4


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("rl doctor", usage=USAGE, description=(__doc__ or "").split("\n")[0])
    depth = parser.add_mutually_exclusive_group()
    depth.add_argument("--quick", action="store_true", help="do not import torch: driver and NVML only, in 0.1 s")
    depth.add_argument("--full", action="store_true", help="also put every GPU to work, and draw a picture: minutes")
    parser.add_argument("--json", action="store_true", help="print the report as JSON (key schema tells its version)")
    files = parser.add_mutually_exclusive_group()
    files.add_argument("--save-facts", metavar="FILE", type=Path, help="also write what was found, for a bug report")
    files.add_argument("--facts", metavar="FILE", type=Path, help="judge facts saved before, perhaps elsewhere")
    return parser


def _run(options: argparse.Namespace, root: Path) -> int:
    if options.facts:
        facts = _load(options.facts)
    else:
        facts = gathering.gather(root, with_torch=not options.quick, full=options.full)
    report = as_json(facts)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a path in an error may hold what the terminal cannot show
    try:
        print(json.dumps(report, indent=2) if options.json else as_text(facts), flush=True)
    except BrokenPipeError:  # `rl doctor | head -1`: the reader has enough, and Python's last flush must not complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if options.save_facts:
        options.save_facts.write_text(json.dumps(asdict(facts), indent=2) + "\n")
    code: int = report["verdict"]["exit_code"]
    return code


def _load(path: Path) -> Facts:
    try:
        data = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error})") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ValueError(f"{path} holds no facts of schema {SCHEMA}; write them with: rl doctor --save-facts FILE")
    facts: Facts = decode(Facts, data)
    return facts


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
