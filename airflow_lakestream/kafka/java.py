"""Damage met by Kafka's Java client in another engine: parsed from errors, and located by our own reader.

The texts are of Kafka 3.9 to 4.x, with the classes' packages as they are or as shaded by a jar.
"""

from __future__ import annotations

import logging
import re
import threading
from contextlib import closing
from dataclasses import dataclass, replace

from airflow_lakestream.core.landing.plan import DamagedBatch, Plan, TopicState
from airflow_lakestream.core.ports import RecordReader
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.exceptions import LakestreamError

log = logging.getLogger(__name__)

_WHERE = r"(?P<topic>[\w.-]+)-(?P<partition>\d+)"
# With the batch's first offset, the offset of the request, or none.
_PLACES = tuple(
    re.compile(pattern)
    for pattern in (
        rf"Record(?: batch)? for partition {_WHERE} at offset (?P<offset>\d+) is invalid",
        rf"Encountered corrupt message when fetching offset (?P<offset>\d+) for topic-partition {_WHERE}",
        rf"Failed to make progress reading messages at {_WHERE}=(?P<offset>\d+)",
        rf"Received exception when fetching the next record from {_WHERE}\. If needed",
    )
)
# Without a place: of a batch whose head makes no sense.
_DAMAGED = re.compile(
    r"CorruptRecordException|InvalidRecordException|Record is corrupt|Record size .* is less than the minimum"
    r"|Invalid magic found in record|Failed to decompress record stream"
)


# A client has read no more than some thousand records beyond its last known position.
MOST_LOOKED_AT = 100_000
_ENDLESS = 2**63 - 1


@dataclass(frozen=True)
class JavaDamage:
    """A damaged batch by an error's text: the place, as far as known, and the error's line."""

    line: str
    topic: str = ""
    partition: int = -1
    offset: int = -1

    @classmethod
    def of(cls, error: str) -> JavaDamage | None:
        """Return the damage that an error's text or a trace reports; None for an error without damage.

        The place is only known if the text names it.
        """
        for place in _PLACES:
            if match := place.search(error):
                groups = match.groupdict()
                line, offset = _line(error, match.start()), int(groups.get("offset", -1))
                return cls(line, groups["topic"], int(groups["partition"]), offset)
        match = _DAMAGED.search(error)
        return None if match is None else cls(_line(error, match.start()))

    def within(self, ranges: RangeSet) -> RangeSet:
        """Return the part of the ranges with the damage, as far as the place is known."""
        if not self.topic:
            return ranges
        return ranges & RangeSet.of(self.topic, self.partition, max(self.offset, 0), _ENDLESS)


def first_offsets(ranges: RangeSet) -> RangeSet:
    """Return the first MOST_LOOKED_AT offsets of each range."""
    return RangeSet(replace(r, until_offset=min(r.until_offset, r.from_offset + MOST_LOOKED_AT)) for r in ranges)


def find_damage(reader: RecordReader, state: TopicState, ranges: RangeSet) -> DamagedBatch | None:
    """Read ranges of a topic up to the first damaged batch, and return it; None if no damage was found.

    Another error ends the search with a warning, and None.
    """
    try:
        with closing(reader.read(Plan(state, ranges), threading.Event())) as chunks:
            for _ in chunks:
                pass
    except DamagedBatch as damaged:
        return damaged
    except LakestreamError as e:
        log.warning("The damaged batch was not looked for to the end: %s", e)
    return None


def _line(text: str, at: int) -> str:
    return text[text.rfind("\n", 0, at) + 1 :].partition("\n")[0].removeprefix("Caused by: ").strip()[:300]
