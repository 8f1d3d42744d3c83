"""Order of events from several binary logs: after a failover, another server's places begin again.

A partition has the events in the order of the log, except copies that were sent again. An event whose place is below
the greatest place of the partition is a copy, or an event of another log:

- Its GTID has a number that is new to the partition: another log continues the first one. Its places count
  in a new era, above all places of the era before.
- Its GTID is known, or it has none, and it was committed after all events before it: it is new, numbers and places
  have begun again (`RESET MASTER`, another server without GTIDs), and the order is unknown.
- It is a row of a snapshot: a snapshot is read at the end of a log, so it is of another log, and newer than all before.
- Else it is a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum, auto
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import COMMIT, MILLIS, OFFSET, OP, PARTITION, READ, TABLE
from airflow_lakestream.cdc.events.log_state import (
    PROBLEMS,
    EventPlaces,
    GtidState,
    Ints,
    LogComparison,
    LogState,
    Mask,
)
from airflow_lakestream.cdc.events.provenance import is_serial


class DocumentOrder(StrEnum):
    """Order of a mirror's documents: by their positions in the log, or by offset."""

    LOG = auto()
    OFFSET = auto()


# The places of an era: 2**20 files of a log, with 2**32 bytes each; and the greatest number of eras.
PLACES_PER_ERA, MAX_ERAS = 2**52, 2**11

# Makes the error of one event, from its index and the reason.
Stop = Callable[[int, str], Exception]


@dataclass(frozen=True)
class BinaryLogs:
    """Binary logs of a mirror's source, as noted in the table.

    :param seen: the state of the log, by table and partition.
    :param starts: for each era the first number of each source of GTIDs; empty for the first era, and for unknown
        starts.
    """

    seen: Mapping[str, LogState] = field(default_factory=dict)
    starts: Sequence[Mapping[str, int]] = ({},)

    @property
    def top(self) -> int:
        """The greatest place of all logs: a later log's places are above all places of an earlier log."""
        return max((one.era * PLACES_PER_ERA + max(one.place, one.read) for one in self.seen.values()), default=-1)

    def to_note(self) -> dict[str, Any] | None:
        """Return values for JSON, or None without logs."""
        return asdict(self) if self.seen else None

    @classmethod
    def of_note(cls, note: Mapping[str, Any] | None) -> BinaryLogs:
        """Return the logs of a note."""
        if note is None:
            return cls()
        seen = {
            name: LogState(**{**one, "gtids": {source: GtidState(**places) for source, places in one["gtids"].items()}})
            for name, one in note["seen"].items()
        }
        return cls(seen, note["starts"])


def order_by_log(events: pa.Table, logs: BinaryLogs, stop: Stop) -> tuple[pa.Table, BinaryLogs]:
    """Return the events with growing places across logs, without copies, and the logs after the events.

    Events are returned unchanged unless all are from logs of sequential transactions. Raises the error of `stop` if the
    order of the logs is unknown.

    :param logs: the logs before the events.
    :param stop: makes the error for an event, from the event's index and the reason.
    """
    if not is_serial(events):
        return events, logs
    places, parts = EventPlaces.of(events), dict(_parts(events))
    several = len({*parts, *logs.seen}) > 1
    starts, before, new = [dict(one) for one in logs.starts], "", LogState(era=len(logs.starts) - 1)
    # Walks add to `starts` in place: the text shows whether the last round has changed anything.
    while before != (before := repr(starts)):
        # A partition may have events of an era that a later partition has shown: walk again until nothing changes.
        walks = [
            _LogWalk(places.take(at), at, logs.seen.get(name, new), starts, several, stop) for name, at in parts.items()
        ]
        for walk in walks:
            walk.go()
    seen = {**logs.seen, **{name: walk.seen for name, walk in zip(parts, walks, strict=True)}}
    eras, kept = np.zeros(len(events), np.int64), np.ones(len(events), np.bool_)
    for walk in walks:
        eras[walk.at], kept[walk.at] = walk.eras, ~walk.again
    if eras.any():
        commits = pa.chunked_array([pa.array(places.place + eras * PLACES_PER_ERA)])
        events = events.set_column(events.column_names.index(COMMIT), events.schema.field(COMMIT), commits)
    return (events if kept.all() else events.filter(pa.array(kept))), BinaryLogs(seen, starts)


def place_documents(
    events: pa.Table, order: DocumentOrder | None, logs: BinaryLogs, stop: Stop
) -> tuple[pa.Table, DocumentOrder | None]:
    """Return the events of documents with places in one order, and the order; None if no document shows one.

    A row that a bootstrap has read has no position: its place is behind the last event before it in the partition.
    Raises the error of `stop` for a document without a position among others with one, or the reverse.

    :param order: the order of the events before, or None.
    :param logs: the logs before the events.
    """
    has_place = events[MILLIS].is_valid().to_numpy()
    is_read = pc.equal(events[OP], READ).to_numpy()
    if order is None and not is_read.all():
        order = DocumentOrder.LOG if has_place.any() else DocumentOrder.OFFSET
    wrong = np.flatnonzero(~is_read & (has_place if order is DocumentOrder.OFFSET else ~has_place))
    if len(wrong):
        has = "no position in the log" if order is DocumentOrder.LOG else "a position in the log"
        raise stop(int(wrong[0]), f"the document has {has}, unlike the others: they have no order.")
    if order is not DocumentOrder.LOG or not is_read.any():
        return events, order
    commits = events[COMMIT].to_numpy().copy()
    for name, at in _parts(events):
        known = np.where(is_read[at], -1, np.arange(len(at)))
        last = np.maximum.accumulate(known)
        before = logs.seen[name].place if name in logs.seen else -1
        places = np.where(last < 0, before, commits[at[np.maximum(last, 0)]])
        commits[at] = np.where(is_read[at], places + 1, commits[at])
    column = pa.chunked_array([pa.array(commits)])
    return events.set_column(events.column_names.index(COMMIT), events.schema.field(COMMIT), column), order


def _parts(events: pa.Table) -> Iterator[tuple[str, npt.NDArray[np.intp]]]:
    """Yield each table and partition, with the indices of the events in the order of offsets."""
    tables = events[TABLE].combine_chunks().dictionary_encode()
    names, table = tables.dictionary.to_pylist(), pc.fill_null(tables.indices, -1).to_numpy()
    partitions, order = events[PARTITION].to_numpy(), np.argsort(events[OFFSET].to_numpy(), kind="stable")
    for number in np.unique(table).tolist():
        for partition in np.unique(partitions[table == number]).tolist():
            own = order[((table == number) & (partitions == partition))[order]]
            yield f"{'' if number < 0 else names[number]} {partition}", own


@dataclass
class _LogWalk:
    """Walk through the events of a table in a partition. The results are `eras`, `again` and `seen`.

    :param places: the places of these events, in the order of offsets.
    :param at: the index of each event in the batch.
    :param seen: the state before the events, and after `go` the state after the events.
    :param starts: see `BinaryLogs`; shared by all walks, which add to it.
    :param several: whether there are several partitions.
    :param stop: makes the error for an event, from the event's index in the batch and the reason.
    """

    places: EventPlaces
    at: npt.NDArray[np.intp]
    seen: LogState
    starts: list[dict[str, int]]
    several: bool
    stop: Stop
    eras: Ints = field(init=False)
    again: Mask = field(init=False)

    def go(self) -> None:
        """Set the era of each event in `eras`, and mark copies in `again`. Raises the error of `stop`."""
        count, done = len(self.at), 0
        self.eras, self.again = np.zeros(count, np.int64), np.zeros(count, np.bool_)
        # One round for each log: up to the first event of the next log.
        while True:
            look = LogComparison(self.places.take(slice(done, None)), self.seen, self.starts)
            problem = look.problem(several=self.several)
            turn = look.is_of_later_log | (problem > 0) | (look.is_behind_read & ~np.bool_(self.several))
            length = int(np.argmax(turn)) if turn.any() else count - done
            here = slice(done, done + length)
            # In the first era, numbers need no start: no earlier log could have them.
            self.eras[here], self.again[here] = self.seen.era, look.is_again[:length]
            if self.seen.era:
                self._note_starts(look.first_new(length))
            self.seen = look.after(length)
            done += length
            if done == count:
                return
            if problem[length]:
                raise self.stop(int(self.at[done]), PROBLEMS[problem[length]])
            self._begin_era(done, look.later_era(length))

    def _begin_era(self, at: int, era: int | None) -> None:
        """Begin another era at the first event of another log; `seen` becomes the state before this event.

        Raises the error of `stop` if the next era would reach `MAX_ERAS`, or a place has reached `PLACES_PER_ERA`.

        :param at: the index of the event in this walk.
        :param era: the era to begin, or None for the next era.
        """
        source, place = self.places.source[at], int(self.places.place[at])
        if era is None:
            era = self.seen.era + 1
            if era == MAX_ERAS or max(self.seen.place, self.seen.read, place) >= PLACES_PER_ERA:
                raise self.stop(int(self.at[at]), "the log was followed by another one too often.")
            if era == len(self.starts):
                self.starts.append({})
        self.seen = self.seen.in_era(era)
        if self.places.is_read[at]:
            # Later events come after the snapshot, and their GTIDs may begin again.
            self.seen = replace(self.seen, gtids={})
        if source in self.seen.gtids:
            counted = replace(self.seen.gtids[source], begin=place)
            self.seen = replace(self.seen, gtids={**self.seen.gtids, source: counted})

    def _note_starts(self, numbers: Mapping[str, int]) -> None:
        # Another partition may have shown an earlier start.
        own = self.starts[self.seen.era]
        own |= {name: min(number, own.get(name, number)) for name, number in numbers.items()}
