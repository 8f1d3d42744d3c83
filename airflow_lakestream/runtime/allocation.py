"""How the C library keeps memory that this process frees."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

# Parameters of glibc's mallopt(), from malloc.h.
TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8


def tune_allocation(parameters: Mapping[int, int]) -> None:
    """Set mallopt() parameters for this process and its children; does nothing if the C library has no mallopt()."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for parameter, value in parameters.items():
            libc.mallopt(parameter, value)
