"""What an executor does with the records that Spark reads for it: our decoders, our writer; nothing is committed.

Sent to the executors by pickle. No pyspark in here, no Kafka and no catalog: records come as Arrow, and the table to
write for as an outline.
"""

from __future__ import annotations

import itertools
import pickle
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_lakestream.core.ledger import Counts, TopicIdentity
from airflow_lakestream.core.ports import Decoder
from airflow_lakestream.core.processes import Failed
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.metadata import metadata_schema
from airflow_lakestream.decode.rejected import RECORD_SCHEMA
from airflow_lakestream.decode.rows import RowDecoders
from airflow_lakestream.delta_design import delta_design
from airflow_lakestream.exceptions import LakestreamError
from airflow_lakestream.iceberg.design import TableDesign
from airflow_lakestream.iceberg.handover import Outline
from airflow_lakestream.iceberg.rejects import RejectingSink as IcebergRejectingSink
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.rejects.sink import RejectingSink

# The one column of what a task returns: `Told` or `Failed`, pickled.
TOLD = pa.schema([("told", pa.binary())])
# The columns that a task is given; the last two only where they are needed.
PARTITION, OFFSET, MILLIS, VALUE, KEY, HEADERS = "partition", "offset", "millis", "value", "key", "headers"
# Spark's own type says of each part whether it may be null, too.
_HEADERS_TYPE = metadata_schema(["headers"]).field(0).type


@dataclass
class Told:
    """What became of the records of one task.

    `counts` by partition; `spans` the first and the last offset read, by partition; `size` in bytes; `files` as
    `core.ports.Sink.hand_over` has them, None without any record.
    """

    counts: dict[int, Counts] = field(default_factory=dict)
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    size: int = 0
    files: Mapping[str, Any] | None = None

    def add(self, batch: RawBatch, counts: Counts) -> None:
        """Count a batch."""
        p = batch.partition
        first, last = int(batch.offsets[0]), int(batch.offsets[-1])
        known = self.spans.get(p, (first, last))
        self.counts[p] = self.counts.get(p, Counts()) + counts
        self.spans[p] = min(first, known[0]), max(last, known[1])
        self.size += batch.values.nbytes


@dataclass(frozen=True)
class Work:
    """What the tasks of one landing do, each with its share of the records.

    :param target: the table, as it is or is going to be.
    :param design: what the table is held to; it has all columns already, so that nothing is left to change.
    :param folder: of the table's data, for the files.
    :param passes_over: records that become no row are told, too: the files are to replace rows.
    """

    run_id: str
    identity: TopicIdentity
    consumer_group: str
    target: Any
    design: TableDesign
    decoders: RowDecoders
    folder: str
    passes_over: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read one task's records, and return what became of them. Errors of ours are returned, for the driver."""
        try:
            told: object = self._read(batches)
        except LakestreamError as e:
            # Raised here, Spark would try the task again, and bring its text back without its facts.
            told = Failed(e)
        yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(told)], pa.binary())], schema=TOLD)

    def _read(self, batches: Iterator[pa.RecordBatch]) -> Told:
        told = Told()
        first = next(batches, None)
        if first is None:
            return told
        sink = self._sink()
        try:
            table = sink.load(self.run_id)
            sink.write_below(self.folder)
            decoder = self.decoders(table.schema, None)
            assert decoder is not None, "a table that is written for has a schema"
            for batch in itertools.chain([first], batches):
                for records in raw_batches(self.identity.topic, batch):
                    self._take(records, decoder, sink, told)
            told.files = sink.hand_over()
        except BaseException:
            sink.discard()
            raise
        return told

    def _sink(self) -> RejectingSink:
        # Spark tasks without a name of ours: a catalog that knows the one table, and no ledger to change.
        group, catalog = self.consumer_group, self.target
        if not isinstance(catalog, Outline):
            from airflow_lakestream.delta import rejects as delta_rejects
            from airflow_lakestream.delta.sink import DeltaSink

            design = delta_design(self.design)
            delta = DeltaSink(catalog, catalog.table, group, design, allow_group_overlap=True)
            return delta_rejects.RejectingSink(delta, catalog, catalog.table, group, RECORD_SCHEMA)
        known: Any = catalog
        inner = IcebergSink(known, catalog.name, group, self.design, allow_group_overlap=True)
        return IcebergRejectingSink(inner, known, catalog.name, group, RECORD_SCHEMA)

    def _take(self, records: RawBatch, decoder: Decoder, sink: RejectingSink, told: Told) -> None:
        outcome = decoder.decode(records)
        if len(outcome.rows) != outcome.counts.written or outcome.counts.read != len(records):
            raise AssertionError(f"{len(records)} records became {len(outcome.rows)} rows: {outcome.counts}")
        sink.write(outcome.rows, self.identity)
        if outcome.rejected is not None:
            sink.reject(outcome.rejected)
        if self.passes_over and outcome.rowless is not None:
            sink.pass_over(self.identity, records.partition, outcome.rowless)
        told.add(records, outcome.counts)


def raw_batches(topic: str, batch: pa.RecordBatch) -> Iterator[RawBatch]:
    """Yield the records of each partition, in offset order; Spark hands them over one partition after the other."""
    partitions = batch.column(PARTITION).to_numpy()
    offsets = batch.column(OFFSET).to_numpy()
    # A task that reads two ranges of one partition may put them into one batch.
    breaks = (np.diff(partitions) != 0) | (np.diff(offsets) <= 0)
    bounds = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(partitions)]
    names = batch.schema.names
    for start, end in itertools.pairwise(bounds):
        if start == end:
            continue
        part = batch if end - start == len(partitions) else batch.slice(start, end - start)
        yield RawBatch(
            topic,
            int(partitions[start]),
            _offsets(offsets[start:end]),
            _numbers(part.column(MILLIS).to_numpy()),
            part.column(VALUE),
            part.column(KEY) if KEY in names else None,
            part.column(HEADERS).cast(_HEADERS_TYPE) if HEADERS in names else None,
        )


def _offsets(offsets: Any) -> Sequence[int]:
    first, last = int(offsets[0]), int(offsets[-1])
    return range(first, last + 1) if last - first + 1 == len(offsets) else _numbers(offsets)


def _numbers(values: Any) -> array[int]:
    # Numbers of Python for whoever takes one, and no Python object for all others.
    return array("q", np.ascontiguousarray(values, np.int64).tobytes())


def for_executors(decoders: RowDecoders) -> RowDecoders:
    """Return the decoders as a task needs them, which has one core to itself."""
    return replace(decoders, payload=replace(decoders.payload, alone=True))
