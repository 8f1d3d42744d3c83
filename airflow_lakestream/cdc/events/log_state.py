"""Binary logs of MySQL and MariaDB: positions of events; the state of each partition's log against new events.

A binary log is a sequence of transactions in the order of commit. Its files are numbered; an event begins at a byte of
its file, and has several rows. `logs` orders the events of several logs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import COMMIT, GTID, MILLIS, OP, READ, READ_LAST, SERVER

# Of an event's source: the file, the byte, and the number of the row in the event.
BINLOG_FILE, _BYTE, _ROW = "file", "pos", "row"
BINLOG_FIELDS = (
    (BINLOG_FILE, pa.string()),
    (_BYTE, pa.int64()),
    (_ROW, pa.int64()),
    ("gtid", pa.string()),
    ("server_id", pa.int64()),
)
# Instead of a transaction's number: transactions are never mixed in the log, and keys are checked with each row.
SERIAL = -1

_NUMBER = r"\.(?P<number>\d{1,9})$"
# A file has less than 2**32 bytes: positions in it have 32 bits.
_BYTES = 2**32


def binlog_places(source: pa.Array) -> pa.Array:
    """Return the events' log positions as numbers, growing with the log; null for events of another kind of log."""
    number = pc.struct_field(pc.extract_regex(_member(source, BINLOG_FILE, pa.string()), _NUMBER), "number").cast(
        pa.int64()
    )
    return pc.add(pc.multiply(number, _BYTES), _member(source, _BYTE, pa.int64()))


def first_without_position(source: pa.Array) -> int | None:
    """Return the index of the first event without a position in the file; None if all have positions.

    MariaDB may leave out an event's end position. Debezium then subtracts the event's length from 0: `pos` is negative.
    """
    byte = _member(source, _BYTE, pa.int64())
    lacking = pc.and_(_member(source, BINLOG_FILE, pa.string()).is_valid(), pc.less(pc.fill_null(byte, 0), 0))
    found = pc.index(lacking, True).as_py()
    return None if found < 0 else int(found)


def log_columns(source: pa.Array) -> Sequence[pa.Array]:
    """Return GTID, server id, and time in milliseconds of each event; null for events of another kind of log.

    The time is -1 if the source has no time. All three are null also for rows of an incremental snapshot: they have the
    stream's position, but were read later.
    """
    is_incremental = pc.equal(_member(source, "snapshot", pa.string()), "incremental").fill_null(False)
    has_place = pc.and_(binlog_places(source).is_valid(), pc.invert(is_incremental))
    names = (("gtid", pa.string()), ("server_id", pa.int64()), ("ts_ms", pa.int64()))
    found = [pc.if_else(has_place, _member(source, name, kind), pa.scalar(None, kind)) for name, kind in names]
    return [*found[:2], pc.if_else(has_place, pc.fill_null(found[2], -1), pa.scalar(None, pa.int64()))]


def binlog_rows(source: pa.Array) -> pa.Array:
    """Return the number of each row in its event, from 1."""
    return pc.add(pc.fill_null(_member(source, _ROW, pa.int64()), 0), 1)


def _member(source: pa.Array, name: str, kind: pa.DataType) -> pa.Array:
    return pc.struct_field(source, name) if source.type.get_field_index(name) >= 0 else pa.nulls(len(source), kind)


# MariaDB counts transactions by domain, with the server that wrote one; MySQL by the server's UUID.
_MARIADB = r"^(?P<source>\d+)-(?P<server>\d+)-(?P<number>\d{1,18})$"


_MYSQL = r"^(?P<source>.+):(?P<number>\d{1,18})$"


# Reasons for an unknown order of an event.
PROBLEMS = (
    "",
    "was committed after all that came before, and its place in the log or its GTID is before theirs",
    "has a GTID that another server's transaction had, or one before it",
    "comes from another server, and has no GTID",
    "was read by a snapshot of another log, and there are several partitions",
    "has no GTID, and another partition has events of another log",
)


Ints = npt.NDArray[np.int64]


Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class GtidState:
    """State of a source of GTIDs in a partition; -1 if nothing was seen.

    :param number: the greatest number.
    :param begin: the place of the first event with this number; -1 also if the event is in an earlier era.
    :param millis: the greatest time of a transaction.
    :param since: the first number with this time.
    :param servers: the greatest number of each server, for MariaDB.
    """

    number: int = -1
    begin: int = -1
    millis: int = -1
    since: int = -1
    servers: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class LogState:
    """State of a table's binary log in a partition, after the last event read; -1 if nothing was seen.

    :param era: the number of the log: each log that continues another one has the next number.
    :param place: the greatest place of a streamed event in the era.
    :param millis: the greatest time of a streamed event.
    :param since: the first place with this time.
    :param read: the greatest place of a row read by a snapshot in the era.
    :param read_millis: the time of this row.
    :param server: the server of the last event without a GTID; 0 before the first such event.
    :param gtids: by source of GTIDs.
    """

    era: int = 0
    place: int = -1
    millis: int = -1
    since: int = -1
    read: int = -1
    read_millis: int = -1
    server: int = 0
    gtids: Mapping[str, GtidState] = field(default_factory=dict)

    def in_era(self, era: int) -> LogState:
        """Return the state at the beginning of another log: places begin again, numbers of GTIDs and times continue."""
        gtids = {name: replace(one, begin=-1) for name, one in self.gtids.items()}
        return replace(self, era=era, place=-1, since=-1, read=-1, read_millis=-1, gtids=gtids)


@dataclass(frozen=True)
class EventPlaces:
    """Places of events in the binary log, as columns; -1 for missing numbers, None for missing texts.

    :param place: the log position, see `binlog_places`.
    :param millis: the time of the transaction.
    :param server: the id of the server.
    :param number: the number in the GTID.
    :param source: the source of the GTID: MariaDB's domain, or MySQL's UUID of a server.
    :param of_server: the server in MariaDB's GTID; empty for MySQL.
    :param is_read: whether a snapshot has read the row.
    :param has_place: whether the event has a place. Rows of an incremental snapshot have none: the place in their
        source is the stream's.
    """

    place: Ints
    millis: Ints
    server: Ints
    number: Ints
    source: npt.NDArray[np.object_]
    of_server: npt.NDArray[np.object_]
    is_read: Mask
    has_place: Mask

    @classmethod
    def of(cls, events: pa.Table) -> EventPlaces:
        """Return the places of change events."""
        ids = events[GTID].combine_chunks().dictionary_encode()
        maria, mysql = (pc.extract_regex(ids.dictionary, pattern) for pattern in (_MARIADB, _MYSQL))
        domain, uuid = (pc.struct_field(one, "source") for one in (maria, mysql))
        number = pc.coalesce(*(pc.struct_field(one, "number").cast(pa.int64()) for one in (maria, mysql)))
        server = pc.coalesce(pc.struct_field(maria, "server"), pc.if_else(uuid.is_valid(), "", uuid))
        # Events without a GTID get the last item of each array, -1 or None.
        at = pc.fill_null(ids.indices, len(ids.dictionary)).to_numpy()
        return cls(
            place=events[COMMIT].to_numpy(),
            millis=_ints(events[MILLIS]),
            server=_ints(events[SERVER]),
            number=np.append(_ints(number), -1)[at],
            source=np.array([*pc.coalesce(domain, uuid).to_pylist(), None], object)[at],
            of_server=np.array([*server.to_pylist(), None], object)[at],
            is_read=pc.is_in(events[OP], pa.array([READ, READ_LAST])).to_numpy(),
            has_place=events[MILLIS].is_valid().to_numpy(),
        )

    def take(self, at: Any) -> EventPlaces:
        """Return the places of selected events."""
        return EventPlaces(*(getattr(self, name)[at] for name in self.__dataclass_fields__))


def _ints(column: pa.Array | pa.ChunkedArray) -> Ints:
    return np.asarray(pc.fill_null(column, -1)).astype(np.int64)


class _RunningMaximum:
    """Running maximum of values: `most` has the maximum before each event, and after the last event.

    :param start: the maximum before the first event.
    """

    def __init__(self, values: Ints, start: int) -> None:
        self.values = values
        self.most = np.maximum.accumulate(np.concatenate([[start], values]))

    @property
    def before(self) -> Ints:
        return self.most[:-1]

    def at_rise(self, other: Ints, start: int) -> Ints:
        # The item of `other` at the last rise before each event, and after the last event; `start` without a rise.
        rise_indices = np.where(self.values > self.before, np.arange(len(self.values)), -1)
        last = np.maximum.accumulate(np.concatenate([[-1], rise_indices]))
        return np.where(last < 0, start, np.concatenate([other, [0]])[last])


class _GtidHistory:
    """State of a source of GTIDs before each event.

    :param name: the source.
    :param seen: the state before the first event.
    """

    def __init__(self, places: EventPlaces, name: str, seen: GtidState) -> None:
        self.name, self.own = name, places.source == name
        self.is_of_mariadb = np.bool_(name.isdigit())
        numbers, millis = (np.where(self.own, one, -1) for one in (places.number, places.millis))
        self.numbers, self.millis = _RunningMaximum(numbers, seen.number), _RunningMaximum(millis, seen.millis)
        self.begin, self.since = (
            self.numbers.at_rise(places.place, seen.begin),
            self.millis.at_rise(places.number, seen.since),
        )
        servers = {*seen.servers, *set(places.of_server[self.own].tolist())}
        of_server = {one: self.own & (places.of_server == one) for one in servers}
        self.servers = {
            one: _RunningMaximum(np.where(own, places.number, -1), seen.servers.get(one, -1))
            for one, own in of_server.items()
        }
        # Strange: the source has shown the number or a later one, but this server has shown only earlier numbers.
        self.is_strange = np.zeros(len(self.own), np.bool_)
        for one, own in of_server.items():
            shown = places.number <= self.numbers.before
            self.is_strange |= own & shown & (places.number > self.servers[one].before)

    def after(self, length: int) -> GtidState:
        servers = {one: int(running.most[length]) for one, running in self.servers.items()}
        number, millis = (int(one.most[length]) for one in (self.numbers, self.millis))
        return GtidState(number, int(self.begin[length]), millis, int(self.since[length]), servers)


class LogComparison:
    """Comparison of each event with the state of the log before the event.

    :param seen: the state before the first event.
    :param starts: see `BinaryLogs`.
    """

    def __init__(self, places: EventPlaces, seen: LogState, starts: Sequence[Mapping[str, int]]) -> None:
        self._events, self._seen, self._starts = places, seen, starts
        self._streamed = streamed = places.has_place & ~places.is_read
        self._places = _RunningMaximum(np.where(streamed, places.place, -1), seen.place)
        self._times = _RunningMaximum(np.where(streamed, places.millis, -1), seen.millis)
        self._since = self._times.at_rise(places.place, seen.since)
        self._reads = _RunningMaximum(np.where(places.has_place & places.is_read, places.place, -1), seen.read)
        self._read_at = self._reads.at_rise(places.millis, seen.read_millis)
        names = {*seen.gtids, *(one for one in set(places.source.tolist()) if one is not None)}
        self._sources = {one: _GtidHistory(places, one, seen.gtids.get(one, GtidState())) for one in names}
        self._bare = streamed & (places.number < 0)
        self._servers = self._bare & (places.server > 0)
        at = np.where(self._servers, np.arange(len(self._servers)), -1)
        last = np.maximum.accumulate(np.concatenate([[-1], at]))
        self._last_server = np.where(last < 0, seen.server, np.concatenate([places.server, [0]])[last])

    def _of_sources(self, of: Callable[[_GtidHistory], npt.NDArray[Any]]) -> Mask:
        # A mask of the events for which `of` is true, given the event's own source.
        found = np.zeros(len(self._streamed), np.bool_)
        for one in self._sources.values():
            found |= one.own & of(one)
        return found

    @cached_property
    def _falls(self) -> Mask:
        """Events with a place below the greatest earlier place."""
        return self._streamed & (self._events.place < self._places.before)

    @cached_property
    def _is_new(self) -> Mask:
        """Events with a GTID number above all earlier numbers of the source."""
        return self._of_sources(lambda one: self._events.number > one.numbers.before)

    @cached_property
    def _is_later(self) -> Mask:
        """Events committed after all earlier events, by the server's clock: not copies."""
        places, latest = self._events, self._times.before
        # At the latest time itself, a copy has a number or a place from the first one of this time on.
        same = places.millis == latest
        by_number = self._of_sources(lambda one: (one.millis.before == latest) & (places.number < one.since[:-1]))
        by_place = self._bare & (places.place < self._since[:-1])
        later: Mask = (places.millis > latest) | (same & (by_number | by_place))
        return later

    @cached_property
    def _precedes_snapshot(self) -> Mask:
        """Events with a place before the snapshot's and a commit after the snapshot: events of another log."""
        read, when = self._reads.before, self._read_at[:-1]
        return self._streamed & (self._events.place < read) & (self._events.millis > when)

    @cached_property
    def is_of_later_log(self) -> Mask:
        """Events of a later log, by their GTIDs: the present log ends before the first of these events."""
        # The last transaction may be in both logs: an event before its beginning in this log is from the later log.
        is_in_both = self._of_sources(
            lambda one: (self._events.number == one.numbers.before) & (self._events.place < one.begin[:-1])
        )
        # Another partition has shown that a later log has this number.
        later = np.zeros(len(self._streamed), np.bool_)
        for era in range(self._seen.era + 1, len(self._starts)):
            later |= self._has_begun(era)
        return later | (self._falls & (self._is_new | is_in_both)) | (self._precedes_snapshot & self._is_new)

    def _has_begun(self, era: int) -> Mask:
        """Return a mask of the events with a GTID of this era or a later one."""
        first, none = self._starts[era], np.iinfo(np.int64).max
        return self._streamed & self._of_sources(lambda one: self._events.number >= first.get(one.name, none))

    def first_new(self, length: int) -> Mapping[str, int]:
        """Return the first new number of each source among the first `length` events."""
        new = self._is_new[:length]
        own = {name: np.flatnonzero(new & one.own[:length]) for name, one in self._sources.items()}
        return {name: int(self._events.number[at[0]]) for name, at in own.items() if len(at)}

    def later_era(self, at: int) -> int | None:
        """Return the last era that has begun by an event's GTID, or None if only the current era has begun."""
        eras = range(len(self._starts) - 1, self._seen.era, -1)
        return next((era for era in eras if self._has_begun(era)[at]), None)

    @cached_property
    def is_again(self) -> Mask:
        """Copies of earlier events, by GTIDs."""
        return self._falls & (self._events.number >= 0) & ~self._is_new

    @cached_property
    def is_behind_read(self) -> Mask:
        """Snapshot rows of another log."""
        greatest = np.maximum(self._places.before, self._reads.before)
        return self._events.has_place & self._events.is_read & (self._events.place < greatest)

    def problem(self, *, several: bool) -> Ints:
        """Return for each event the index in `PROBLEMS` of the reason for an unknown order; 0 for a known order.

        :param several: whether there are several partitions.
        """
        # A server of MariaDB numbers the transactions of a domain as it writes them.
        behind = self._of_sources(lambda one: one.is_of_mariadb & (self._events.number < one.numbers.before))
        began = ((self._falls & ~self._is_new) | (self._streamed & behind)) & self._is_later
        began |= self._precedes_snapshot & ~self._is_new
        strange = self._of_sources(lambda one: one.is_strange)
        # An event without a GTID does not show whether it belongs to the later log of another partition.
        is_left = several and self._seen.era + 1 < len(self._starts)
        alone = self._events.has_place & (self._events.number < 0) & np.bool_(is_left)
        # In the order of `PROBLEMS`, from 1.
        found = (began, strange, self._other_server(), self.is_behind_read & np.bool_(several), alone)
        return np.select(found, [np.int64(number) for number in range(1, len(PROBLEMS))], np.int64(0))

    def _other_server(self) -> Mask:
        before = self._last_server[:-1]
        found: Mask = self._servers & (before > 0) & (self._events.server != before)
        return found

    def after(self, length: int) -> LogState:
        """Return the state after the first `length` events."""
        return LogState(
            era=self._seen.era,
            place=int(self._places.most[length]),
            millis=int(self._times.most[length]),
            since=int(self._since[length]),
            read=int(self._reads.most[length]),
            read_millis=int(self._read_at[length]),
            server=int(self._last_server[length]),
            gtids={name: one.after(length) for name, one in self._sources.items()},
        )
