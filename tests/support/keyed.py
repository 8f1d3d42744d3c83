"""A database's table whose key may be there twice within a transaction, and the events that Debezium makes of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_lakestream.cdc.stops import MirrorStopped, StopReason
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.policies import OnError
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.rows import RowDecoderFactory
from tests.support.mirroring import IDENTITY, Event, HandDeltaMirror, HandMirror, landing_of

Row = dict[str, Any]


@dataclass
class Source:
    """Writes change events in JSON; `key` are the columns of the records' keys, none without a primary key."""

    key: Sequence[str] = ("id",)
    table: str = "orders"
    place: int = 0
    transaction: int = 0

    def begin(self) -> None:
        """Begin the next transaction."""
        self.transaction += 1
        self._commit = self.place = self.place + 10

    def event(
        self, op: str, before: Row | None, after: Row | None, *, moves: bool = True, snapshot: str = "false"
    ) -> Record:
        """Return an event at the next place, or at the same one; `snapshot` is what the snapshot that read it says."""
        self.place += moves
        source = {
            "db": "shop",
            "schema": "public",
            "table": self.table,
            "txId": self.transaction,
            "ts_ms": 1,
            "snapshot": snapshot,
        }
        source |= {"sequence": json.dumps([str(self._commit), str(self.place)]), "lsn": self.place}
        row = after or before or {}
        key = json.dumps({name: row.get(name) for name in self.key}).encode() if self.key and op != "t" else None
        event = {"before": before, "after": after, "source": source, "op": op}
        value = json.dumps(event, separators=(",", ":")).encode()
        return Record(key, value)

    def change(self, before: Row | None, after: Row | None) -> list[Record]:
        """Return the events of one change of a row, as the database sends it with REPLICA IDENTITY FULL."""
        if before is None or after is None:
            return [self.event("d" if after is None else "c", before, after)]
        if any(before[name] != after[name] for name in self.key):
            return [self.event("d", before, None), self.event("c", None, after, moves=False)]
        return [self.event("u", before, after)]


@dataclass(frozen=True)
class Record:
    """One record of the topic; without an offset it is at the next one."""

    key: bytes | None
    value: bytes | None
    partition: int = 0
    offset: int | None = None


@dataclass
class Follower:
    """A mirror that is given records as they are, and decodes them."""

    mirror: HandMirror
    settings: dict[str, Any] = field(default_factory=dict)
    # Of the next record, by partition.
    offsets: dict[int, int] = field(default_factory=dict)

    def land(self, records: Sequence[Record]) -> None:
        """Land records in one commit."""
        config = MirrorConfig(topic=IDENTITY.topic, table="lake.orders", consumer_group="g", **self.settings)
        self.mirror.design = config.mirror
        sink = self.mirror.sink()
        try:
            self._land(config, sink, records)
        except BaseException:
            sink.discard()
            raise

    def _land(self, config: MirrorConfig, sink: Any, records: Sequence[Record]) -> None:
        schema, placed = sink.load("run").schema, list[Record]()
        for partition in sorted({one.partition for one in records}):
            first = self.offsets.get(partition, 0)
            own = [one for one in records if one.partition == partition]
            placed += [replace(one, offset=first + at) if one.offset is None else one for at, one in enumerate(own)]
        places = write(self.mirror, config, sink, schema, placed)
        sink.commit(landing_of(places))
        for one in places:
            self.offsets[one.partition] = one.offset + 1

    def rows(self) -> list[Row]:
        """Return the rows that are not deleted, without what is beside them."""
        found = [row for row in self.mirror.found() if not row.get("_is_deleted")]
        beside = ("_cdc_", "_kafka_", "_is_deleted")
        return [{name: value for name, value in row.items() if not name.startswith(beside)} for row in found]


def write(mirror: HandMirror, config: MirrorConfig, sink: Any, schema: Any, records: Sequence[Record]) -> list[Event]:
    """Decode records, each with its offset, and write their rows; return their places, by partition.

    :param schema: the columns of the table, from the state that the sink has loaded.
    """
    metadata, tombstones = tuple(config.metadata_columns), config.tombstone_policy
    decoders = RowDecoderFactory(config.payload, metadata, None, OnError.FAIL, tombstones)
    places = list[Event]()
    for partition in sorted({one.partition for one in records}):
        own = [one for one in records if one.partition == partition]
        values, keys = (pa.array([getattr(one, name) for one in own], pa.binary()) for name in ("value", "key"))
        offsets = [one.offset for one in own if one.offset is not None]
        raw = RawBatch(IDENTITY.topic, partition, offsets, [-1] * len(own), values, keys)
        decoder = decoders(schema, raw)
        assert decoder is not None or all(one.value is None for one in own), "tombstones alone show no columns"
        if decoder is not None:
            mirror.take(sink, decoder.decode(raw).rows)
        places += [Event("c", 0, None, 0, 0, partition=partition, offset=offset) for offset in offsets]
    return places


def stopped(follower: Follower, records: list[Record], reason: StopReason, match: str) -> None:
    """Assert that records stop a mirror, which stays as it was and leaves nothing behind."""
    mirror = follower.mirror
    folder = Path(mirror.place) if isinstance(mirror, HandDeltaMirror) else Path(mirror.table().location()[7:])
    before, files = follower.rows(), sorted(folder.rglob("*.parquet"))
    with pytest.raises(MirrorStopped, match=match) as raised:
        follower.land(records)
    assert raised.value.reason is reason
    assert (follower.rows(), sorted(folder.rglob("*.parquet"))) == (before, files)
