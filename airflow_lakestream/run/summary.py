"""Summary of a run: the log's last line, and the progress reported by a driver of any engine."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.landing.report import counts_to_dict
from airflow_lakestream.core.landing.run_log import period_text, stale_text
from airflow_lakestream.core.names import REJECTED
from airflow_lakestream.core.policies import ModeName
from airflow_lakestream.driver.progress import BatchProgress
from airflow_lakestream.lakes import LakeCapability, lake_of

if TYPE_CHECKING:
    from airflow_lakestream.run.job import ExtractConfig
    from airflow_lakestream.run.topics import RunReport

ICEBERG_DEFAULT = "iceberg_default"
# Greatest number of columns in a sentence: more would hide the rest of the line.
_MOST_SHOWN = 8


def last_line(run: RunReport, config: ExtractConfig, iceberg_conn: str = ICEBERG_DEFAULT) -> str:
    """Return the last line of a run's log: the outcome, the snapshots, and the offsets left.

    :param iceberg_conn: the Airflow connection of the catalog, for the command that shows rejected records.
    """
    if run.changed_nothing:
        return f"{_nothing_text(run, config)}{_left_text(run, config)}"
    topic, where, counts = _source_text(run, config), ", ".join(run.tables) or run.table, counts_to_dict(run.counts)
    # Rows of a mirror are states: an event may have changed, added or removed a row.
    outcome = f"Landed {figures({**counts, 'rows': run.rows})} of {topic} in {where}"
    if isinstance(config, MirrorConfig):
        outcome = f"Applied {figures(counts, 'events')} of {topic} to {where}"
    number = f"{run.snapshots} snapshot{'s' if run.snapshots != 1 else ''}"
    lost = sum(report.entry.lost.width for report in run.reports.values())
    homes = {report.table for report in run.reports.values() if report.counts.rejected}
    return (
        f"{outcome}, in {number}."
        + (f" {lost:,} lost offsets are recorded in the ledger." if lost else "")
        + _silent_text(run)
        + _stale_sentence(run)
        + "".join(rejects_of(home, run.consumer_group, iceberg_conn) for home in sorted(homes))
        + (_left_text(run, config) or " Nothing is left to land.")
    )


def _silent_text(run: RunReport) -> str:
    """Return a sentence on silent columns (with a leading blank), or an empty text."""
    texts = [text for _, text in run.silent]
    more = f" and {len(texts) - _MOST_SHOWN} more" if len(texts) > _MOST_SHOWN else ""
    return f" Silent columns, without a value in this run: {', '.join(texts[:_MOST_SHOWN])}{more}." if texts else ""


def _stale_sentence(run: RunReport) -> str:
    """Return a sentence on columns dropped and added again (with a leading blank), or an empty text."""
    return f" Stale columns, {stale_text([column for _, column in run.stale])}." if run.stale else ""


def figures(counts: Mapping[str, Any], noun: str = "rows") -> str:
    """Return the counts of a report as text.

    :param noun: the word for the rows.
    """
    outcomes = ", ".join(f"{counts[name]:,} {name}" for name in ("rejected", "skipped", "filtered"))
    return f"{counts['rows']:,} {noun} ({outcomes})"


def rejects_of(table: str, consumer_group: str, iceberg_conn: str = ICEBERG_DEFAULT) -> str:
    """Return a sentence (with a leading blank) on a table's rejected records, with the command to show the records."""
    sentence = f" The rejected records are in {table}{REJECTED}"
    if LakeCapability.CATALOG not in lake_of(table).can:
        return f"{sentence}."
    command = ["lakestream", "rejects", "show", "--table", table, "--group", consumer_group]
    if iceberg_conn != ICEBERG_DEFAULT:
        command += ["--iceberg-conn", iceberg_conn]
    return f"{sentence}; this shows them: {shlex.join(command)} ."


def _source_text(run: RunReport, config: ExtractConfig) -> str:
    """Return the run's topic, interval or ranges as text."""
    interval = next((report.interval for report in run.reports.values()), None)
    ranges = "the given ranges of " if config.mode == ModeName.RANGES else ""
    return f"{ranges}{run.topic}{period_text(interval)}"


def _nothing_text(run: RunReport, config: ExtractConfig) -> str:
    """Return the sentence of a run that has landed nothing, with the reason."""
    source = _source_text(run, config)
    if run.reports and all(report.lacks_columns for report in run.reports.values()):
        left = f" {run.remaining_lag:,} offsets are left until one does." if run.remaining_lag else ""
        return (
            f"Nothing to land: no record of {source} shows the columns of {run.table}, and no schema is given. The "
            f"table was not created.{left}"
        )
    return f"Nothing to land: {run.table} holds all records of {source} that are in Kafka now."


def _left_text(run: RunReport, config: ExtractConfig) -> str:
    """Return a sentence on the offsets left and the reason (with a leading blank), or an empty text."""
    left, most = run.remaining_lag, config.limits.max_records
    if most is not None and run.counts.read >= most:
        return f" {left:,} offsets are left, since max_records={most} are read: the next run goes on." if left else ""
    if config.mode == ModeName.RESUME:
        return f" {left:,} offsets came meanwhile: the next run lands them." if left else ""
    sentence = ""
    if config.mode == ModeName.INTERVAL and not all(report.completes for report in run.reports.values()):
        sentence = (
            " The interval is not complete: Kafka has no record yet at or after its end in every partition, so more "
            "of its records may come. A later run lands them."
        )
    return sentence + (f" Outside of what this run covers, {left:,} offsets are not landed." if left else "")


def batch_progress(batch_id: int, report: RunReport, duration: float, pause: float | None = None) -> BatchProgress:
    """Return a landing as batch progress.

    :param duration: seconds of the landing.
    :param pause: seconds from one batch to the next, for the input rate; None takes the duration.
    """
    counts, topic_reports = report.counts, report.reports.values()
    landed = (offset_range for topic_report in topic_reports for offset_range in topic_report.entry.landed)
    return BatchProgress.of(
        *(batch_id, counts, report.rows, landed, duration),
        rejected=counts.rejected,
        bad=sum(topic_report.bad.count for topic_report in topic_reports),
        input_rate=counts.read / max(duration, pause or 0.0, 1e-3),
        lag=report.remaining_lag,
        snapshot_ids=tuple(str(id_) for topic_report in topic_reports for id_ in topic_report.snapshot_ids),
        tables=dict(report.tables),
    )
