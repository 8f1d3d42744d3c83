"""The extract path over a play's topics: each event is a row or a rejected record; the last of each key is the row."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition

from airflow_lakestream.exceptions import InvalidArgument, LakestreamError
from tests.support.delta_lake import DeltaLake
from tests.support.hostile.changes import Sql
from tests.support.hostile.oracle import compared_columns, database_rows, row_differences, rows_of, values_of
from tests.support.hostile.schema import NOT_IN_DELTA, HostileTable
from tests.support.lake import Lake

LANDING: dict[str, Any] = {
    "envelope": "debezium",
    "on_error": "reject",
    # As many as there are: a play is mostly odd.
    "max_rejected": 1.0,
    "metadata_columns": ["partition", "offset"],
}


# Names that parts of the event, and the record's place, have in the extract's tables.
OWN_COLUMNS = {f"_{name}" for name in ("op", "ts_ms", "ts_us", "ts_ns", "source", "before", "after", "transaction")} | {
    f"_kafka_{name}" for name in LANDING["metadata_columns"]
}


@dataclass(frozen=True)
class Record:
    """What a look at the topic, without any of our decoders, says of one record."""

    key: str
    op: str | None


def records_of(kafka: dict[str, Any], topic: str) -> dict[int, Record]:
    """Read a topic of one partition, by offset."""
    consumer = Consumer({**kafka, "group.id": "look", "log_level": 0})
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=15)
        consumer.assign([TopicPartition(topic, 0, low)])
        found: dict[int, Record] = {}
        while len(found) < high - low:
            for message in consumer.consume(1_000, 1):
                held = json.loads(message.value())["payload"] if message.value() else None
                key = json.dumps(json.loads(message.key())["payload"]) if message.key() else ""
                found[message.offset()] = Record(key, held["op"] if held else None)
        return found
    finally:
        consumer.close()


@dataclass
class Extract:
    """Lands topics of a play in either format, with nothing but the extract path."""

    sql: Sql
    lake: Lake
    folder: Path
    # Whether there was no connector for a time: what was deleted then is in no event.
    was_anew: bool = False
    figures: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def look_at(self, table: HostileTable, *, is_there: bool) -> None:
        """Land the table's topic; `is_there` says that the database has the table, and all of its events are sent."""
        records = records_of(self.lake.kafka, table.topic)
        theirs = database_rows(self.sql, table) if is_there else {}
        for is_delta in (False, True):
            lake = DeltaLake(self.folder / uuid.uuid4().hex, self.lake.kafka) if is_delta else self.lake
            name = lake.place if isinstance(lake, DeltaLake) else f"extract.t{uuid.uuid4().hex[:8]}"
            what = f"{table.topic} in {'Delta' if is_delta else 'Iceberg'}"
            try:
                report = lake.land(table.topic, table=name, **LANDING)
            except InvalidArgument as e:
                # Names and types that Delta has not, or that stand for parts of the event: refused, and nothing landed.
                if not _may_be_refused(table, is_delta=is_delta):
                    self.failures.append(f"{what}: {e}")
                self.figures["refused"] += 1
                continue
            except LakestreamError as e:
                self.failures.append(f"{what}: {type(e).__name__}: {e}")
                continue
            rows, rejected = _landed(lake, name)
            self.figures.update(records=len(records), rows=len(rows), rejected=len(rejected), landings=1)
            places = sorted([*rows["_kafka_offset"].to_pylist(), *rejected])
            if places != sorted(records) or report.counts.read != len(records):
                self.failures.append(f"{what}: {len(records)} records came to {len(places)} rows and rejected records")
            is_told = is_there and set(table.key) <= set(rows.column_names)
            differences = self._last_of_each(table, records, rows, theirs) if is_told else []
            if differences:
                self.failures.append(f"{what}: {len(differences)} differences, {differences[:4]}")

    def _last_of_each(
        self, table: HostileTable, records: dict[int, Record], rows: pa.Table, theirs: dict[Any, Any]
    ) -> list[str]:
        """Compare the row of each key's last event with what the database has."""
        last: dict[str, int] = {}
        for offset, one in sorted(records.items()):
            if one.op == "t":
                last = {}
            elif one.op is not None:
                last[one.key] = offset
        wanted = {offset for offset in last.values() if records[offset].op != "d"}
        # A column that the first events did not have is none of the table's.
        columns = [one for one in compared_columns(table) if one.name in rows.column_names]
        values = {one.name: list(values_of(one, rows)) for one in columns}
        found: list[str] = []
        for at, offset in enumerate(rows["_kafka_offset"].to_pylist()):
            if offset in wanted:
                ours = {name: held[at] for name, held in values.items()}
                key = tuple(ours[name] for name in table.key)
                if key not in theirs and self.was_anew:
                    continue
                if key not in theirs:
                    found.append(f"offset {offset}: the database has no row {key}")
                    continue
                self.figures["last events"] += 1
                found += row_differences(columns, _as_sent(theirs[key], ours), ours, f"offset {offset}")
        return found


_UNAVAILABLE = "__debezium_unavailable_value"
# The same as bytes, in an array of numbers and in one of days.
_AS_SAID = (_UNAVAILABLE, _UNAVAILABLE.encode().hex(), str(list(_UNAVAILABLE.encode())))


def _as_sent(theirs: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """Return what the event could say: of values that are kept outside the row, only that they are."""

    def is_left_out(value: Any) -> bool:
        return any(said in str(value) for said in _AS_SAID)

    # A column that was added later is none of the table's.
    return {name: ours[name] if is_left_out(ours[name]) else theirs[name] for name in ours if name in theirs}


def _may_be_refused(table: HostileTable, *, is_delta: bool) -> bool:
    if any(name in OWN_COLUMNS for name in table.names):
        return True
    return is_delta and (bool(NOT_IN_DELTA & set("".join(table.names))) or table.has_had_others_than_delta)


def _landed(lake: Lake, name: str) -> tuple[pa.Table, list[int]]:
    """Return the rows, and the offsets of the rejected records."""
    if isinstance(lake, DeltaLake):
        return lake.scan(), [offset for (offset,) in lake.rejected("_kafka_offset")]
    beside = f"{name}__rejected"
    rejected = rows_of(lake.table(beside)) if lake.catalog().table_exists(beside) else None
    return rows_of(lake.table(name)), rejected["_kafka_offset"].to_pylist() if rejected is not None else []
