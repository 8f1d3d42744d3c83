"""Tries of a commit, with pauses between."""

from __future__ import annotations

import time
from collections.abc import Iterator


def tries(most: int, pause: float) -> Iterator[int]:
    """Yield the number of each try, and wait before every try except the first.

    The pauses grow: other writers, the catalog or the store need the time.

    :param pause: seconds before the second try; each later pause is longer by as much.
    """
    for number in range(most):
        if number:
            time.sleep(pause * number)
        yield number
