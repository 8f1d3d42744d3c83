"""Order of events from several binary logs: after a failover, the places begin again with another server's log.

A partition has the events in the order of the log, except copies that were sent again. An event whose place is below
the greatest place of the partition is a copy, or an event of another log:

- Its GTID has a number that is new to the partition: another log continues the first one. The other log's places count
  in a new era, above all places of the era before.
- Its GTID is known or missing, and it was committed after all events before: the event is new, numbers and places have
  begun again (`RESET MASTER`, another server without GTIDs), and the order is unknown.
- It is a row of a snapshot: a snapshot is read at the end of a log, so the row is of another log, and newer than all
  events before.
- Otherwise the event is a copy.
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


# The number of places in an era: 2**20 files of a log, with 2**32 bytes each. And the greatest number of eras.
PLACES_PER_ERA, MAX_ERAS = 2**52, 2**11

# Makes the error of one event, from its index and the reason.
Stop = Callable[[int, str], Exception]


@dataclass(frozen=True)
class BinaryLogs:
    """Binary logs of a mirror's source, as noted in the table.

    An era is the time of one log; see `PLACES_PER_ERA`.

    :param seen: the state of the log, by table and partition.
    :param starts: for each era, by source of GTIDs, the first number; empty for the first era, and for unknown numbers.
    """

    seen: Mapping[str, LogState] = field(default_factory=dict)
    starts: Sequence[Mapping[str, int]] = ({},)

    @property
    def top(self) -> int:
        """The greatest place of all logs: a later log's places are above all places of an earlier log."""
        places = (state.era * PLACES_PER_ERA + max(state.place, state.read) for state in self.seen.values())
        return max(places, default=-1)

    def to_note(self) -> dict[str, Any] | None:
        """Return the logs as values for JSON, or None without logs."""
        return asdict(self) if self.seen else None

    @classmethod
    def of_note(cls, note: Mapping[str, Any] | None) -> BinaryLogs:
        """Return the logs of a note."""
        if note is None:
            return cls()
        seen = {}
        for name, state in note["seen"].items():
            gtids = {source: GtidState(**numbers) for source, numbers in state["gtids"].items()}
            seen[name] = LogState(**{**state, "gtids": gtids})
        return cls(seen, note["starts"])


def order_by_log(events: pa.Table, logs: BinaryLogs, stop: Stop) -> tuple[pa.Table, BinaryLogs]:
    """Return the events with places that grow across logs, without copies, and the logs after the events.

    Events are returned unchanged unless all are from logs of sequential transactions. Raises the error of `stop` if the
    order of the logs is unknown.

    :param logs: the logs before the events.
    :param stop: makes the error for an event, from the event's index and the reason.
    """
    if not is_serial(events):
        return events, logs
    places, parts = EventPlaces.of(events), dict(_parts(events))
    several = len({*parts, *logs.seen}) > 1
    starts = [dict(numbers) for numbers in logs.starts]
    old_starts: list[dict[str, int]] | None = None
    first_state = LogState(era=len(logs.starts) - 1)
    # A partition may have events of an era that a later partition has shown: walk again until no walk adds to `starts`.
    while starts != old_starts:
        old_starts = [dict(numbers) for numbers in starts]
        walks = [
            _LogWalk(places.take(indices), indices, logs.seen.get(name, first_state), starts, several, stop)
            for name, indices in parts.items()
        ]
        for walk in walks:
            walk.go()
    seen = {**logs.seen, **{name: walk.seen for name, walk in zip(parts, walks, strict=True)}}
    eras, kept = np.zeros(len(events), np.int64), np.ones(len(events), np.bool_)
    for walk in walks:
        eras[walk.indices], kept[walk.indices] = walk.eras, ~walk.is_copy
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
    for name, indices in _parts(events):
        is_read_here = is_read[indices]
        last = np.maximum.accumulate(np.where(is_read_here, -1, np.arange(len(indices))))
        before = logs.seen[name].place if name in logs.seen else -1
        places = np.where(last < 0, before, commits[indices[np.maximum(last, 0)]])
        commits[indices] = np.where(is_read_here, places + 1, commits[indices])
    column = pa.chunked_array([pa.array(commits)])
    return events.set_column(events.column_names.index(COMMIT), events.schema.field(COMMIT), column), order


def _parts(events: pa.Table) -> Iterator[tuple[str, npt.NDArray[np.intp]]]:
    """Yield each table and partition as a text, with the indices of its events in the order of offsets."""
    tables = events[TABLE].combine_chunks().dictionary_encode()
    names, table = tables.dictionary.to_pylist(), pc.fill_null(tables.indices, -1).to_numpy()
    partitions, order = events[PARTITION].to_numpy(), np.argsort(events[OFFSET].to_numpy(), kind="stable")
    for number in np.unique(table).tolist():
        for partition in np.unique(partitions[table == number]).tolist():
            indices = order[((table == number) & (partitions == partition))[order]]
            yield f"{'' if number < 0 else names[number]} {partition}", indices


@dataclass
class _LogWalk:
    """Walk through the events of a table in a partition. The results are `eras`, `is_copy` and `seen`.

    :param places: the places of these events, in the order of offsets.
    :param indices: the index of each event in the batch.
    :param seen: the state before the events, and after `go` the state after the events.
    :param starts: see `BinaryLogs`; shared by all walks, which add to it.
    :param several: whether there are several partitions.
    :param stop: makes the error for an event, from the event's index in the batch and the reason.
    """

    places: EventPlaces
    indices: npt.NDArray[np.intp]
    seen: LogState
    starts: list[dict[str, int]]
    several: bool
    stop: Stop
    eras: Ints = field(init=False)
    is_copy: Mask = field(init=False)

    def go(self) -> None:
        """Set the era of each event in `eras`, and mark copies in `is_copy`. Raises the error of `stop`."""
        count, done = len(self.indices), 0
        self.eras, self.is_copy = np.zeros(count, np.int64), np.zeros(count, np.bool_)
        # One round for each log: up to the first event of the next log.
        while True:
            comparison = LogComparison(self.places.take(slice(done, None)), self.seen, self.starts)
            problem = comparison.problem(several=self.several)
            ends_log = (
                comparison.is_of_later_log | (problem > 0) | (comparison.is_behind_read & ~np.bool_(self.several))
            )
            length = int(np.argmax(ends_log)) if ends_log.any() else count - done
            here = slice(done, done + length)
            # In the first era, numbers need no start: no earlier log could have them.
            self.eras[here], self.is_copy[here] = self.seen.era, comparison.is_again[:length]
            if self.seen.era:
                self._note_starts(comparison.first_new(length))
            self.seen = comparison.after(length)
            done += length
            if done == count:
                return
            if problem[length]:
                raise self.stop(int(self.indices[done]), PROBLEMS[problem[length]])
            self._begin_era(done, comparison.later_era(length))

    def _begin_era(self, index: int, era: int | None) -> None:
        """Begin another era at the first event of another log; `seen` becomes the state before this event.

        Raises the error of `stop` if the next era would reach `MAX_ERAS`, or a place has reached `PLACES_PER_ERA`.

        :param index: the index of the event in this walk.
        :param era: the era to begin, or None for the next era.
        """
        source, place = self.places.source[index], int(self.places.place[index])
        if era is None:
            era = self.seen.era + 1
            if era == MAX_ERAS or max(self.seen.place, self.seen.read, place) >= PLACES_PER_ERA:
                raise self.stop(int(self.indices[index]), "the log was followed by another one too often.")
            if era == len(self.starts):
                self.starts.append({})
        self.seen = self.seen.in_era(era)
        if self.places.is_read[index]:
            # Later events come after the snapshot, and their GTIDs may begin again.
            self.seen = replace(self.seen, gtids={})
        if source in self.seen.gtids:
            gtid_state = replace(self.seen.gtids[source], begin=place)
            self.seen = replace(self.seen, gtids={**self.seen.gtids, source: gtid_state})

    def _note_starts(self, numbers: Mapping[str, int]) -> None:
        """Note the first numbers of the current era, unless another partition has shown earlier first numbers."""
        own = self.starts[self.seen.era]
        own |= {name: min(number, own.get(name, number)) for name, number in numbers.items()}
