"""How the C library keeps the memory that this process frees."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

# Parameters of glibc's mallopt(), as malloc.h has them.
TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8


def tune_allocation(parameters: Mapping[int, int]) -> None:
    """Set parameters of mallopt(), for this process and those it forks; nothing where the C library has none."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for parameter, value in parameters.items():
            libc.mallopt(parameter, value)
