"""Random logs of mirrors, and the rows that a mirror has when some of the log is landed."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any, Generic, TypeVar, cast

from airflow_lakestream.cdc.columns import UNAVAILABLE
from airflow_lakestream.cdc.design import MirrorDesign
from airflow_lakestream.cdc.rows import RowStrategy
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from tests.support.keyed import Record, write
from tests.support.keyed_models import FIELDS, GivenRows, KeyHistory, Row, day
from tests.support.mirroring import (
    IDENTITY,
    TABLE,
    Event,
    HandMirror,
    come_to,
    deleted_by,
    landing_of,
    rows_of,
)

Entry = TypeVar("Entry")


class MirrorLog(ABC, Generic[Entry]):
    """Log of a topic that only grows. Every choice results from the numbers of `rng`."""

    def __init__(self, rng: Random) -> None:
        self.rng, self.entries = rng, list[Entry]()

    @abstractmethod
    def design(self, design: MirrorDesign) -> MirrorDesign:
        """Return the design of a mirror of this log, with the properties of a table's design."""

    @abstractmethod
    def place(self, entry: Entry) -> tuple[int, int]:
        """Return the partition and the offset of an entry."""

    @abstractmethod
    def produce(self) -> None:
        """Append one entry."""

    @abstractmethod
    def land(self, mirror: HandMirror, sink: Any, schema: Any, entries: Sequence[Entry]) -> None:
        """Land entries in one commit."""

    @abstractmethod
    def check(self, mirror: HandMirror, entries: Sequence[Entry]) -> None:
        """Check that a mirror has the rows of these entries, and no others."""

    @property
    def ranges(self) -> RangeSet:
        """The offsets of all entries."""
        return RangeSet(OffsetRange(IDENTITY.topic, one, at, at + 1) for one, at in map(self.place, self.entries))

    def entries_in(self, landed: RangeSet, *, inside: bool) -> list[Entry]:
        """Return the entries inside of ranges, or those outside."""
        return [one for one in self.entries if _has(landed, *self.place(one)) == inside]


def _has(ranges: RangeSet, partition: int, offset: int) -> bool:
    return any(start <= offset < end for start, end in ranges.intervals(IDENTITY.topic, partition))


class EventLog(MirrorLog[Event]):
    """Change events of Debezium."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.is_soft = rng.random() < 0.3

    def design(self, design: MirrorDesign) -> MirrorDesign:
        return replace(design, rows=RowStrategy.of(soft_delete=self.is_soft))

    def place(self, entry: Event) -> tuple[int, int]:
        return entry.partition, entry.offset

    def produce(self) -> None:
        number, key = len(self.entries), cast(int | None, self.rng.randrange(8))
        op = self.rng.choice("uud") if key in come_to(self.entries) else "c"
        # Debezium leaves out a large value that was not changed.
        values = (f"n{number}", UNAVAILABLE if op == "u" and self.rng.random() < 0.2 else f"big{number}")
        if self.rng.random() < 0.03:
            op, key = "t", None
        event = Event(op, key, values if op in "cu" else None, number + 1, number, offset=number)
        self.entries.append(event)

    def land(self, mirror: HandMirror, sink: Any, schema: Any, entries: Sequence[Event]) -> None:
        mirror.take(sink, rows_of(entries, mirror.kind))
        sink.commit(landing_of(entries))

    def check(self, mirror: HandMirror, entries: Sequence[Event]) -> None:
        assert mirror.rows() == come_to(entries)
        if self.is_soft:
            assert mirror.deleted() == deleted_by(entries)


class RecordLog(MirrorLog[tuple[int, Row | None, Record]]):
    """Plain records with a key: the newest one is the row, or its fields, or the first one, or each is a version.

    Keys come from several partitions only if the sequence decides, and no two records are equal in the sequence.
    """

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.kind = rng.choice(("newest", "given", "first", "history", "columns"))
        self.is_history = self.kind in ("history", "columns")
        self.by_sequence = self.is_history or (self.kind != "first" and rng.random() < 0.5)
        # The other kinds depend on the order in which the partitions are landed.
        self.moves = self.by_sequence and self.kind in ("newest", "history") and rng.random() < 0.5
        self.is_soft = self.kind in ("newest", "given") and rng.random() < 0.3
        self.partitions = rng.choice((1, 2, 3))
        at = "timestamptz" if self.is_history else "bigint"
        schema = f"id bigint, at {at}, a bigint, b struct<c: bigint>, op string"
        asked: dict[str, Any] = {"envelope": None, "key": ["id"], "schema": schema, "soft_delete": self.is_soft}
        asked |= {} if self.kind == "first" else {"delete_when": "op = 'D'"}
        asked |= {"sequence_by": "at"} if self.by_sequence else {}
        asked |= {"given": {"merge": "given"}, "first": {"insert_only": True}}.get(self.kind, {})
        asked |= {"history": True} if self.is_history else {}
        asked |= {"history_columns": ["a"]} if self.kind == "columns" else {}
        self.config = MirrorConfig(topic=IDENTITY.topic, table=TABLE, consumer_group="g", **asked)

    def design(self, design: MirrorDesign) -> MirrorDesign:
        own = self.config.mirror
        return replace(own, table=replace(own.table, properties=design.table.properties))

    def place(self, entry: tuple[int, Row | None, Record]) -> tuple[int, int]:
        assert entry[2].offset is not None
        return entry[2].partition, entry[2].offset

    def produce(self) -> None:
        rng, number, key = self.rng, len(self.entries), self.rng.randrange(5)
        partition = rng.randrange(self.partitions) if self.moves else key % self.partitions
        # Later than the last ones by some, or earlier.
        at = (number + rng.randint(-6, 3)) * 1_000 + number if self.moves else number // 3 + rng.randint(-2, 1)
        fields: Row = {"a": rng.choice([None, 1, 2]), "b": rng.choice([None, {"c": number}, {"c": None}])}
        fields["op"] = rng.choice([None, "U", "U", "D"])
        if self.kind == "given":
            fields = {name: value for name, value in fields.items() if rng.random() < 0.6}
        row: Row | None = {"at": at} | fields
        if not self.by_sequence and self.kind != "first" and rng.random() < 0.15:
            row = None
        times = {"at": str(day(at))} if self.is_history else {}
        value = None if row is None else json.dumps(row | times | {"id": key}).encode()
        offset = sum(self.place(one)[0] == partition for one in self.entries)
        self.entries.append((key, row, Record(b"%d" % key, value, partition, offset)))

    def land(
        self, mirror: HandMirror, sink: Any, schema: Any, entries: Sequence[tuple[int, Row | None, Record]]
    ) -> None:
        # By the worker, or as Spark does it: executors write the records into files, and the driver merges the files.
        mirror.executors = self.rng.choice((0, 0, 2))
        sink.commit(landing_of(write(mirror, self.config, sink, schema, [record for _, _, record in entries])))

    def check(self, mirror: HandMirror, entries: Sequence[tuple[int, Row | None, Record]]) -> None:
        found = mirror.found()
        if self.is_history:
            names = (*FIELDS, "_valid_from", "_valid_to", "_is_current")
            in_order = sorted(found, key=lambda row: (row["id"], row["_valid_from"], row["_kafka_offset"]))
            assert [(row["id"], {name: row[name] for name in names}) for row in in_order] == self._versions(entries)
            return
        model, firsts = GivenRows(self.by_sequence), dict[int, Row | None]()
        for key, row, _ in entries:
            model.land(key, row)
            firsts.setdefault(key, row)
        held = firsts if self.kind == "first" else model.rows
        rows = {key: row for key, row in held.items() if row is not None}
        for is_deleted, expected in ((False, rows), (True, model.deleted if self.is_soft else {})):
            some = [row for row in found if bool(row.get("_is_deleted")) == is_deleted]
            assert len(some) == len(expected)
            assert {row["id"]: {name: row[name] for name in ("at", *FIELDS)} for row in some} == expected

    def _versions(self, entries: Sequence[tuple[int, Row | None, Record]]) -> list[tuple[int, Row]]:
        columns, model = self.config.mirror.history_columns, dict[int, KeyHistory]()
        for number, (key, row, _) in enumerate(entries):
            assert row is not None
            fields = {name: value for name, value in row.items() if name != "at"}
            model.setdefault(key, KeyHistory(columns)).land((row["at"], number), fields)
        return [(key, row) for key, history in sorted(model.items()) for row in history.rows()]
