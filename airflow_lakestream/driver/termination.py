"""SIGTERM in a driver: from a deleted or evicted pod, a killed application, a machine's shutdown."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from airflow_lakestream.exceptions import LakestreamError, Transient


class DriverTerminated(LakestreamError, Transient):
    """Error of a driver ended by its cluster or machine."""

    def __init__(self) -> None:
        super().__init__("ended by SIGTERM, as from a pod that is deleted. Its commits stay landed.")


def raise_on_sigterm() -> Callable[[], object]:
    """Let SIGTERM raise DriverTerminated in the main thread from now on; return a function for undoing.

    Called in another thread, it does nothing: only the main thread receives signals.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    before = signal.signal(signal.SIGTERM, _terminated)
    return lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise DriverTerminated
