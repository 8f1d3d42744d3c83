"""Times as text, of any year: Python's `datetime` cannot hold years before 1 or after 9999, and a table can."""

from __future__ import annotations

from typing import Literal

import numpy as np


def iso(at_ms: int, *, shortly: bool = True) -> str:
    """Return a time in milliseconds since the epoch as ISO 8601 in UTC.

    :param shortly: leave out the milliseconds of a whole second.
    """
    unit: Literal["s", "ms"] = "s" if shortly and not at_ms % 1000 else "ms"
    return f"{np.datetime_as_string(np.datetime64(at_ms, 'ms'), unit=unit)}+00:00"
