"""Progress reports of a driver's landing, for every engine."""

from __future__ import annotations

from airflow_lakestream.driver.progress import BatchProgress
from airflow_lakestream.run.topics import RunReport


def batch_progress(batch_id: int, report: RunReport, duration: float, pause: float | None = None) -> BatchProgress:
    """Return a landing as batch progress.

    :param duration: seconds of the landing.
    :param pause: seconds from one batch to the next, for the input rate; None takes the duration.
    """
    counts = report.counts
    rate = counts.read / max(duration, 1e-3)
    return BatchProgress(
        batch_id=batch_id,
        rows_in=counts.read,
        rows_out=report.rows,
        rejected=counts.rejected,
        skipped=counts.skipped,
        filtered=counts.filtered,
        bad=sum(one.bad.count for one in report.reports.values()),
        input_rate=rate if pause is None else counts.read / max(duration, pause, 1e-3),
        processing_rate=rate,
        duration=duration,
        ranges=tuple(
            (r.topic, r.partition, r.from_offset, r.until_offset)
            for one in report.reports.values()
            for r in one.entry.landed
        ),
        lag=report.remaining_lag,
        snapshot_ids=tuple(str(id_) for one in report.reports.values() for id_ in one.snapshot_ids),
        tables=dict(report.tables),
    )
