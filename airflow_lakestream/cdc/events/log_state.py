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

# Fields of an event's source: the file, the byte in the file, and the number of the row in the event.
BINLOG_FILE, _BYTE, _ROW = "file", "pos", "row"
BINLOG_FIELDS = (
    (BINLOG_FILE, pa.string()),
    (_BYTE, pa.int64()),
    (_ROW, pa.int64()),
    ("gtid", pa.string()),
    ("server_id", pa.int64()),
)
# In place of a transaction's number, for an event of a log in which transactions come one after the other: the database
# has checked the keys after each row, not only at the end of a transaction.
SERIAL = -1

_NUMBER = r"\.(?P<number>\d{1,9})$"
# A file has less than 2**32 bytes: positions in it have 32 bits.
_BYTES = 2**32


def binlog_places(source: pa.Array) -> pa.Array:
    """Return the events' log positions as numbers, growing with the log; null for events of another kind of log."""
    parts = pc.extract_regex(member(source, BINLOG_FILE, pa.string()), _NUMBER)
    file_number = pc.struct_field(parts, "number").cast(pa.int64())
    return pc.add(pc.multiply(file_number, _BYTES), member(source, _BYTE, pa.int64()))


def first_without_position(source: pa.Array) -> int | None:
    """Return the index of the first event without a position in the file; None if all have positions.

    MariaDB may leave out an event's end position. Debezium then subtracts the event's length from 0: `pos` is negative.
    """
    byte = member(source, _BYTE, pa.int64())
    lacking = pc.and_(member(source, BINLOG_FILE, pa.string()).is_valid(), pc.less(pc.fill_null(byte, 0), 0))
    index = pc.index(lacking, True).as_py()
    return None if index < 0 else int(index)


def log_columns(source: pa.Array) -> Sequence[pa.Array]:
    """Return GTID, server id, and time in milliseconds of each event; null for events of another kind of log.

    The time is -1 if the source has no time. The values are null also for rows of an incremental snapshot: these rows
    have the stream's position, but were read later.
    """
    is_incremental = pc.equal(member(source, "snapshot", pa.string()), "incremental").fill_null(False)
    has_place = pc.and_(binlog_places(source).is_valid(), pc.invert(is_incremental))
    names = (("gtid", pa.string()), ("server_id", pa.int64()), ("ts_ms", pa.int64()))
    columns = [pc.if_else(has_place, member(source, name, kind), pa.scalar(None, kind)) for name, kind in names]
    return [*columns[:2], pc.if_else(has_place, pc.fill_null(columns[2], -1), pa.scalar(None, pa.int64()))]


def binlog_rows(source: pa.Array) -> pa.Array:
    """Return the number of each row in its event, from 1."""
    return pc.add(pc.fill_null(member(source, _ROW, pa.int64()), 0), 1)


def member(source: pa.Array, name: str, kind: pa.DataType) -> pa.Array:
    """Return a field of events' sources; nulls of a type if the sources lack the field."""
    return pc.struct_field(source, name) if source.type.get_field_index(name) >= 0 else pa.nulls(len(source), kind)


# MariaDB numbers transactions by domain, and a GTID has the server that wrote the transaction; MySQL numbers
# transactions by the server's UUID.
_MARIADB = r"^(?P<source>\d+)-(?P<server>\d+)-(?P<number>\d{1,18})$"
_MYSQL = r"^(?P<source>.+):(?P<number>\d{1,18})$"


# Reasons for an unknown order of an event, as predicates of the event; empty for a known order.
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
    """State of a source of GTIDs in a partition, after the last event read; -1 for an unknown number.

    :param number: the greatest number.
    :param begin: the place of the first event with this number; -1 also if the event is in an earlier era.
    :param millis: the greatest time of a transaction, in milliseconds.
    :param since: the first number with the time `millis`.
    :param servers: the greatest number of each server, for MariaDB.
    """

    number: int = -1
    begin: int = -1
    millis: int = -1
    since: int = -1
    servers: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class LogState:
    """State of a table's binary log in a partition, after the last event read; -1 for an unknown number.

    :param era: the number of the log: each log that continues another one has the next number.
    :param place: the greatest place of a streamed event in the era.
    :param millis: the greatest time of a streamed event, in milliseconds.
    :param since: the first place with the time `millis`.
    :param read: the greatest place of a row read by a snapshot in the era.
    :param read_millis: the time of the row at the place `read`, in milliseconds.
    :param server: the server of the last event without a GTID; 0 before the first such event.
    :param gtids: the state of each source of GTIDs.
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
        gtids = {name: replace(state, begin=-1) for name, state in self.gtids.items()}
        return replace(self, era=era, place=-1, since=-1, read=-1, read_millis=-1, gtids=gtids)


@dataclass(frozen=True)
class EventPlaces:
    """Places of events in the binary log, each parameter with an item for each event: -1 or None if missing.

    :param place: the log position, see `binlog_places`.
    :param millis: the time of the transaction, in milliseconds.
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
        mariadb, mysql = (pc.extract_regex(ids.dictionary, pattern) for pattern in (_MARIADB, _MYSQL))
        domain, uuid = (pc.struct_field(parts, "source") for parts in (mariadb, mysql))
        number = pc.coalesce(*(pc.struct_field(parts, "number").cast(pa.int64()) for parts in (mariadb, mysql)))
        server = pc.coalesce(pc.struct_field(mariadb, "server"), pc.if_else(uuid.is_valid(), "", uuid))
        # Events without a GTID get the last item of each array, -1 or None.
        indices = pc.fill_null(ids.indices, len(ids.dictionary)).to_numpy()
        return cls(
            place=events[COMMIT].to_numpy(),
            millis=_ints(events[MILLIS]),
            server=_ints(events[SERVER]),
            number=np.append(_ints(number), -1)[indices],
            source=np.array([*pc.coalesce(domain, uuid).to_pylist(), None], object)[indices],
            of_server=np.array([*server.to_pylist(), None], object)[indices],
            is_read=pc.is_in(events[OP], pa.array([READ, READ_LAST])).to_numpy(),
            has_place=events[MILLIS].is_valid().to_numpy(),
        )

    def take(self, selection: Any) -> EventPlaces:
        """Return the places of the events that an index array or a slice selects."""
        return EventPlaces(*(getattr(self, name)[selection] for name in self.__dataclass_fields__))


def _ints(column: pa.Array | pa.ChunkedArray) -> Ints:
    """Return a column of integers, with -1 for null."""
    return np.asarray(pc.fill_null(column, -1)).astype(np.int64)


class _RunningMaximum:
    """Running maximum of values, one value for each event.

    :param start: the maximum before the first event.
    :ivar most: the maximum before each event, and after the last event.
    """

    def __init__(self, values: Ints, start: int) -> None:
        self.values = values
        self.most = np.maximum.accumulate(np.concatenate([[start], values]))

    @property
    def before(self) -> Ints:
        """The maximum before each event."""
        return self.most[:-1]

    def at_rise(self, other: Ints, start: int) -> Ints:
        """Return the item of `other` at the last rise of the maximum: before each event, and after the last event.

        The result is `start` if the maximum has not risen yet.
        """
        rise_indices = np.where(self.values > self.before, np.arange(len(self.values)), -1)
        last = np.maximum.accumulate(np.concatenate([[-1], rise_indices]))
        return np.where(last < 0, start, np.concatenate([other, [0]])[last])


class _GtidHistory:
    """State of a source of GTIDs before each event.

    :param name: the source.
    :param seen: the state before the first event.
    :ivar own: a mask of the events with a GTID of this source.
    :ivar is_strange: a mask of the events with a number that the source has shown before, or an earlier one, although
        their server has shown only earlier numbers.
    """

    def __init__(self, places: EventPlaces, name: str, seen: GtidState) -> None:
        self.name, self.own = name, places.source == name
        self.is_of_mariadb = np.bool_(name.isdigit())
        numbers, millis = (np.where(self.own, column, -1) for column in (places.number, places.millis))
        self.numbers, self.millis = _RunningMaximum(numbers, seen.number), _RunningMaximum(millis, seen.millis)
        self.begin, self.since = (
            self.numbers.at_rise(places.place, seen.begin),
            self.millis.at_rise(places.number, seen.since),
        )
        servers = {*seen.servers, *set(places.of_server[self.own].tolist())}
        of_server = {server: self.own & (places.of_server == server) for server in servers}
        self.servers = {
            server: _RunningMaximum(np.where(own, places.number, -1), seen.servers.get(server, -1))
            for server, own in of_server.items()
        }
        self.is_strange = np.zeros(len(self.own), np.bool_)
        for server, own in of_server.items():
            shown = places.number <= self.numbers.before
            self.is_strange |= own & shown & (places.number > self.servers[server].before)

    def after(self, length: int) -> GtidState:
        """Return the state after the first `length` events."""
        servers = {server: int(running.most[length]) for server, running in self.servers.items()}
        number, millis = (int(running.most[length]) for running in (self.numbers, self.millis))
        return GtidState(number, int(self.begin[length]), millis, int(self.since[length]), servers)


class LogComparison:
    """Comparison of each event with the state of the log before the event.

    A mask of events, as most methods return, has an item for each event.

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
        names = {*seen.gtids, *(name for name in set(places.source.tolist()) if name is not None)}
        self._sources = {name: _GtidHistory(places, name, seen.gtids.get(name, GtidState())) for name in names}
        self._bare = streamed & (places.number < 0)
        self._servers = self._bare & (places.server > 0)
        server_indices = np.where(self._servers, np.arange(len(self._servers)), -1)
        last = np.maximum.accumulate(np.concatenate([[-1], server_indices]))
        self._last_server = np.where(last < 0, seen.server, np.concatenate([places.server, [0]])[last])

    def _of_sources(self, condition: Callable[[_GtidHistory], npt.NDArray[Any]]) -> Mask:
        """Return a mask of the events for which a condition holds, given the history of the event's own source."""
        mask = np.zeros(len(self._streamed), np.bool_)
        for source in self._sources.values():
            mask |= source.own & condition(source)
        return mask

    @cached_property
    def _falls(self) -> Mask:
        """Events with a place below the greatest earlier place."""
        return self._streamed & (self._events.place < self._places.before)

    @cached_property
    def _is_new(self) -> Mask:
        """Events with a GTID number above all earlier numbers of the source."""
        return self._of_sources(lambda source: self._events.number > source.numbers.before)

    @cached_property
    def _is_later(self) -> Mask:
        """Events committed after all earlier events, by the server's clock: not copies."""
        places, latest = self._events, self._times.before
        # An event at the latest time is a copy if its number, or without GTIDs its place, is at or above the first
        # one of this time.
        is_same_time = places.millis == latest
        by_number = self._of_sources(
            lambda source: (source.millis.before == latest) & (places.number < source.since[:-1])
        )
        by_place = self._bare & (places.place < self._since[:-1])
        later: Mask = (places.millis > latest) | (is_same_time & (by_number | by_place))
        return later

    @cached_property
    def _precedes_snapshot(self) -> Mask:
        """Events with a place before the snapshot's and a commit after the snapshot: events of another log."""
        read_place, read_time = self._reads.before, self._read_at[:-1]
        return self._streamed & (self._events.place < read_place) & (self._events.millis > read_time)

    @cached_property
    def is_of_later_log(self) -> Mask:
        """Events of a later log, which continues the GTIDs; the first of these events ends the present log.

        An event is of a later log if another partition has shown its number in that log; or if the number is new, but
        the place is below an earlier place or the snapshot's place.
        """
        # A number of the last transaction at a place before the transaction's beginning: the later log has the
        # transaction, too.
        is_last = self._of_sources(
            lambda source: (self._events.number == source.numbers.before) & (self._events.place < source.begin[:-1])
        )
        shown = np.zeros(len(self._streamed), np.bool_)
        for era in range(self._seen.era + 1, len(self._starts)):
            shown |= self._has_begun(era)
        return shown | (self._falls & (self._is_new | is_last)) | (self._precedes_snapshot & self._is_new)

    def _has_begun(self, era: int) -> Mask:
        """Return a mask of the events with a number at or above the first number of an era."""
        starts, never = self._starts[era], np.iinfo(np.int64).max
        return self._streamed & self._of_sources(lambda source: self._events.number >= starts.get(source.name, never))

    def first_new(self, length: int) -> Mapping[str, int]:
        """Return the first new number of each source among the first `length` events."""
        new = self._is_new[:length]
        indices = {name: np.flatnonzero(new & source.own[:length]) for name, source in self._sources.items()}
        return {
            name: int(self._events.number[new_indices[0]]) for name, new_indices in indices.items() if len(new_indices)
        }

    def later_era(self, index: int) -> int | None:
        """Return the last era that has begun at the GTID of the event at `index`; None if only the current era has."""
        eras = range(len(self._starts) - 1, self._seen.era, -1)
        return next((era for era in eras if self._has_begun(era)[index]), None)

    @cached_property
    def is_again(self) -> Mask:
        """Events that were sent again, by their GTIDs."""
        return self._falls & (self._events.number >= 0) & ~self._is_new

    @cached_property
    def is_behind_read(self) -> Mask:
        """Rows that a snapshot of another log has read: their place is below an earlier place."""
        greatest = np.maximum(self._places.before, self._reads.before)
        return self._events.has_place & self._events.is_read & (self._events.place < greatest)

    def problem(self, *, several: bool) -> Ints:
        """Return for each event the index in `PROBLEMS` of the reason for an unknown order; 0 for a known order.

        :param several: whether there are several partitions.
        """
        # A server of MariaDB numbers the transactions of a domain as it writes them.
        behind = self._of_sources(lambda source: source.is_of_mariadb & (self._events.number < source.numbers.before))
        began = ((self._falls & ~self._is_new) | (self._streamed & behind)) & self._is_later
        began |= self._precedes_snapshot & ~self._is_new
        strange = self._of_sources(lambda source: source.is_strange)
        # An event without a GTID does not show whether it belongs to the later log of another partition.
        may_be_of_later_log = several and self._seen.era + 1 < len(self._starts)
        is_undecided = self._events.has_place & (self._events.number < 0) & np.bool_(may_be_of_later_log)
        # In the order of `PROBLEMS`, from 1.
        found = (began, strange, self._other_server(), self.is_behind_read & np.bool_(several), is_undecided)
        return np.select(found, [np.int64(number) for number in range(1, len(PROBLEMS))], np.int64(0))

    def _other_server(self) -> Mask:
        """Return a mask of the events without GTID from another server than the last such event."""
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
            gtids={name: source.after(length) for name, source in self._sources.items()},
        )
