"""Puts events of several binary logs in one order: after a failover another server's log goes on, places begin anew.

Within a partition events come as the log has them, but for those that are sent again. What tells the three apart:

- An event behind the greatest place that the partition has shown is sent again, or of another log.
- A GTID with a number that the partition has not shown is new: then it is another log, which goes on where the first
  one ended. Its places count from a new era on, above all places of the one before.
- A GTID that was shown, or none, and a time after all times that were shown: such an event is new all the same, so
  numbers and places began anew (`RESET MASTER`, another server without GTIDs), and nothing tells the order.
- Rows of a snapshot are read at the end of a log: behind a greater place they are of another one, and the snapshot
  replaces what is older.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import (
    COMMIT,
    GTID,
    MILLIS,
    OFFSET,
    OP,
    PARTITION,
    READ,
    READ_LAST,
    SERVER,
    TABLE,
)
from airflow_lakestream.cdc.events.provenance import is_serial

# The places of an era: 2**20 files of a log, with 2**32 bytes each; and so many eras.
ERA, MOST_ERAS = 2**52, 2**11
# MariaDB counts transactions by domain, with the server that wrote one; MySQL by the server's UUID.
_MARIADB = r"^(?P<source>\d+)-(?P<server>\d+)-(?P<number>\d{1,18})$"
_MYSQL = r"^(?P<source>.+):(?P<number>\d{1,18})$"

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
# Makes the error of one event: its number among the events, and what is the matter.
Stop = Callable[[int, str], Exception]


@dataclass(frozen=True)
class Counted:
    """What a partition has shown of one source of GTIDs.

    :param number: the greatest one; its transaction begins at the place `begin`.
    :param millis: the greatest time; the first number with it is `since`.
    :param servers: the greatest number of each server, for MariaDB.
    """

    number: int = -1
    begin: int = -1
    millis: int = -1
    since: int = -1
    servers: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """What the events of a table have told in one partition, from its beginning to where it has been read.

    :param place: the greatest place of the era; `millis` the greatest time, and `since` the first place with it.
    :param read: the place of the era's last snapshot, and `read_millis` its time.
    :param server: of the last event without a GTID; 0: there was none.
    """

    era: int = 0
    place: int = -1
    millis: int = -1
    since: int = -1
    read: int = -1
    read_millis: int = -1
    server: int = 0
    gtids: Mapping[str, Counted] = field(default_factory=dict)

    def in_era(self, era: int) -> Seen:
        """Return the same at the beginning of another log."""
        gtids = {name: replace(one, begin=-1) for name, one in self.gtids.items()}
        return replace(self, era=era, place=-1, since=-1, read=-1, read_millis=-1, gtids=gtids)


@dataclass(frozen=True)
class Logs:
    """The logs that a mirror has followed, for its table's note.

    :param seen: by table and partition.
    :param starts: of each era, the first number that was seen by source of GTIDs.
    """

    seen: Mapping[str, Seen] = field(default_factory=dict)
    starts: Sequence[Mapping[str, int]] = ({},)

    @property
    def top(self) -> int:
        """The greatest place of all."""
        return max((one.era * ERA + max(one.place, one.read) for one in self.seen.values()), default=-1)

    def to_note(self) -> dict[str, Any] | None:
        """Return JSON-ready values; None if there is nothing to say."""
        return asdict(self) if self.seen else None

    @classmethod
    def of_note(cls, note: Mapping[str, Any] | None) -> Logs:
        """Return what a note says."""
        if note is None:
            return cls()
        seen = {
            name: Seen(**{**one, "gtids": {source: Counted(**told) for source, told in one["gtids"].items()}})
            for name, one in note["seen"].items()
        }
        return cls(seen, note["starts"])


def in_one_order(events: pa.Table, logs: Logs, stop: Stop) -> tuple[pa.Table, Logs]:
    """Return events with places that grow from log to log, without copies that another log has, and what they told.

    Raises what `stop` makes, where nothing tells the order.
    """
    if not is_serial(events):
        return events, logs
    told, parts = _Told.of(events), dict(_parts(events))
    several = len({*parts, *logs.seen}) > 1
    starts, before, new = [dict(one) for one in logs.starts], "", Seen(era=len(logs.starts) - 1)
    while before != (before := repr(starts)):
        # A partition that was walked first may have events of an era that another one has shown: again, then.
        walks = [
            _Walk(told.take(at), at, logs.seen.get(name, new), starts, several, stop) for name, at in parts.items()
        ]
        for walk in walks:
            walk.go()
    seen = {**logs.seen, **{name: walk.seen for name, walk in zip(parts, walks, strict=True)}}
    eras, kept = np.zeros(len(events), np.int64), np.ones(len(events), np.bool_)
    for walk in walks:
        eras[walk.at], kept[walk.at] = walk.eras, ~walk.again
    if eras.any():
        commits = pa.chunked_array([pa.array(told.place + eras * ERA)])
        events = events.set_column(events.column_names.index(COMMIT), events.schema.field(COMMIT), commits)
    return (events if kept.all() else events.filter(pa.array(kept))), Logs(seen, starts)


def _parts(events: pa.Table) -> Iterator[tuple[str, npt.NDArray[np.intp]]]:
    """Yield each table's numbers of events in a partition, by offset; one partition has a table's events in order."""
    tables = events[TABLE].combine_chunks().dictionary_encode()
    names, table = tables.dictionary.to_pylist(), pc.fill_null(tables.indices, -1).to_numpy()
    partitions, order = events[PARTITION].to_numpy(), np.argsort(events[OFFSET].to_numpy(), kind="stable")
    for number in np.unique(table).tolist():
        for partition in np.unique(partitions[table == number]).tolist():
            own = order[((table == number) & (partitions == partition))[order]]
            yield f"{'' if number < 0 else names[number]} {partition}", own


@dataclass(frozen=True)
class _Told:
    """What events say of their log, in columns: -1 where one says nothing.

    `says` tells which do: not those of an incremental snapshot, which stand wherever the stream is.
    """

    place: Ints
    millis: Ints
    server: Ints
    number: Ints
    source: npt.NDArray[np.object_]
    of_server: npt.NDArray[np.object_]
    is_read: Mask
    says: Mask

    @classmethod
    def of(cls, events: pa.Table) -> _Told:
        ids = events[GTID].combine_chunks().dictionary_encode()
        maria, mysql = (pc.extract_regex(ids.dictionary, pattern) for pattern in (_MARIADB, _MYSQL))
        domain, uuid = (pc.struct_field(one, "source") for one in (maria, mysql))
        number = pc.coalesce(*(pc.struct_field(one, "number").cast(pa.int64()) for one in (maria, mysql)))
        server = pc.coalesce(pc.struct_field(maria, "server"), pc.if_else(uuid.is_valid(), "", uuid))
        return cls(
            events[COMMIT].to_numpy(),
            *(_ints(events[name]) for name in (MILLIS, SERVER)),
            _ints(number.take(ids.indices)),
            *(one.take(ids.indices).to_numpy(zero_copy_only=False) for one in (pc.coalesce(domain, uuid), server)),
            pc.is_in(events[OP], pa.array([READ, READ_LAST])).to_numpy(),
            events[MILLIS].is_valid().to_numpy(),
        )

    def take(self, at: Any) -> _Told:
        return _Told(*(getattr(self, name)[at] for name in self.__dataclass_fields__))


def _ints(column: pa.Array | pa.ChunkedArray) -> Ints:
    return np.asarray(pc.fill_null(column, -1)).astype(np.int64)


@dataclass
class _Walk:
    """Goes through the events of one table in one partition."""

    told: _Told
    at: npt.NDArray[np.intp]
    seen: Seen
    starts: list[dict[str, int]]
    several: bool
    stop: Stop
    eras: Ints = field(init=False)
    again: Mask = field(init=False)

    def go(self) -> None:
        """Give each event its era, and find those of another log that are there already. Raises what `stop` makes."""
        count, done = len(self.at), 0
        self.eras, self.again = np.zeros(count, np.int64), np.zeros(count, np.bool_)
        while True:
            look = _Look(self.told.take(slice(done, None)), self.seen, self.starts)
            problem = look.problem(several=self.several)
            turn = look.turns | (problem != "") | (look.is_behind_read & ~np.bool_(self.several))
            length = int(np.argmax(turn)) if turn.any() else count - done
            here = slice(done, done + length)
            self.eras[here], self.again[here] = self.seen.era, look.is_again[:length]
            if self.seen.era:
                self._note_starts(look.first_new(length))
            self.seen = look.after(length)
            done += length
            if done == count:
                return
            if problem[length]:
                raise self.stop(int(self.at[done]), str(problem[length]))
            self._turn(done, look.later_era(length))

    def _turn(self, at: int, era: int | None) -> None:
        """Go on in another era: the one that is known to have begun, or the next one."""
        source, place = self.told.source[at], int(self.told.place[at])
        if era is None:
            era = self.seen.era + 1
            if era == MOST_ERAS or max(self.seen.place, self.seen.read, place) >= ERA:
                raise self.stop(int(self.at[at]), "the log was followed by another one too often.")
            if era == len(self.starts):
                self.starts.append({})
        self.seen = self.seen.in_era(era)
        if source in self.seen.gtids:
            counted = replace(self.seen.gtids[source], begin=place)
            self.seen = replace(self.seen, gtids={**self.seen.gtids, source: counted})

    def _note_starts(self, numbers: Mapping[str, int]) -> None:
        own = self.starts[self.seen.era]
        own |= {name: min(number, own.get(name, number)) for name, number in numbers.items()}


class _Running:
    """The greatest of some values before each event and after the last one, and what was there when it rose."""

    def __init__(self, values: Ints, start: int) -> None:
        self.values = values
        self.most = np.maximum.accumulate(np.concatenate([[start], values]))

    @property
    def before(self) -> Ints:
        return self.most[:-1]

    def at_rise(self, other: Ints, start: int) -> Ints:
        rises = np.where(self.values > self.before, np.arange(len(self.values)), -1)
        last = np.maximum.accumulate(np.concatenate([[-1], rises]))
        return np.where(last < 0, start, np.concatenate([other, [0]])[last])


class _OfSource:
    """What one source of GTIDs has shown before each event."""

    def __init__(self, told: _Told, name: str, seen: Counted) -> None:
        self.name, self.own = name, told.source == name
        self.is_of_mariadb = np.bool_(name.isdigit())
        numbers, millis = (np.where(self.own, one, -1) for one in (told.number, told.millis))
        self.numbers, self.millis = _Running(numbers, seen.number), _Running(millis, seen.millis)
        self.begin, self.since = (
            self.numbers.at_rise(told.place, seen.begin),
            self.millis.at_rise(told.number, seen.since),
        )
        servers = {*seen.servers, *set(told.of_server[self.own].tolist())}
        of_server = {one: self.own & (told.of_server == one) for one in servers}
        self.servers = {
            one: _Running(np.where(own, told.number, -1), seen.servers.get(one, -1)) for one, own in of_server.items()
        }
        self.is_strange = np.zeros(len(self.own), np.bool_)
        for one, own in of_server.items():
            shown = told.number <= self.numbers.before
            self.is_strange |= own & shown & (told.number > self.servers[one].before)

    def after(self, length: int) -> Counted:
        servers = {one: int(running.most[length]) for one, running in self.servers.items()}
        numbers = (self.numbers.most, self.begin, self.millis.most, self.since)
        return Counted(*(int(one[length]) for one in numbers), servers)


class _Look:
    """What is known of events in the light of what was seen before each of them."""

    def __init__(self, told: _Told, seen: Seen, starts: Sequence[Mapping[str, int]]) -> None:
        self._told, self._seen, self._starts = told, seen, starts
        self._streamed = streamed = told.says & ~told.is_read
        self._places = _Running(np.where(streamed, told.place, -1), seen.place)
        self._times = _Running(np.where(streamed, told.millis, -1), seen.millis)
        self._since = self._times.at_rise(told.place, seen.since)
        self._reads = _Running(np.where(told.says & told.is_read, told.place, -1), seen.read)
        self._read_at = self._reads.at_rise(told.millis, seen.read_millis)
        names = {*seen.gtids, *(one for one in set(told.source.tolist()) if one is not None)}
        self._sources = {one: _OfSource(told, one, seen.gtids.get(one, Counted())) for one in names}
        self._bare = streamed & (told.number < 0)
        self._servers = self._bare & (told.server > 0)

    def _of_sources(self, of: Callable[[_OfSource], npt.NDArray[Any]]) -> Mask:
        found = np.zeros(len(self._streamed), np.bool_)
        for one in self._sources.values():
            found |= one.own & of(one)
        return found

    @cached_property
    def _falls(self) -> Mask:
        """Which stand behind the greatest place."""
        return self._streamed & (self._told.place < self._places.before)

    @cached_property
    def _is_new(self) -> Mask:
        """Which have a GTID that nothing had before."""
        return self._of_sources(lambda one: self._told.number > one.numbers.before)

    @cached_property
    def _is_later(self) -> Mask:
        """Which were committed after all that was seen, by the server's clock: they can't be sent again."""
        told, latest = self._told, self._times.before
        same = told.millis == latest
        by_number = self._of_sources(lambda one: (one.millis.before == latest) & (told.number < one.since[:-1]))
        by_place = self._bare & (told.place < self._since[:-1])
        return (told.millis > latest) | (same & (by_number | by_place))

    @cached_property
    def _precedes_snapshot(self) -> Mask:
        """Which stand before a snapshot in its log, and were committed after it: they are of another log."""
        read, when = self._reads.before, self._read_at[:-1]
        return self._streamed & (self._told.place < read) & (self._told.millis > when)

    @cached_property
    def turns(self) -> Mask:
        """Which are the first ones of another log that goes on with this one's GTIDs."""
        goes_on = self._of_sources(
            lambda one: (self._told.number == one.numbers.before) & (self._told.place < one.begin[:-1])
        )
        later = np.zeros(len(self._streamed), np.bool_)
        for era in range(self._seen.era + 1, len(self._starts)):
            later |= self._has_begun(era)
        return later | (self._falls & (self._is_new | goes_on)) | (self._precedes_snapshot & self._is_new)

    def _has_begun(self, era: int) -> Mask:
        first, none = self._starts[era], np.iinfo(np.int64).max
        return self._streamed & self._of_sources(lambda one: self._told.number >= first.get(one.name, none))

    def first_new(self, length: int) -> Mapping[str, int]:
        """Return the first number, by source, that nothing had before, among so many events."""
        new = self._is_new[:length]
        own = {name: np.flatnonzero(new & one.own[:length]) for name, one in self._sources.items()}
        return {name: int(self._told.number[at[0]]) for name, at in own.items() if len(at)}

    def later_era(self, at: int) -> int | None:
        """Return the last era that has begun by an event's GTID; None for none behind this one."""
        eras = range(len(self._starts) - 1, self._seen.era, -1)
        return next((era for era in eras if self._has_begun(era)[at]), None)

    @cached_property
    def is_again(self) -> Mask:
        """Which are copies of events that came before, by their GTIDs."""
        return self._falls & (self._told.number >= 0) & ~self._is_new

    @cached_property
    def is_behind_read(self) -> Mask:
        """Which rows of a snapshot are of another log."""
        greatest = np.maximum(self._places.before, self._reads.before)
        return self._told.says & self._told.is_read & (self._told.place < greatest)

    def problem(self, *, several: bool) -> npt.NDArray[np.str_]:
        """Say of each event why nothing tells its order; empty for those that have one."""
        # A server of MariaDB numbers the transactions of a domain as it writes them.
        behind = self._of_sources(lambda one: one.is_of_mariadb & (self._told.number < one.numbers.before))
        began = ((self._falls & ~self._is_new) | (self._streamed & behind)) & self._is_later
        began |= self._precedes_snapshot & ~self._is_new
        strange = self._of_sources(lambda one: one.is_strange)
        is_left = several and self._seen.era + 1 < len(self._starts)
        alone = self._told.says & (self._told.number < 0) & np.bool_(is_left)
        told = [
            (
                began,
                "was committed after all that came before, and its place in the log or its GTID is before theirs",
            ),
            (strange, "has a GTID that another server's transaction had, or one before it"),
            (self._other_server(), "comes from another server, and has no GTID"),
            (self.is_behind_read & several, "was read by a snapshot of another log, and there are several partitions"),
            (alone, "has no GTID, and another partition has events of another log"),
        ]
        return np.select([mask for mask, _ in told], [text for _, text in told], "")

    def _other_server(self) -> Mask:
        numbers = np.where(self._servers, np.arange(len(self._servers)), -1)
        last = np.maximum.accumulate(np.concatenate([[-1], numbers]))
        self._last_server = np.where(last < 0, self._seen.server, np.concatenate([self._told.server, [0]])[last])
        before = self._last_server[:-1]
        return self._servers & (before > 0) & (self._told.server != before)

    def after(self, length: int) -> Seen:
        """Return what is known once so many events were seen."""
        self._other_server()
        runs = (self._places.most, self._times.most, self._since, self._reads.most, self._read_at, self._last_server)
        gtids = {name: one.after(length) for name, one in self._sources.items()}
        return Seen(self._seen.era, *(int(one[length]) for one in runs), gtids)
