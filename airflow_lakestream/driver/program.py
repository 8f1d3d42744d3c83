"""End of a driver's program: by SIGTERM, and with an exit code and a last line of the log."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from airflow_lakestream.exceptions import LakestreamError, Transient

log = logging.getLogger(__name__)


def exit_code_of(work: Callable[[], None], what: str) -> int:
    """Do a program's work; return 0, or 1 after an error, with the reason in the last line of the log.

    :param what: the program, for the log, such as `The app`.
    """
    try:
        work()
    except LakestreamError as e:
        log.error("%s: %s", type(e).__name__, " ".join(str(e).split()))
        return 1
    except Exception as e:
        # After any error the last line has the reason: people and supervisors read it there. The trace comes first.
        log.exception("%s failed.", what)
        log.error("%s: %s", type(e).__name__, next(iter(str(e).splitlines()), ""))
        return 1
    return 0


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
