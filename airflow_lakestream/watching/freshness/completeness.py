"""Whether a table holds all of a topic's records up to a time, and no more can come.

The rule is the ledger's: B(t) is a partition's first offset with a timestamp at or after t; without such a record the
boundary is open. The time is complete if the ledger holds all offsets below B(t), and no boundary is open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_lakestream.core.landing.plan import DataLoss
from airflow_lakestream.core.ledger import TopicEntry, union
from airflow_lakestream.core.ports import Boundary
from airflow_lakestream.core.ranges import Interval, RangeSet
from airflow_lakestream.watching.causes import Cause, Reason, some
from airflow_lakestream.watching.lag.waiting import Backlog


@dataclass(frozen=True, slots=True)
class Completeness:
    """What keeps a time from being complete; nothing if it is complete.

    `missing` are offsets below the boundaries that are not landed. `open` are the partitions whose boundary is open,
    `before` those in which the group begins after the time. `covered`: the ledger says where the time's offsets begin.
    """

    topic: str
    partitions: int
    missing: RangeSet
    open: tuple[int, ...]
    before: tuple[int, ...]
    covered: bool = True

    @property
    def is_complete(self) -> bool:
        """Whether everything is landed and no more can come."""
        return self.covered and not (self.missing or self.open or self.before)

    def reasons(self, group: str, at: str) -> list[Reason]:
        """Return what keeps the time from being complete.

        :param at: the time, as text.
        """
        found = []
        if not self.covered:
            text = f"group {group} has neither resumed on {self.topic} nor landed an interval that reaches {at}"
            return [Reason(Cause.NOT_COVERED, text)]
        if self.before:
            where = _names(self.topic, self.before)
            found.append(Reason(Cause.NOT_COVERED, f"group {group} begins after {at} in {where}"))
        if self.missing:
            text = f"group {group} lacks {self.missing.width} offsets from before {at}: {some(self.missing)}"
            found.append(Reason(Cause.SLOW_CONSUMER, text))
        if self.open and len(self.open) < self.partitions:
            where = _names(self.topic, self.open)
            found.append(Reason(Cause.LATE_PARTITION, f"{where} have no record at or after {at} yet; the others have"))
        elif self.open:
            text = f"no partition of {self.topic} has a record at or after {at} yet: more may come from before it"
            found.append(Reason(Cause.OPEN_INTERVAL, text))
        return found


def covered_part(entry: TopicEntry, at_ms: int) -> Interval | None:
    """Return the covered time that reaches up to `at_ms`, in milliseconds since the epoch, or None."""
    return next((part for part in entry.covered if part[0] < at_ms <= part[1]), None)


def completeness(
    backlog: Backlog,
    highs: Mapping[int, Boundary],
    lows: Mapping[int, Boundary] | None,
    table: str,
    *,
    idle_closes: bool,
) -> Completeness:
    """Decide whether all of a topic is landed up to a time.

    :param highs: the boundary of the time, by partition.
    :param lows: where the covered time that reaches up to it begins; None without one.
    :param idle_closes: a partition without a record at or after the time counts as closed once all of it is landed.

    Raises DataLoss for offsets that Kafka no longer has.
    """
    state, entry, topic = backlog.state, backlog.entry, backlog.topic
    if not entry.origin and lows is None:
        return Completeness(topic, len(highs), RangeSet(), (), (), covered=False)
    begins = {p: _begin(backlog, lows or {}, p) for p in highs}
    missing = union(RangeSet.of(topic, p, begins[p], high.offset) for p, high in highs.items()) - entry.held
    below_low = union(RangeSet.of(topic, p, 0, marks.low) for p, marks in state.marks.items())
    if lost := missing & below_low:
        raise DataLoss(lost, table)
    is_open = [p for p, high in highs.items() if high.is_open]
    if idle_closes:
        is_open = [p for p in is_open if missing.intervals(topic, p)]
    before = tuple(sorted(p for p, high in highs.items() if begins[p] > high.offset))
    return Completeness(topic, len(highs), missing, tuple(sorted(is_open)), before)


def _begin(backlog: Backlog, lows: Mapping[int, Boundary], partition: int) -> int:
    """Return the partition's first offset that belongs to the group, for this time."""
    origin = backlog.entry.origin
    # A partition added after the origin was fixed begins at 0.
    begins = [origin.get(partition, 0)] if origin else []
    begins += [lows[partition].offset] if partition in lows else []
    return min(begins, default=0)


def _names(topic: str, partitions: tuple[int, ...]) -> str:
    return f"{topic}[{', '.join(map(str, partitions))}]"
