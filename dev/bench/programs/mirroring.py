"""A mirror of many rows is made, then change events are merged into it, as an executor and the driver do; phases timed.

No broker and no Spark: events come from memory, in the batches that Spark would hand over. The table may also be one by
key of plain records, or have the history of its rows.
"""

from __future__ import annotations

import argparse
import logging
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_lakestream.cdc import mirror as mirror_module
from airflow_lakestream.cdc.columns import TIME
from airflow_lakestream.cdc.events.taken import CommitEvents
from airflow_lakestream.cdc.merge.merge import BatchMerger
from airflow_lakestream.cdc.mirror import Mirror
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.ledger import Counts, Landing, TopicEntry, TopicIdentity
from airflow_lakestream.core.policies import OnError
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.rows import RowDecoderFactory
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.iceberg.upkeep.reads import live_rows
from dev.bench.lake import Lake
from dev.bench.programs.measured import BATCH, Work, write_result
from dev.bench.shop import changes, orders, records

# So many rows of the first state are written in one commit.
_AT_ONCE = 500_000
# As many records as Spark hands over at once.
_RECORDS = 20_000
_IDENTITY = TopicIdentity("shop.public.orders", "topic-id", "cluster-id")
Take = Callable[..., Mapping[str, Any]]
DECODE = "decode (executors)"
# Arguments of the mirror, by the kind of table.
KINDS: Mapping[str, Mapping[str, Any]] = {
    "events": {},
    "records": {"envelope": None},
    "history": {"history": True},
    "columns": {"history": True, "history_columns": ["state"]},
}
# Each is a part of the batch, and of no other one.
PHASES: tuple[tuple[Any, str, str], ...] = (
    (mirror_module, "read_bare", "read handover"),
    (CommitEvents, "joined", "read handover"),
    (mirror_module, "newest_of_events", "last events"),
    (mirror_module, "plain_records", "last events"),
    (BatchMerger, "_looked_up", "find rows"),
    (BatchMerger, "_old_rows", "values left out"),
    (BatchMerger, "_incoming", "new rows"),
    (BatchMerger, "_write", "files written, rows deleted in place"),
    (BatchMerger, "remember", "deletions remembered"),
)


class Phases:
    """Seconds and CPU seconds of calls, by batch."""

    def __init__(self) -> None:
        self.batches: list[dict[str, list[float]]] = []
        self._now: dict[str, list[float]] = {}

    def watch(self, owner: Any, name: str, phase: str) -> None:
        """Take the time of a function from now on."""
        setattr(owner, name, self.timed(getattr(owner, name), phase))

    def timed(self, original: Callable[..., Any], phase: str) -> Callable[..., Any]:
        """Return a function whose time is taken."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if phase == BATCH:
                self._now = defaultdict(lambda: [0.0, 0.0])
            work = Work()
            with work:
                found = original(*args, **kwargs)
            self._now[phase][0] += work.seconds
            self._now[phase][1] += work.cpu_seconds
            if phase == BATCH:
                self.batches.append(dict(self._now))
            return found

        return call


def main() -> None:
    """Make the mirror, and merge the batches."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--changes", type=int, required=True)
    parser.add_argument("--batches", type=int, required=True)
    parser.add_argument("--recent", action="store_true")
    parser.add_argument("--kind", choices=KINDS, default="events")
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    lake, phases = Lake(args.folder), Phases()
    config = MirrorConfig(
        topic=_IDENTITY.topic, table=args.table, consumer_group="bench", key=["id"], **KINDS[args.kind]
    )
    make(lake, config, args.rows)
    for owner, name, phase in PHASES:
        phases.watch(owner, name, phase)
    land, take = phases.timed(land_batch, BATCH), phases.timed(decode, DECODE)
    # Without a sequence the offsets of plain records decide.
    offset = args.rows
    log = _log(args, plain=config.is_of_records)
    while part := list(islice(log, args.changes)):
        keys, values = zip(*part, strict=True)
        land(lake, config, list(raw_batches(values, offset, keys)), take)
        offset += len(part)
    table = lake.catalog().load_table(args.table)
    head = table.current_snapshot()
    assert head is not None
    assert head.summary is not None
    told = {"rows": live_rows(table), "files": int(head.summary["total-data-files"] or 0)}
    write_result(args.result, {"batches": phases.batches, **told})


def _log(args: argparse.Namespace, *, plain: bool) -> Iterator[tuple[bytes | None, bytes | None]]:
    count = args.changes * args.batches
    if plain:
        return records(args.rows, count)
    return ((None, value) for value in changes(args.rows, count, recent=args.recent))


def raw_batches(
    values: Sequence[bytes | None], offset: int, keys: Sequence[bytes | None] | None = None
) -> Iterator[RawBatch]:
    """Yield records as a reader does."""
    for start in range(0, len(values), _RECORDS):
        part, own = values[start : start + _RECORDS], (keys or [None] * len(values))[start : start + _RECORDS]
        offsets = range(offset + start, offset + start + len(part))
        arrays = (pa.array(column, pa.binary()) for column in (part, own))
        yield RawBatch(_IDENTITY.topic, 0, offsets, offsets, *arrays)


def land_batch(lake: Lake, config: MirrorConfig, batches: Sequence[RawBatch], take: Take) -> None:
    """Decode and merge one batch."""
    run, sink = uuid.uuid4().hex, sink_of(lake, config)
    sink.load(run)
    sink.take_over(take(config, sink.outline(), batches))
    first, count = batches[0].offsets[0], sum(map(len, batches))
    counts = Counts(read=count, written=count)
    entry = TopicEntry(landed=RangeSet.of(_IDENTITY.topic, 0, first, first + count), counts=counts)
    sink.commit(Landing(run, run, {_IDENTITY: entry}, {_IDENTITY: {0: counts}}))


def decode(config: MirrorConfig, outline: Any, batches: Sequence[RawBatch]) -> Mapping[str, Any]:
    """Decode records and write them down for the driver, as a task does."""
    sink = IcebergSink(outline, outline.name, config.consumer_group, config.design, allow_group_overlap=True)
    metadata = tuple(config.metadata_columns)
    decoders = RowDecoderFactory(config.payload, metadata, None, OnError.FAIL, config.tombstone_policy)
    decoder = decoders(sink.load("task").schema, None)
    assert decoder is not None, "there is a schema"
    for batch in batches:
        sink.write(decoder.decode(batch).rows, _IDENTITY)
    return sink.hand_over()


def sink_of(lake: Lake, config: MirrorConfig) -> Mirror:
    """Return the mirror's sink, as a run opens it."""
    opened = lake.catalog() if config.lake.format == "iceberg" else DeltaStorage()
    sink: Mirror = config.lake.part("mirror")(opened, config.table, config.consumer_group, config.mirror)
    return sink


def make(lake: Lake, config: MirrorConfig, rows: int) -> None:
    """Write the rows that Debezium's first snapshot would have read, in the order of their key."""
    sink = sink_of(lake, config)
    nowhere = TopicIdentity("", "", "")
    for start in range(0, rows, _AT_ONCE):
        count = min(_AT_ONCE, rows - start)
        name = uuid.uuid4().hex
        sink.load(name)
        beside = {
            "_op": pa.repeat("r", count),
            "_cdc_commit": pa.repeat(0 if config.is_of_records else 1, count),
            "_cdc_position": pa.repeat(0, count),
            "_kafka_partition": pa.repeat(pa.scalar(0, pa.int32()), count),
            "_kafka_offset": pa.array(np.arange(start, start + count)),
        }
        beside |= {TIME: pa.repeat(0, count)} if config.history else {}
        part = orders(np.arange(start, start + count))
        sink.write(pa.table({**dict(zip(part.column_names, part.columns, strict=True)), **beside}), nowhere)
        sink.commit(Landing(name, name, {}))


if __name__ == "__main__":
    main()
