"""Records left to the extract by Flink, and the comparison of Flink's rows with the extract's rows.

Flink leaves out doubtful records, and records excluded by a condition. The driver lands these offsets by the extract's
own code: the extract decides which of them are rows, filtered or rejected. Rows made by Flink are published only if
the extract makes the same row of the record.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema

from airflow_lakestream.core.bad_records import BadRecords, RejectLimit
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.job import LandingJob, Stopped
from airflow_lakestream.core.landing.modes import RangesMode
from airflow_lakestream.core.landing.plan import Plan, TopicState
from airflow_lakestream.core.landing.report import LandingReport
from airflow_lakestream.core.ledger import LandingEngine, TopicEntry, union
from airflow_lakestream.core.publishing.branch import (
    EngineOutput,
    LogContents,
    ProofResult,
    TopicLogView,
    ValueDifference,
)
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.flink.config import FlinkConfig
from airflow_lakestream.iceberg.fitness import load_table
from airflow_lakestream.iceberg.publishing.sink import PublishingSink
from airflow_lakestream.iceberg.write.conform import conform
from airflow_lakestream.run.comparing import EngineRows
from airflow_lakestream.run.job import build_job
from airflow_lakestream.run.storage import storage_errors_named
from airflow_lakestream.tables.coordinates import COORDINATES, OFFSET, ranges_of

log = logging.getLogger(__name__)

# A publication has checked the share already; the records left to the extract may all be bad.
_ANY = RejectLimit(share=1.0)


def left_out_ranges(entry: TopicEntry, topic: str, branch: str, *, published: bool = False) -> RangeSet:
    """Return the offsets that Flink has left out: below landed or published offsets, and missing in the ledger.

    The result is empty for a group without an origin.

    :param entry: the ledger entry of the topic.
    :param branch: the branch of Flink's publications.
    :param published: whether only offsets below published offsets count. A running job may still make rows of offsets
        above.
    """
    marker = entry.published.get(branch)
    ends = {} if marker is None else dict(marker.ends)
    for _, p in () if published else entry.held.partitions:
        ends[p] = max(ends.get(p, 0), *(end for _, end in entry.held.intervals(topic, p)))
    covered = union(RangeSet.of(topic, p, entry.origin.get(p, 0), end) for p, end in ends.items())
    return covered - entry.held if entry.origin else RangeSet()


@dataclass(frozen=True)
class LeftoverLog:
    """A log for publications, with every record without a row as missing, tombstones included.

    The extract lands these records, and decides which of them are rows. See `core.publishing.branch.TopicLogView`.
    """

    inner: TopicLogView

    def shown(self, ranges: RangeSet, state: TopicState, stop: threading.Event) -> LogContents:
        """Return the records in Kafka at these offsets. Raises Stopped."""
        contents = self.inner.shown(ranges, state, stop)
        return LogContents(contents.values | contents.tombstones, RangeSet(), contents.gone)


@dataclass(frozen=True)
class ExtractProof:
    """Proof of a publication by the extract's own rows of the same records.

    See `core.publishing.branch.RowProof`.

    :param job: makes the extract's rows.
    :param begins: by partition, Flink's start.
    :param columns: returns the table's columns.
    """

    job: LandingJob
    begins: Mapping[int, int]
    columns: Callable[[], Schema]

    def check(self, ranges: RangeSet, written: EngineOutput, state: TopicState, stop: threading.Event) -> ProofResult:
        """Compare Flink's rows at these offsets with the extract's rows of the same records.

        The check reads the offsets that Kafka still has, from Flink's start on. A row of Flink without a row of the
        extract counts as different. Raises BadRecord if `on_error` is "fail", TooManyRejected, and Stopped.

        :param ranges: the offsets to publish.
        :param written: Flink's rows, and their columns.
        """
        topic, job, columns = state.identity.topic, self.job, self.columns()
        engine_rows = EngineRows(
            written.rows, topic, [name for name in columns.column_names if name not in COORDINATES]
        )
        below = {p: max(marks.low, self.begins.get(p, 0)) for p, marks in state.marks.items()}
        wanted = ranges - union(RangeSet.of(topic, p, 0, low) for p, low in below.items())
        read_ranges, row_ranges, decoder = RangeSet(), RangeSet(), None
        read, bad = 0, BadRecords()
        with closing(job.reader.read(Plan(state, wanted), stop)) as chunks:
            for chunk in chunks:
                batch = chunk.batch
                key, offsets = (batch.topic, batch.partition), np.asarray(batch.offsets, np.int64)
                decoder = decoder or job.decoders(written.columns, batch)
                read_ranges |= union([ranges_of(key, offsets)])
                if decoder is None:
                    continue
                decoded = decoder.decode(batch)
                read, bad = read + decoded.counts.read, bad + decoded.bad
                at = decoded.rows[OFFSET].to_numpy()
                row_ranges |= union([ranges_of(key, at)])
                known = [name for name in decoded.rows.column_names if name in columns.column_names]
                engine_rows.compare(batch.partition, at, conform(decoded.rows.select(known), columns))
        if stop.is_set():
            raise Stopped
        job.limits.max_rejected.check(job.table, read, bad, 0, at_commit=True)
        no_rows = (engine_rows.positions & wanted) - row_ranges
        # For the error: the first of these offsets in each partition.
        firsts = [ValueDifference(topic, p, no_rows.intervals(topic, p)[0][0]) for _, p in no_rows.partitions]
        return ProofResult(
            read_ranges, engine_rows.equal, engine_rows.different | no_rows, [*engine_rows.named(), *firsts]
        )


class LeftoverExtract:
    """Landing of the records left out by Flink, and proof of Flink's rows."""

    def __init__(self, config: FlinkConfig, catalog: Catalog, where: str) -> None:
        self._config = config
        self._catalog = catalog
        self._where = where

    def sink(self) -> PublishingSink:
        """Return the sink of a publication."""
        config = self._config
        return PublishingSink(self._catalog, config.table, config.consumer_group, config.design, config.auditor)

    def proof(self, begins: Mapping[int, int]) -> ExtractProof:
        """Return the proof of the rows of a job begun at these offsets."""
        return ExtractProof(self._job(), begins, lambda: load_table(self._catalog, self._config.table).schema())

    def land(self, ranges: RangeSet | None = None, most: int | None = None) -> LandingReport:
        """Land these offsets, or everything lacking in the group if None. Raises the errors of a landing.

        With ranges, any share of rejected records is allowed.

        :param most: greatest number of records; None: no limit.
        """
        job = self._job(ranges is not None)
        job = replace(job, limits=replace(job.limits, max_records=most))
        if ranges is not None:
            given = ((p, *interval) for topic, p in ranges.partitions for interval in ranges.intervals(topic, p))
            job = replace(job, mode=RangesMode(tuple(given)), limits=replace(job.limits, max_rejected=_ANY))
        with storage_errors_named(job.table, self._catalog):
            report = land(replace(job, engine=LandingEngine.FLINK))
        counts = report.counts
        if not counts.read:
            return report
        log.info(
            "The extract landed records that Flink left out: %s, with %s rows, %s filtered, %s rejected, %s skipped.",
            *(counts.read, counts.written, counts.filtered, counts.rejected, counts.skipped),
        )
        return report

    def _job(self, of_rest: bool = False) -> LandingJob:
        config, run_id = self._config, f"flink/{uuid.uuid4().hex}"
        extract = config.extract
        if of_rest and config.checks:
            # Both checks are for a whole commit, and these offsets are a rest.
            checks = {name: one for name, one in config.checks.items() if name not in ("row_count", "freshness")}
            extract = replace(extract, checks=checks or None)
        return build_job(extract, config.kafka, self._catalog, run_id=run_id, where=self._where)
