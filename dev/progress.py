"""Progress of long steps: one line when a step begins or gets on, so that nobody looks at a silent terminal."""

from __future__ import annotations

import sys
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
        # One write: `print` makes two, and another thread's line may come between them.
        sys.stdout.write(f"[{self.elapsed:6.1f} s] {text}\n")
        sys.stdout.flush()


class Reminder:
    """Says a line as long as it is called: after half a minute, and then each time after twice as long."""

    def __init__(self, say: Say, text: str, every: float = 30.0) -> None:
        self._say, self._text, self._every = say, text, every
        self._last = time.monotonic()

    def __call__(self) -> None:
        """Say the line, if the last one is old enough."""
        if time.monotonic() - self._last >= self._every:
            self._last = time.monotonic()
            self._every *= 2
            self._say(self._text)
