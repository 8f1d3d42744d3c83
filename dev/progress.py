"""Progress of long steps: one line when a step begins or gets on, so that nobody looks at a silent terminal."""

from __future__ import annotations

import time
from collections.abc import Callable

Say = Callable[[str], None]


def quiet(text: str) -> None:
    """Say nothing: the default of the library, for tests."""


class Clock:
    """Prints each line with the seconds since the clock was made."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the clock was made."""
        return time.monotonic() - self._start

    def say(self, text: str) -> None:
        """Print one line of progress."""
        print(f"[{self.elapsed:6.1f} s] {text}", flush=True)
