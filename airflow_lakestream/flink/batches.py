"""A publication as a batch of the stream's progress."""

from __future__ import annotations

from airflow_lakestream.core.landing.report import LandingReport
from airflow_lakestream.driver.progress import BatchProgress


def batch_of(report: LandingReport, number: int, interval: float, duration: float) -> BatchProgress:
    """Return what a publication has done.

    :param interval: seconds between two publications.
    :param duration: seconds that this one took.
    """
    counts = report.counts
    return BatchProgress(
        batch_id=number,
        rows_in=counts.read,
        rows_out=report.rows,
        rejected=counts.rejected,
        skipped=counts.skipped,
        filtered=counts.filtered,
        input_rate=counts.read / interval,
        processing_rate=counts.read / duration,
        duration=duration,
        ranges=tuple((r.topic, r.partition, r.from_offset, r.until_offset) for r in report.entry.landed),
        lag=report.remaining_lag,
        snapshot_ids=tuple(map(str, report.snapshot_ids)),
        tables={report.table: report.rows},
    )
