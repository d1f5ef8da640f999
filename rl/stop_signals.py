"""Signals that ask a run to stop, so that it can save first."""

import signal
import threading
from types import FrameType
from typing import Any


class StopSignals:
    """Turns SIGTERM, SIGINT and SIGHUP into a request to stop, so that the loop can save first.

    SIGHUP is left alone where it is ignored, as under nohup. Outside the main thread Python allows no handlers.
    """

    def __init__(self) -> None:
        self.received = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        self.received = number
