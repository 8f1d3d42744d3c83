"""A lock that is a file: between processes, freed by the kernel when its holder dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold the lock at `path`, waiting for it as long as it takes."""
    descriptor = _acquire(path)
    try:
        yield
    finally:
        os.close(descriptor)


def _acquire(path: Path) -> int:
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        # A stack that went down took its lock files along: a lock on a deleted file guards nothing.
        try:
            if os.path.sameopenfile(descriptor, fresh := os.open(path, os.O_RDWR)):
                os.close(fresh)
                return descriptor
            os.close(fresh)
        except FileNotFoundError:
            pass
        os.close(descriptor)
