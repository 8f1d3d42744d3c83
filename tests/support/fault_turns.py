"""Threads that go on one at a time, when they are told to: interleavings that a seed decides, not the clock."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Killed(BaseException):
    """Ends a run as SIGKILL does: from here on nothing that it does has an effect."""


class Turn:
    """Work in a thread of its own, which goes on only between `go_on` and its next `pause`, or its end."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._mine = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._begun = False
        self.is_over = False

    def go_on(self) -> None:
        """Let the work go on until it pauses, or is over; called by who has the turn now."""
        if self._begun:
            self._mine.release()
        else:
            self._begun = True
            self._thread.start()
        self._back.acquire()

    def pause(self) -> None:
        """Give the turn back, and wait for the next one; called by the work."""
        self._back.release()
        self._mine.acquire()

    def is_this_thread(self) -> bool:
        """Tell whether it is the work itself that asks, and no helper thread of it."""
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self.is_over = True
            self._back.release()
