"""Settings of the C library for freed memory."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

# Parameters of glibc's mallopt(), from malloc.h.
TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8


def tune_allocation(parameters: Mapping[int, int]) -> None:
    """Set mallopt() parameters of this process and later children, if the C library has mallopt()."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for parameter, value in parameters.items():
            libc.mallopt(parameter, value)
