"""Quick changes of the interpreter between the threads of a landing."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Seconds that a thread coming back from Arrow or numpy waits for the thread that holds the interpreter. With Python's
# own 5 ms, a thread that decodes in some hundred such calls waits most of its time for the thread that reads Kafka.
SHORT = 0.0002

_lock = threading.Lock()
_depth = 0
_before = sys.getswitchinterval()


@contextmanager
def shorten_turns() -> Iterator[None]:
    """Let threads hold the interpreter for 0.2 ms at a time; may be entered repeatedly and from any thread."""
    global _depth, _before  # one interpreter per process, so one counter
    with _lock:
        if _depth == 0:
            _before = sys.getswitchinterval()
            sys.setswitchinterval(min(SHORT, _before))
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                sys.setswitchinterval(_before)
