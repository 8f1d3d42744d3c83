"""Time until unread records leave the log, at the current rates of writing and reading: arithmetic only.

By time, a record leaves at the earliest when it is older than `retention.ms`. A consumer that keeps reading puts that
moment off, as fast as it reads through the time in which the records were written. By size, a record leaves once enough
was written behind it to fill the log; a consumer that reads moves away from that end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# In the last part of the wanted time no rate is trusted: a consumer may stop at any moment.
LAST_PART = 4


@dataclass(frozen=True, slots=True)
class PartitionView:
    """State of a partition at a moment. Rates are records per second; times are seconds since the epoch.

    `unread` is the number of unread records, `first_at` the timestamp of the first. `capacity` is the number of records
    that fit into the log by size; None without a limit.
    """

    unread: int
    first_at: float | None
    produced: float
    landed: float
    retention: float | None
    capacity: float | None = None


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """Seconds until the first unread record leaves: at current rates, and if reading stops."""

    going_on: float = math.inf
    stopped: float = math.inf

    def is_short(self, wanted: float) -> bool:
        """Whether less than `wanted` seconds are left."""
        return self.going_on < wanted or self.stopped < wanted / LAST_PART


def time_left(view: PartitionView, now: float) -> TimeLeft:
    """Return the time until the first unread record leaves the log."""
    if not view.unread:
        return TimeLeft()
    by_time, by_size = _by_time(view, now), _by_size(view)
    return TimeLeft(min(by_time.going_on, by_size.going_on), min(by_time.stopped, by_size.stopped))


def _by_time(view: PartitionView, now: float) -> TimeLeft:
    if view.retention is None or view.first_at is None:
        return TimeLeft()
    stopped = max(0.0, view.first_at + view.retention - now)
    # In each second of that time `density` unread records were written: reading `density` records gains a second.
    density = view.unread / max(1.0, now - view.first_at)
    gained = view.landed / density
    return TimeLeft(math.inf if gained >= 1 else stopped / (1 - gained), stopped)


def _by_size(view: PartitionView) -> TimeLeft:
    if view.capacity is None or view.produced <= 0:
        return TimeLeft()
    room = max(0.0, view.capacity - view.unread)
    growth = view.produced - view.landed
    return TimeLeft(math.inf if growth <= 0 else room / growth, room / view.produced)


def rate_to_catch_up(view: PartitionView, left: TimeLeft) -> float:
    """Return the rate (records per second) for reading everything within half of the time left."""
    if not view.unread:
        return 0.0
    within = left.stopped / 2
    if not math.isfinite(within):
        return view.produced
    return view.produced + view.unread / max(1.0, within)
