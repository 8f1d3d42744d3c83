"""What Flink leaves to the extract, and the comparison of all other rows with the extract's.

Flink leaves out a record of which it is not sure, and one that a condition leaves out. The driver lands those offsets
by the extract's own code: it decides which of them are rows, filtered or rejected. Rows that Flink has made are
published only if the extract makes the same of the record.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace

import duckdb
import numpy as np
import pyarrow as pa
from pyiceberg.catalog import Catalog

from airflow_lakestream.core.bad_records import BadRecords, RejectLimit
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.job import Job, Stopped
from airflow_lakestream.core.landing.modes import ByRanges
from airflow_lakestream.core.landing.plan import Plan, TopicState
from airflow_lakestream.core.landing.report import LandingReport
from airflow_lakestream.core.ledger import Engine, TopicEntry, TopicIdentity, union
from airflow_lakestream.core.ports import TableState
from airflow_lakestream.core.publishing.branch import BranchFile, FileRows, Log, Shown
from airflow_lakestream.core.publishing.refusals import PublicationRefused
from airflow_lakestream.core.ranges import PartitionKey, RangeSet
from airflow_lakestream.flink.config import FlinkConfig
from airflow_lakestream.iceberg.publishing.sink import PublishingSink
from airflow_lakestream.run.job import build_job
from airflow_lakestream.run.storage import storage_errors_named
from airflow_lakestream.tables.coordinates import OFFSET, PARTITION, ranges_of

log = logging.getLogger(__name__)

# Offsets in their order, and a number for the values of each row.
_Numbers = tuple[np.ndarray[tuple[int], np.dtype[np.int64]], np.ndarray[tuple[int], np.dtype[np.uint64]]]
# A publication has bounded the share already; what is left to the extract may be bad as a whole.
_ANY = RejectLimit(share=1.0)


class RowsDiffer(PublicationRefused):
    """Flink has made another row of a record than the extract does, or a row where that makes none."""

    def __init__(self, table: str, branch: str, ranges: RangeSet) -> None:
        self.ranges = ranges
        what = f"its rows of {ranges} are others than the extract makes of these records."
        super().__init__(table, branch, what, "The extract lands what main lacks, and a new job begins behind it.")


def holes(entry: TopicEntry, topic: str, branch: str) -> RangeSet:
    """Return what the group lacks below what it has, and below what was published: left out, and not landed since."""
    marker = entry.published.get(branch)
    ends = {} if marker is None else dict(marker.ends)
    for _, p in entry.held.partitions:
        ends[p] = max(ends.get(p, 0), *(end for _, end in entry.held.intervals(topic, p)))
    whole = union(RangeSet.of(topic, p, entry.origin.get(p, 0), end) for p, end in ends.items())
    return whole - entry.held if entry.origin else RangeSet()


class LeftOut:
    """`core.publishing.branch.Log` that takes note of the records without a row: the extract lands them.

    A record without a value is one of them: whether it is a row is the extract's decision.
    """

    def __init__(self, inner: Log) -> None:
        self._inner = inner
        self.ranges = RangeSet()

    def shown(self, ranges: RangeSet, state: TopicState, stop: threading.Event) -> Shown:
        """Return what Kafka shows at these offsets. Raises Stopped."""
        found = self._inner.shown(ranges, state, stop)
        here = found.values | found.tombstones
        self.ranges |= here
        return Shown(here, RangeSet(), found.gone)


class ProvenSink(PublishingSink):
    """A table of which only rows are published that the extract makes, too; also the `Proof` of them.

    :param job: makes the extract's rows.
    :param begins: by partition, where Flink began.
    """

    job: Job
    begins: Mapping[int, int]
    _looked: TableState | None = None

    def load(self, run_id: str) -> TableState:
        """Look at the table again."""
        self._looked = super().load(run_id)
        return self._looked

    def check(self, ranges: RangeSet, state: TopicState, stop: threading.Event) -> RangeSet:
        """Make the extract's rows of these offsets, and return at which of them Kafka shows a record.

        Raises BadRecord where `on_error` is "fail", TooManyRejected, and Stopped.
        """
        topic, job = state.identity.topic, self.job
        looked = self._looked or self.load(job.run_id)
        below = {p: max(marks.low, self.begins.get(p, 0)) for p, marks in state.marks.items()}
        self._asked = ranges - union(RangeSet.of(topic, p, 0, low) for p, low in below.items())
        self._of_extract: dict[int, list[_Numbers]] = {}
        seen: dict[PartitionKey, list[np.ndarray[tuple[int], np.dtype[np.int64]]]] = {}
        read, bad, decoder = 0, BadRecords(), None
        with closing(job.reader.read(Plan(state, self._asked), stop)) as chunks:
            for chunk in chunks:
                batch = chunk.batch
                decoder = decoder or job.decoders(looked.schema, batch)
                seen.setdefault((batch.topic, batch.partition), []).append(np.asarray(batch.offsets, np.int64))
                if decoder is None:
                    continue
                decoded = decoder.decode(batch)
                read, bad = read + decoded.counts.read, bad + decoded.bad
                self._of_extract.setdefault(batch.partition, []).append(self._numbered(decoded.rows))
        if stop.is_set():
            raise Stopped
        job.limits.max_rejected.check(job.table, read, bad, 0, at_commit=True)
        return union(ranges_of(key, np.concatenate(some)) for key, some in seen.items())

    def positions_of(self, file: BranchFile, identity: TopicIdentity) -> FileRows:
        """Read the positions of a file's rows, once all of them are the extract's. Raises RowsDiffer, too."""
        for rows in self._rows_of(file):
            partitions = rows[PARTITION].to_numpy()
            for partition in np.unique(partitions).tolist():
                self._compare(rows.filter(pa.array(partitions == partition)), identity.topic, int(partition))
        return super().positions_of(file, identity)

    def _compare(self, rows: pa.Table, topic: str, partition: int) -> None:
        at, numbers = self._numbered(rows)
        made = self._of_extract.get(partition, [])
        known = np.concatenate([one for one, _ in made] or [at[:0]])
        wanted = np.concatenate([one for _, one in made] or [numbers[:0]])
        place = np.searchsorted(known, at)
        there = np.append(known, -1)[place] == at
        same = there & (np.append(wanted, np.uint64(0))[place] == numbers)
        if differ := ranges_of((topic, partition), np.sort(at[~same])) & self._asked:
            raise RowsDiffer(self._name, self._branch, differ)

    def _numbered(self, rows: pa.Table) -> _Numbers:
        """Return the offsets of rows, and a number for each, equal for equal values of the table's columns."""
        columns = [self._as_in_table(rows, field) for field in self._there().schema().as_arrow()]
        table = pa.Table.from_arrays(columns, names=[f"c{n}" for n in range(len(columns))])
        with duckdb.connect(":memory:", config={"threads": 1}) as database:
            database.register("found", table)
            made = database.sql(f"SELECT hash({', '.join(table.column_names)}) AS h FROM found").to_arrow_table()
        return rows[OFFSET].to_numpy(), made["h"].to_numpy()

    def _as_in_table(self, rows: pa.Table, field: pa.Field) -> pa.ChunkedArray:
        if field.name not in rows.column_names:
            return pa.chunked_array([pa.nulls(rows.num_rows, field.type)])
        column = rows[field.name]
        return column if column.type == field.type else column.cast(field.type)


class Extract:
    """Lands what Flink has left out, and proves what it has not."""

    def __init__(self, config: FlinkConfig, catalog: Catalog, where: str) -> None:
        self._config = config
        self._catalog = catalog
        self._where = where

    def sink(self, begins: Mapping[int, int]) -> ProvenSink:
        """Return the sink of a publication, which is its proof, too."""
        config = self._config
        made = ProvenSink(self._catalog, config.table, config.consumer_group, config.design, config.auditor)
        made.job, made.begins = self._job(), begins
        return made

    def land(self, ranges: RangeSet | None = None, most: int | None = None) -> LandingReport:
        """Land these offsets; None: all that the group lacks. Raises what a landing raises.

        :param most: so many records at most.
        """
        job = self._job(ranges is not None)
        job = replace(job, limits=replace(job.limits, max_records=most))
        if ranges is not None:
            given = ((p, *interval) for topic, p in ranges.partitions for interval in ranges.intervals(topic, p))
            job = replace(job, mode=ByRanges(tuple(given)), limits=replace(job.limits, max_rejected=_ANY))
        with storage_errors_named(job.table, self._catalog):
            report = land(replace(job, engine=Engine.FLINK))
        counts = report.counts
        if not counts.read:
            return report
        log.info(
            "Landed what Flink has left to the extract: %s records: %s rows, %s filtered, %s rejected, %s skipped.",
            *(counts.read, counts.written, counts.filtered, counts.rejected, counts.skipped),
        )
        return report

    def _job(self, of_rest: bool = False) -> Job:
        config, run_id = self._config, f"flink/{uuid.uuid4().hex}"
        told = config.extract
        if of_rest and config.checks:
            # Of a whole commit, and the rest of one is none.
            kept = {name: one for name, one in config.checks.items() if name not in ("row_count", "freshness")}
            told = replace(told, checks=kept or None)
        return build_job(told, config.kafka, self._catalog, run_id=run_id, where=self._where)
