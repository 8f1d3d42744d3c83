"""How often a commit is tried, and how long after the last time."""

from __future__ import annotations

import time
from collections.abc import Iterator


def tries(most: int, pause: float) -> Iterator[int]:
    """Yield the number of each try, waiting before every one but the first.

    Longer each time: other writers, the catalog or the store need the time.
    """
    for number in range(most):
        if number:
            time.sleep(pause * number)
        yield number
