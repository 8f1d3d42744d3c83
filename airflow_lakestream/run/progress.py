"""Progress reports of a driver's landing, for every engine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.core.ranges import OffsetRange
from airflow_lakestream.driver.progress import BatchProgress
from airflow_lakestream.run.topics import RunReport


def batch_progress(batch_id: int, report: RunReport, duration: float, pause: float | None = None) -> BatchProgress:
    """Return a landing as batch progress.

    :param duration: seconds of the landing.
    :param pause: seconds from one batch to the next, for the input rate; None takes the duration.
    """
    counts = report.counts
    return landed_batch(
        batch_id,
        counts,
        [r for one in report.reports.values() for r in one.entry.landed],
        duration,
        rows_out=report.rows,
        bad=sum(one.bad.count for one in report.reports.values()),
        input_rate=counts.read / max(duration, pause or 0.0, 1e-3),
        lag=report.remaining_lag,
        snapshot_ids=tuple(str(id_) for one in report.reports.values() for id_ in one.snapshot_ids),
        tables=dict(report.tables),
    )


def landed_batch(
    batch_id: int, counts: Counts, landed: Iterable[OffsetRange], duration: float, *, rows_out: int, **more: Any
) -> BatchProgress:
    """Return landed records as batch progress.

    :param duration: seconds of the landing.
    :param more: further fields of `BatchProgress`.
    """
    return BatchProgress(
        batch_id=batch_id,
        rows_in=counts.read,
        rows_out=rows_out,
        rejected=counts.rejected,
        skipped=counts.skipped,
        filtered=counts.filtered,
        processing_rate=counts.read / max(duration, 1e-3),
        duration=duration,
        ranges=tuple((r.topic, r.partition, r.from_offset, r.until_offset) for r in landed),
        **more,
    )
