"""Log lines of a run: the offsets to land, the progress, and the commits."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

from airflow_lakestream.core.bad_records import BadRecords
from airflow_lakestream.core.column_use import silent_texts
from airflow_lakestream.core.landing.plan import Plan
from airflow_lakestream.core.landing.report import iso
from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.core.ranges import Interval, OffsetRange, RangeSet
from airflow_lakestream.core.source_types import SourceType

log = logging.getLogger(__name__)

# Seconds between two lines of progress.
LOG_INTERVAL = 30.0
# More ranges than these would hide the rest of the line.
_SHOWN = 16


def log_plan(table: str, plan: Plan, interval: Interval | None, *, again: bool = False) -> None:
    """Log the offsets to land, and warn of lost offsets; log nothing for an empty plan.

    :param interval: the run's interval, if any.
    :param again: landed offsets are read again to replace their rows.
    """
    if plan.lost:
        log.warning("Lost to retention, recorded in the ledger of %s: %s", table, plan.lost)
    if plan.ranges:
        heading = "To land again" if again else "To land"
        topic = plan.state.identity.topic
        log.info("%s: %s%s into %s, %s.", heading, topic, period_text(interval), table, offsets_text(plan.ranges))


def log_commit(
    table: str, snapshot_id: int, counts: Counts, bad: BadRecords, landed: RangeSet, seconds: float, left: int = 0
) -> None:
    """Log a commit, and warn of bad records.

    :param landed: the offsets of the commit.
    :param seconds: the duration of the commit.
    :param left: the number of the plan's offsets still to land.
    """
    log.info(
        "Committed %s to %s in snapshot %s (%.2f s): %s.%s",
        counts_text(counts),
        table,
        snapshot_id,
        seconds,
        ranges_text(landed),
        f" Of the plan {left:,} offsets are left." if left else "",
    )
    if bad.count:
        log.warning("%s of these records are bad: %s", f"{bad.count:,}", bad.reasons)


def log_silent_columns(table: str, silent: Mapping[str, str]) -> None:
    """Log a commit's silent columns: a value was expected, and none came. Warn if a field has almost a column's name.

    :param silent: by column, the field of almost the same name, or an empty text.
    """
    if not silent:
        return
    # The values of a field with a wrong name are lost; a column for which no value is sent is usual.
    level = logging.WARNING if any(silent.values()) else logging.INFO
    log.log(level, "%s: silent columns, without a value in this commit: %s", table, "; ".join(silent_texts(silent)))


def log_stale_columns(table: str, changed: Mapping[str, SourceType]) -> None:
    """Log the columns found dropped and added again by a commit."""
    if columns := [path for path, source_type in sorted(changed.items()) if source_type.stale]:
        log.warning("%s: stale columns, %s.", table, stale_text(columns))


def stale_text(columns: Sequence[str]) -> str:
    """Return a text on stale columns with the remedy: the first names, and the number of further columns."""
    shown = ", ".join(columns[:_SHOWN]) + (f" and {len(columns) - _SHOWN} more" if len(columns) > _SHOWN else "")
    return (
        f"dropped in the source and added again: {shown}; rows without an event since then keep the values from "
        "before, and `lakestream mirror resnapshot` mends them"
    )


class ReadProgress:
    """Progress log of a read: the share done and the remaining time, each half minute.

    :param topic: the topic that is read.
    :param width: the number of offsets to read.
    :param most: the most records to read; None for all.
    """

    def __init__(self, topic: str, width: int, most: int | None = None) -> None:
        self._topic = topic
        self._width = width
        self._most = most
        self._offsets = self._records = 0
        self._began = self._logged_at = time.monotonic()

    def add(self, covers: OffsetRange, records: int) -> None:
        """Count offsets and records; log the progress if LOG_INTERVAL seconds have passed."""
        self._offsets += covers.until_offset - covers.from_offset
        self._records += records
        now = time.monotonic()
        if now - self._logged_at < LOG_INTERVAL:
            return
        self._logged_at, took = now, now - self._began
        share = max(self._offsets / max(self._width, 1), self._records / self._most if self._most else 0.0)
        log.info(
            "Reading %s: %.0f%% of it, %s records, %s a second, some %s left.",
            self._topic,
            100 * min(share, 1.0),
            f"{self._records:,}",
            f"{self._records / took:,.0f}",
            span(max(0.0, took / share - took)) if share else "time",
        )


def counts_text(counts: Counts) -> str:
    """Return counts as text: the rows, and the records with another outcome."""
    outcomes = {"rejected": counts.rejected, "skipped": counts.skipped, "filtered": counts.filtered}
    return ", ".join([f"{counts.written:,} rows", *(f"{count:,} {name}" for name, count in outcomes.items() if count)])


def period_text(interval: Interval | None) -> str:
    """Return a run's interval as text (with a leading blank), or an empty text."""
    return f" from {iso(interval[0])} to {iso(interval[1])}" if interval else ""


def offsets_text(ranges: RangeSet) -> str:
    """Return a text with the number of offsets and the first ranges."""
    return f"{ranges.width:,} offsets: {ranges_text(ranges)}"


def ranges_text(ranges: RangeSet) -> str:
    """Return a text with the first ranges and the number of further ranges."""
    texts = [str(offset_range) for offset_range in ranges]
    further = len(texts) - _SHOWN
    return (", ".join(texts[:_SHOWN]) or "no offsets") + (f" and {further} ranges more" if further > 0 else "")


def span(seconds: float) -> str:
    """Return a time span for people: 45 s, 12 min, 3.5 h, 2.1 d."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86_400:.1f} d"
