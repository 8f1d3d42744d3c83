"""A mirror in a folder of the test, events made by hand, and the slow way to say what they come to."""

from __future__ import annotations

import itertools
import json
import pickle
import uuid
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from airflow_lakestream.cdc import delta, iceberg
from airflow_lakestream.cdc.columns import DELETED, KEY_NAMES, LEAVES_OUT, UNAVAILABLE
from airflow_lakestream.cdc.design import MirrorDesign
from airflow_lakestream.cdc.events.decoder import with_log_positions
from airflow_lakestream.cdc.events.notes import with_notes
from airflow_lakestream.cdc.merge.pool import MergePool, MergeThreads, MergeWork
from airflow_lakestream.cdc.rows import RowStrategy
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.ledger import Counts, Landing, TopicEntry, TopicIdentity
from airflow_lakestream.core.policies import MergeMode
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.delta.sink import DeltaSink
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.iceberg.upkeep.reads import live_rows
from airflow_lakestream.tables.design import TableDesign
from tests.support.delta_table import live_files

IDENTITY = TopicIdentity("shop.public.orders", "topic-id", "cluster")
TABLE = "lake.orders"

Values = tuple[Any, Any]


@dataclass(frozen=True)
class Event:
    """One change event: what happened to which key, where in the source, and where in the topic."""

    op: str
    key: int | None
    values: Values | None
    commit: int
    position: int
    partition: int = 0
    offset: int = 0
    # What Debezium marks a row with that a snapshot has read.
    snapshot: str | None = None

    @property
    def version(self) -> tuple[int, ...]:
        """What says which of two is the later one."""
        return (self.commit, self.position, self.partition, self.offset)


SOURCE = pa.struct([("sequence", pa.string()), ("lsn", pa.int64()), ("ts_ms", pa.int64()), ("snapshot", pa.string())])


@dataclass(frozen=True)
class Kind:
    """A type of the column `big`, and how its values are made of text, as Debezium makes them, and read back."""

    type: pa.DataType
    encode: Callable[[str], Any]
    decode: Callable[[Any], str]


_DAY_ZERO = date(1970, 1, 1)
# As Java makes it of the text.
_UUID = uuid.UUID("b68a35a7-17ad-35b3-af2a-ae46edb4545a").bytes
# Of each type that Debezium has a way for to say that a value is left out. Arrays of numbers have the text's bytes.
KINDS = {
    "text": Kind(pa.string(), str, str),
    "bytes": Kind(pa.binary(), str.encode, bytes.decode),
    "bytes as text": Kind(
        pa.string(), lambda text: b64encode(text.encode()).decode(), lambda text: b64decode(text).decode()
    ),
    "bytes as digits": Kind(pa.string(), lambda text: text.encode().hex(), lambda text: bytes.fromhex(text).decode()),
    "hstore": Kind(pa.string(), lambda text: f'{{"{text}":"{text}"}}', lambda text: next(iter(json.loads(text)))),
    "map": Kind(pa.map_(pa.string(), pa.string()), lambda text: [(text, text)], lambda pairs: pairs[0][0]),
    "texts": Kind(pa.list_(pa.string()), lambda text: [text], lambda texts: texts[0]),
    "of bytes": Kind(pa.list_(pa.binary()), lambda text: [text.encode()], lambda found: found[0].decode()),
    "uuids": Kind(
        pa.list_(pa.string()),
        lambda text: ["b68a35a7-17ad-35b3-af2a-ae46edb4545a" if text == UNAVAILABLE else text],
        lambda texts: texts[0],
    ),
    "uuids of their own type": Kind(
        pa.list_(pa.uuid()),
        lambda text: [_UUID if text == UNAVAILABLE else text.encode().ljust(16)],
        lambda found: found[0].bytes.decode().strip(),
    ),
    "int32": Kind(pa.list_(pa.int32()), lambda text: list(text.encode()), lambda found: bytes(found).decode()),
    "int64": Kind(pa.list_(pa.int64()), lambda text: list(text.encode()), lambda found: bytes(found).decode()),
    "dates": Kind(
        pa.list_(pa.date32()),
        lambda text: [_DAY_ZERO + timedelta(days=one) for one in text.encode()],
        lambda days: bytes((one - _DAY_ZERO).days for one in days).decode(),
    ),
}


def rows_of(events: Iterable[Event], kind: Kind) -> pa.Table:
    """Return events as the decoder gives them."""
    columns = {
        "id": pa.int64(),
        "name": pa.string(),
        "big": kind.type,
        "_op": pa.string(),
        "_source": SOURCE,
        "_kafka_partition": pa.int32(),
        "_kafka_offset": pa.int64(),
    }
    # Arrow makes no arrays of UUIDs of Python's.
    plain = pa.list_(pa.binary(16)) if kind.type == pa.list_(pa.uuid()) else kind.type
    rows = pa.Table.from_pylist(
        [
            {
                "id": one.key,
                "name": one.values[0] if one.values else None,
                "big": kind.encode(one.values[1]) if one.values else None,
                "_op": one.op,
                "_source": {
                    "sequence": f'["{one.commit}","{one.position}"]',
                    "lsn": one.position,
                    "ts_ms": 1,
                    "snapshot": one.snapshot,
                },
                "_kafka_partition": one.partition,
                "_kafka_offset": one.offset,
            }
            for one in events
        ],
        pa.schema(list((columns | {"big": plain}).items())),
    )
    return with_log_positions(rows.cast(pa.schema(list(columns.items()))))


def come_to(events: Iterable[Event]) -> dict[int, Values]:
    """Return the rows that events come to, one after the other in the order of the source."""
    return _come_to(events)[0]


def deleted_by(events: Iterable[Event]) -> dict[int, Values]:
    """Return the rows that were deleted, and are not there again, with the values that they had last."""
    return _come_to(events)[1]


def _come_to(events: Iterable[Event]) -> tuple[dict[int, Values], dict[int, Values]]:
    rows: dict[int, Values] = {}
    gone: dict[int, Values] = {}
    moved: dict[tuple[int, int], Values] = {}
    for one in sorted(set(events), key=lambda one: one.version):
        if one.op == "t":
            gone |= rows
            rows = {}
        elif one.op == "d":
            assert one.key is not None
            last = rows.pop(one.key, None) or gone.get(one.key, (None, None))
            moved[one.commit, one.position] = gone[one.key] = last
        else:
            assert one.key is not None
            before = rows.get(one.key) or moved.get((one.commit, one.position), (None, None))
            name, big = one.values or (None, None)
            rows[one.key] = (name, before[1] if big == UNAVAILABLE else big)
            gone.pop(one.key, None)
    return rows, gone


class Elsewhere:
    """Hands of other processes, to which everything goes as bytes."""

    def __init__(self) -> None:
        self.works = set[str]()

    def do(self, *works: MergeWork) -> Sequence[list[Any]]:
        return [[self._do(pickle.dumps(work.do), pickle.dumps(item)) for item in work.items] for work in works]

    def _do(self, what: bytes, item: bytes) -> Any:
        do = pickle.loads(what)
        self.works.add(type(do).__name__)
        return pickle.loads(pickle.dumps(do(pickle.loads(item))))


class HandMirror:
    """One mirror, landed into by hand."""

    def __init__(
        self,
        folder: Path,
        *,
        soft_delete: bool = False,
        kind: str = "text",
        modes: Sequence[MergeMode] = (MergeMode.AUTO,),
        pool: MergePool | None = None,
        executors: int = 0,
        **properties: str,
    ) -> None:
        folder.mkdir(exist_ok=True)
        # So many write the events of a batch into files, once the mirror is there.
        self.executors = executors
        # As an audit, which may lack the first events, takes values that were left out.
        self.borrowed: Any = None
        self._modes, self._pool = itertools.cycle(modes), pool or MergeThreads()
        self.catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
        table = TableDesign(metadata=pa.schema([]), properties=properties)
        self.kind = KINDS[kind]
        self.design = MirrorDesign(table, key=("id",), rows=RowStrategy.of(soft_delete=soft_delete))

    def sink(self) -> Any:
        """Return a sink of its own, such as another process would have; each merges in the next one of the modes."""
        sink = self._sink(replace(self.design, merge_mode=next(self._modes)))
        sink.table.pool, sink.table.borrowed = self._pool, self.borrowed
        return sink

    def _sink(self, design: MirrorDesign) -> Any:
        return iceberg.mirror_sink(self.catalog, TABLE, "g", design)

    def land(self, events: Sequence[Event], sink: Any = None) -> int:
        """Land events in one commit."""
        sink = sink or self.sink()
        sink.load("run")
        self.take(sink, rows_of(events, self.kind))
        return sink.commit(landing_of(events))

    def take(self, sink: Any, rows: pa.Table) -> None:
        """Let a sink have events, by way of executors if there are some."""
        if not self.executors or not sink.table.is_known:
            sink.write(rows, IDENTITY)
            return
        if KEY_NAMES not in rows.column_names:
            rows = rows.append_column(KEY_NAMES, pa.repeat('["id"]', len(rows)))
        ends = [len(rows) * number // self.executors for number in range(self.executors + 1)]
        for start, end in itertools.pairwise(ends):
            part = rows.slice(start, end - start)
            executor = self.executor(sink.outline())
            executor.load("task")
            executor.write_below("run")
            executor.write(part if LEAVES_OUT in part.column_names else with_notes(part, ()), IDENTITY)
            sink.take_over(executor.hand_over())

    def executor(self, outline: Any) -> Any:
        """Return the sink that an executor writes events with."""
        return IcebergSink(outline, outline.name, "g", _of_executor(TABLE, "iceberg"), allow_group_overlap=True)

    def table(self) -> Table:
        """Load the table anew."""
        return self.catalog.load_table(TABLE)

    def keys_by_file(self) -> list[list[int]]:
        """Return the keys that each data file has."""
        table = self.table()
        files = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
        return _keys_in(files)

    def rows(self) -> dict[int, Values]:
        """Return the rows that are not deleted; each key once, or it is an error."""
        return self._rows(deleted=False)

    def deleted(self) -> dict[int, Values]:
        """Return the rows that stay, marked."""
        return self._rows(deleted=True)

    def found(self) -> list[dict[str, Any]]:
        """Return the table's rows as they are."""
        table = self.table()
        # PyIceberg can't make a table of no rows that has a column of UUIDs.
        return table.scan().to_arrow().to_pylist() if live_rows(table) else []

    def _rows(self, *, deleted: bool) -> dict[int, Values]:
        found = [row for row in self.found() if row.get(DELETED, False) == deleted]
        bigs = [None if row["big"] is None else self.kind.decode(row["big"]) for row in found]
        rows = {row["id"]: (row["name"], big) for row, big in zip(found, bigs, strict=True)}
        assert len(rows) == len(found), "a key is there twice"
        return rows


class HandDeltaMirror(HandMirror):
    """The same in a Delta table, which is read without any of its libraries."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder, **settings)
        self.place = str(folder / "orders")

    def _sink(self, design: MirrorDesign) -> Any:
        return delta.mirror_sink(DeltaStorage(), self.place, "g", design)

    def executor(self, outline: Any) -> Any:
        """Return the sink that an executor writes events with."""
        return DeltaSink(outline, outline.table, "g", _of_executor(self.place, "delta"), allow_group_overlap=True)

    def found(self) -> list[dict[str, Any]]:
        """Return the table's rows as they are."""
        return [row for path in self._paths() for row in pq.read_table(path).to_pylist()]

    def keys_by_file(self) -> list[list[int]]:
        """Return the keys that each data file has."""
        return _keys_in(self._paths())

    def _paths(self) -> list[str]:
        return [str(Path(self.place, path)) for path in live_files(self.place)]


def _of_executor(table: str, kind: str) -> TableDesign:
    return MirrorConfig(topic="t", table=table, consumer_group="g", key=["id"], table_format=kind).design


def _keys_in(files: Iterable[str]) -> list[list[int]]:
    return [pq.read_table(file, columns=["id"])["id"].to_pylist() for file in files]


def landing_of(events: Iterable[Event]) -> Landing:
    """Return the landing of exactly these events."""
    counts: dict[int, Counts] = {}
    for one in events:
        counts[one.partition] = counts.get(one.partition, Counts()) + Counts(read=1, written=1)
    ranges = RangeSet(OffsetRange(IDENTITY.topic, one.partition, one.offset, one.offset + 1) for one in events)
    entry = TopicEntry(landed=ranges, counts=sum(counts.values(), Counts()))
    return Landing(uuid.uuid4().hex, "run", {IDENTITY: entry}, {IDENTITY: counts})


def again(events: Sequence[Event], offset: int) -> list[Event]:
    """Return events as a connector that was restarted sends them once more."""
    return [replace(one, offset=offset + number) for number, one in enumerate(events)]
