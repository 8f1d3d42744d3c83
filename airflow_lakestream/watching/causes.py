"""Causes of a stream's state, by name: sensors, `lakestream status` and alerts all use these words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from airflow_lakestream.core.landing.run_log import span as span
from airflow_lakestream.core.ranges import RangeSet, shown

# Most ranges in a text: a longer list would hide the important words. Further ranges are only counted.
_MOST_RANGES = 4
# Most partitions in a text. Their numbers are short, so there may be more of them.
_MOST_PARTITIONS = 20
UNSEEN = "could_not_look"  # key in a sensor's XCom value: the reason of a look that failed


class StreamCause(StrEnum):
    """Causes that a person on call has to distinguish."""

    STOPPED_CONSUMER = "stopped consumer"
    SLOW_CONSUMER = "slow consumer"
    STOPPED_QUERY = "stopped Spark query"
    FAILED_QUERY = "failed Spark query"
    VANISHED_QUERY = "vanished Spark query"
    STUCK_QUERY = "stuck Spark query"
    IDLE_TOPIC = "idle topic"
    LATE_PARTITION = "late partition"
    UNKNOWN_AGE = "unknown age"
    OPEN_INTERVAL = "open interval"
    LATE_EVENTS = "late events"
    COMPACTION = "compaction"
    OTHER_WRITER = "other writer"
    ROLLBACK = "rollback"
    EXPIRED_LANDING = "expired landing"
    NO_LANDING = "no landing"
    NOT_COVERED = "not covered"
    LOST_RECORDS = "lost records"
    UNUSABLE = "unusable"
    COULD_NOT_LOOK = "could not look"
    CAUGHT_UP = "caught up"
    EXPIRING_RECORDS = "expiring records"
    SILENT_COLUMNS = "silent columns"
    STALE_COLUMNS = "stale columns"
    SMALL_FILES = "small files"


@dataclass(frozen=True, slots=True)
class StreamReason:
    """A cause, with numbers in words."""

    cause: StreamCause
    text: str

    def __str__(self) -> str:
        return f"{self.cause}: {self.text}"

    def to_dict(self) -> dict[str, str]:
        """Return JSON-ready values."""
        return {"cause": self.cause.value, "text": self.text}


def join_reasons(reasons: Iterable[StreamReason]) -> str:
    """Return reasons as text."""
    return "; ".join(map(str, reasons))


def format_ranges(ranges: RangeSet) -> str:
    """Return ranges as text: the first few, and the number of further ranges."""
    return shown([str(offset_range) for offset_range in ranges], _MOST_RANGES)


def partitions_text(topic: str, partitions: Iterable[int]) -> str:
    """Return partitions of a topic as text, such as `orders[0, 2]`: the first, and the number of further ones."""
    return f"{topic}[{shown([str(p) for p in sorted(partitions)], _MOST_PARTITIONS, 'partitions')}]"
