"""One topic of odd and random records, and what is to hold of each engine that reads it.

Its rows and refusals are the extract's, or the difference is named before it shows.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import types as arrow
from pyiceberg.exceptions import NoSuchTableError

from airflow_lakestream.core.ledger import union
from airflow_lakestream.core.publishing.branch import EngineOutput, ProofResult, RowProof
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.exceptions import BadRecord
from airflow_lakestream.kafka.source import KafkaSource, StartAt
from airflow_lakestream.tables.coordinates import PARTITION, is_hit, ranges_of
from airflow_lakestream.tables.schema.ddl import parse_schema
from airflow_lakestream.tables.schema.types import arrow_schema
from tests.support import avro_orders, odd_bytes, odd_values
from tests.support.avro_orders import order
from tests.support.avro_records import written
from tests.support.broker import Producing
from tests.support.lake import TABLE, Lake, Position
from tests.support.odd_values import ODD, Odd, broken, by_engines, randomly

# Without a limit of retention, and with times of the far future.
KEPT = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}
# Partition 0 is for all engines. Flink's job fails at records of the first of these, Connect's tasks at those of the
# second: there the extract has landed them before.
NOT_FLINKS, NOT_CONNECTS = (1, 3), (2, 3)
# Another in each landing.
_OWN = ("run_id", "rejected_at", "landing_id")
_TIMESTAMP = "_kafka_timestamp"

Records = Sequence[list[Odd]]


@dataclass(frozen=True)
class Kind:
    """A format of records.

    :param make: returns those of each partition, by how many partition 0 is to have, and the id of the schema.
    :param more: makes a good one.
    :param tombstones: what the engines make of them.
    """

    format: str
    columns: str
    make: Callable[[random.Random, int, int], Records]
    more: Callable[[int, int], str | bytes]
    tombstones: str = "skip"

    def __str__(self) -> str:
        return self.format


def _json(some: random.Random, count: int, _: int) -> Records:
    taken = by_engines(connect=True, flink=True)
    fatal = [*randomly(some, count // 10, ODD), *broken(some, randomly(some, count // 10, taken))]
    return (
        taken + randomly(some, count, taken),
        by_engines(connect=True, flink=False),
        by_engines(connect=False, flink=True),
        by_engines(connect=False, flink=False) + fatal,
    )


def _bytes(make: Callable[..., list[Odd]]) -> Callable[[random.Random, int, int], Records]:
    def records(some: random.Random, count: int, schema_id: int) -> Records:
        return make(some, count, schema_id, flink=True), make(some, count // 10, schema_id, flink=False), [], []

    return records


KINDS = (
    Kind("json", odd_values.COLUMNS, _json, lambda n, _: json.dumps({"i": n})),
    Kind(
        "avro",
        avro_orders.COLUMNS,
        _bytes(odd_bytes.avro),
        lambda n, schema_id: written(avro_orders.ORDER, schema_id, order(n)),
    ),
    Kind("raw", "key string, value string", _bytes(odd_bytes.raw), lambda n, _: f"more {n}", "keep"),
)


@dataclass
class OneTopic:
    """A topic of one kind of records, and a lake that the extract has landed it in.

    :param registry: of Avro's schemas; empty for other kinds.
    """

    kind: Kind
    name: str
    records: Records
    lake: Lake
    produce: Producing
    registry: str = ""
    schema_id: int = 0
    _more: int = field(default=0)

    @property
    def landing(self) -> dict[str, Any]:
        """What the extract is told, and whoever lands as it does."""
        kind = self.kind
        told = {"format": kind.format, "schema": kind.columns, "tombstones": kind.tombstones, "max_rejected": "1.0"}
        return told | ({"schema_registry": self.registry} if self.registry else {})

    @property
    def by_flink(self) -> dict[str, Any]:
        """What Flink is told."""
        told = {"columns": self.kind.columns, "format": self.kind.format}
        return told | ({"registry": {"url": self.registry}} if self.registry else {})

    def send(self, partition: int, records: Sequence[Odd]) -> None:
        """Produce records."""
        times, keys = [one.timestamp for one in records], [one.key for one in records]
        self.produce(self.name, partition, [one.value for one in records], timestamps=times, keys=keys)

    def send_more(self, count: int = 5) -> None:
        """Produce good records that nobody has seen, and let the extract land them."""
        made = [Odd(self.kind.more(self._more + n, self.schema_id)) for n in range(count)]
        self._more += count
        self.send(0, made)
        self.records[0].extend(made)
        self.lake.land(self.name, **self.landing)

    def land_first(self, lake: Lake, partitions: Iterable[int]) -> None:
        """Let the extract land what an engine would fail at."""
        ranges = [[p, 0, len(self.records[p])] for p in partitions if self.records[p]]
        ranges = ranges or [[0, 0, 1]]
        lake.land(self.name, mode="ranges", ranges=ranges, **self.landing)

    def ends(self) -> dict[int, list[tuple[int, int]]]:
        """Return what a ledger has that has all."""
        return {p: [(0, len(part))] for p, part in enumerate(self.records) if part}

    def with_rows(self, partitions: Iterable[int]) -> list[Position]:
        """Return where an engine makes rows."""
        keeps = self.kind.tombstones == "keep"
        return [(p, n) for p in partitions for n, one in enumerate(self.records[p]) if keeps or one.value is not None]

    def assert_same(self, lake: Lake, *, whole: bool = True) -> None:
        """Assert that a lake has the extract's rows, refusals and counts.

        :param whole: all columns are looked at; else those of the records, and Kafka's time.
        """
        columns = None if whole else [*_columns(self.kind), _TIMESTAMP]
        for name in (TABLE, f"{TABLE}__rejected"):
            found, wanted = (rows(one, name, columns if name == TABLE else None) for one in (lake, self.lake))
            assert sorted(found) == sorted(wanted), name
            different = [(at, found[at], row) for at, row in wanted.items() if found[at] != row]
            assert different[:5] == [], name
        assert lake.landed(self.name) == self.lake.landed(self.name) == self.ends()
        assert lake.entry(self.name).counts == self.lake.entry(self.name).counts


def _columns(kind: Kind) -> list[str]:
    return [one.name for one in parse_schema(kind.columns).fields]


def rows(lake: Lake, name: str, columns: Sequence[str] | None = None) -> dict[Position, dict[str, str]]:
    """Return a table's rows by position, each value as text; none without a table."""
    try:
        found = lake.table(name).scan().to_arrow()
    except NoSuchTableError:
        return {}
    return texts(found, columns or [one for one in found.column_names if one not in _OWN])


def texts(table: pa.Table, columns: Sequence[str]) -> dict[Position, dict[str, str]]:
    """Return rows by position, each value as text: times are numbers, of which Python has none for some."""
    values = [_texts(table[name].combine_chunks()) for name in columns]
    positions = list(zip(table[PARTITION].to_pylist(), table["_kafka_offset"].to_pylist(), strict=True))
    made = [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]
    found = dict(zip(positions, made, strict=True))
    assert len(found) == len(positions), "rows of a record twice"
    return found


def _texts(column: pa.Array) -> list[str]:
    entries = arrow.is_map(column.type)
    found = column.cast(_plain(column.type)).to_pylist()
    # The entries of a map have no order.
    return [_text(sorted(one) if entries and one is not None else one) for one in found]


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type with numbers in the place of times, and bytes in that of texts: Flink's may be no UTF-8."""
    if arrow.is_string(kind) or arrow.is_large_string(kind):
        return pa.binary()
    if arrow.is_timestamp(kind):
        return pa.int64()
    if arrow.is_date32(kind):
        return pa.int32()
    if arrow.is_struct(kind):
        return pa.struct([one.with_type(_plain(one.type)) for one in kind])
    if arrow.is_list(kind) or arrow.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)))
    return kind


def _text(value: Any) -> str:
    # NaN is equal to itself so, and 0.0 to -0.0.
    if isinstance(value, float):
        return repr(value + 0.0)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {_text(one)}' for name, one in value.items())}}}"
    return repr(value)


@dataclass
class Verdicts:
    """What the proof says of an engine's rows in a branch, and what is so."""

    one: OneTopic
    lake: Lake
    rows: pa.Table
    proof: RowProof

    def check(self, partitions: Sequence[int]) -> dict[str | bytes | None, str]:
        """Assert that a record is refused exactly if the extract makes something else of it; return which are, and why.

        :param partitions: those that the engine has read.
        """
        columns = [*_columns(self.one.kind), _TIMESTAMP]
        ours = {at: row for at, row in rows(self.one.lake, TABLE, columns).items() if at[0] in partitions}
        theirs = texts(self.rows, columns)
        assert sorted(theirs) == self.one.with_rows(partitions)
        different = {
            at: [name for name in columns if row[name] != theirs[at][name]]
            for at, row in ours.items()
            if row != theirs[at]
        }
        found = {self._value(at): ", ".join(names) for at, names in different.items()}
        for p, offset in [at for at in theirs if at not in ours][:500]:
            with pytest.raises(BadRecord, match=rf"\[{p}\] offset {offset}: ") as bad:
                self._look([(p, offset)])
            found[self._value((p, offset))] = bad.value.reason
        looked = self._look(ours)
        assert looked.different == self._ranges(different)
        assert looked.equal == self._ranges(set(ours) - set(different))
        named = {(one.partition, one.offset): list(one.columns) for one in looked.named}
        assert named.items() <= different.items()
        assert len(named) == min(5, len(different))
        return found

    def _value(self, at: Position) -> str | bytes | None:
        return self.one.records[at[0]][at[1]].value

    def _ranges(self, positions: Iterable[Position]) -> RangeSet:
        by_partition = dict[int, list[int]]()
        for p, offset in positions:
            by_partition.setdefault(p, []).append(offset)
        return union(
            ranges_of((self.one.name, p), np.array(sorted(offsets), np.int64)) for p, offsets in by_partition.items()
        )

    def _look(self, positions: Iterable[Position]) -> ProofResult:
        ranges = self._ranges(positions)
        state = KafkaSource(self.lake.kafka, self.one.name, "verdicts", StartAt(), "the broker").look()
        of_these = is_hit(self.rows, ranges)
        written = EngineOutput(lambda: iter([self.rows.filter(of_these)]), arrow_schema(self.lake.table().schema()))
        return self.proof.check(ranges, written, state, threading.Event())
