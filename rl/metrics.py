"""Where a run's figures go: TensorBoard, metrics.csv, and the terminal."""

import csv
import io
import sys
import threading
import time
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from rl.checkpoint import write_atomically
from rl.errors import RunError
from rl.tracking import Tracker

LINE_INTERVAL = 10.0  # seconds between plain progress lines: a job of days under nohup must not fill the disk


_excepthook = threading.excepthook


def _quiet_excepthook(args: threading.ExceptHookArgs) -> None:
    """TensorBoard's thread hands a full disk on to the next `add_scalar`; its traceback would be a second message."""
    if not (isinstance(args.exc_value, OSError) and type(args.thread).__module__.startswith("tensorboard.")):
        _excepthook(args)


threading.excepthook = _quiet_excepthook


class Metrics:
    """Writes rows of named scalars under the run's folder. After a resume, rows past `step` are dropped first."""

    def __init__(self, folder: Path, step: int, track: str = "") -> None:
        self.tracker = Tracker(track, folder)
        self.path = folder / "metrics.csv"
        self.columns: list[str] = []
        self._drop_rows_after(step)
        self.writer = SummaryWriter(str(folder), purge_step=step + 1 if step else None)

    def log(self, step: int, values: dict[str, Tensor | float]) -> dict[str, float]:
        """Write one row. Tensors are read here, once; returns the row as floats. Raises RunError on a full disk."""
        row = {name: float(value) for name, value in values.items()}
        try:
            for name, number in row.items():
                self.writer.add_scalar(name, number, step)
            self._append({"step": step, **row})
        except OSError as error:
            raise RunError(f"cannot write metrics to {self.path.parent}: {error.strerror}") from error
        self.tracker.log(step, row)
        return row

    def close(self) -> None:
        """Flush and close the TensorBoard file. Raises RunError on a full disk."""
        try:
            self.writer.close()
        except OSError as error:
            raise RunError(f"cannot write metrics to {self.path.parent}: {error.strerror}") from error

    def _append(self, row: dict[str, Any]) -> None:
        new_columns = [name for name in row if name not in self.columns]
        if new_columns:  # the first row, or an algorithm's first update: rewrite the file under the longer header
            rows = self._rows()
            self.columns += new_columns
            self._write([*rows, row])
            return
        with self.path.open("a", newline="") as file:
            csv.DictWriter(file, self.columns).writerow(row)

    def _rows(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        with self.path.open(newline="") as file:
            return list(csv.DictReader(file))

    def _write(self, rows: list[dict[str, Any]]) -> None:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self.columns)
        writer.writeheader()
        writer.writerows(rows)
        write_atomically(self.path, lambda file: file.write(text.getvalue().encode()))

    def _drop_rows_after(self, step: int) -> None:
        rows = self._rows()
        if not rows:
            return
        self.columns = list(rows[0])
        # a row cut short by a power loss has no number in its first column, or None in its last
        whole = [row for row in rows if (row["step"] or "").isdigit() and None not in row.values()]
        self._write([row for row in whole if int(row["step"]) <= step])


class Console:
    """A progress bar on a terminal; elsewhere (nohup, a log file) one plain line with the time every ten seconds."""

    def __init__(self, total_steps: int, step: int, enabled: bool = True) -> None:
        self.total_steps = total_steps
        self.start_step = step
        self.started = self.last_line = time.monotonic()
        self.enabled = enabled
        self.bar = None
        if enabled and sys.stderr.isatty():
            self.bar = tqdm(total=total_steps, initial=step, unit="step", unit_scale=True, dynamic_ncols=True)

    def show(self, step: int, episodes: int, average_return: float, last: bool = False) -> None:
        """Report progress; `last` prints a line in any case."""
        if self.bar is not None:
            self.bar.set_postfix_str(f"episodes {episodes}, return {average_return:.1f}", refresh=False)
            self.bar.update(step - self.bar.n)
            return
        now = time.monotonic()
        if not self.enabled or (now - self.last_line < LINE_INTERVAL and not last):
            return
        self.last_line = now
        speed = (step - self.start_step) / max(now - self.started, 1e-9)
        print(
            f"{time.strftime('%H:%M:%S')} step {step:,} of {self.total_steps:,}, episodes {episodes:,}, "
            f"return {average_return:.1f}, {speed:,.0f} steps/s",
            flush=True,
        )

    def close(self) -> None:
        """End the progress bar's line."""
        if self.bar is not None:
            self.bar.close()
