"""The most memory that this process has had."""

from __future__ import annotations

import resource
from pathlib import Path


def own_peak_bytes() -> int:
    """Return the peak of this process.

    What getrusage says of a process itself is at least what its parent had when it was started: here the tests' own,
    which may have had a lot.
    """
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024


def peak_bytes() -> int:
    """Return the peak of this process, or of a child that has ended, whichever is higher."""
    return max(own_peak_bytes(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
