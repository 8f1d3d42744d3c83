"""The full audit: every row's position against every record left in Kafka. Pure, after both are read."""

from __future__ import annotations

from dataclasses import replace

from airflow_lakestream.audit.adopted import AdoptedRows
from airflow_lakestream.audit.books import TableLedgers
from airflow_lakestream.audit.compare import PartitionAudit, PartitionFacts, compare
from airflow_lakestream.audit.log import LogRecords
from airflow_lakestream.audit.result import AuditResult, CountComparison, rejected_count
from airflow_lakestream.audit.rows import RowPositions
from airflow_lakestream.audit.tally import OffsetTally
from airflow_lakestream.core.ranges import RangeSet


def judge_topic(
    result: AuditResult,
    ledgers: TableLedgers,
    rows: RowPositions,
    rejected: RowPositions,
    adopted: AdoptedRows,
    topic: str,
    log: LogRecords | None,
) -> None:
    """Add the verdict on the partitions of a topic; `log` is None if Kafka no longer has the topic."""
    audits = []
    impossible = {
        (one.topic, one.partition): one
        for one in rows.impossible
        if one.topic is not None and one.partition is not None
    }
    for key in sorted(
        {*ledgers.partitions([topic]), *(key for key in (*rows.tallies, *impossible) if key[0] == topic)}
    ):
        facts = PartitionFacts(
            *key,
            allowed=ledgers.allowed(key),
            rows=rows.tallies.get(key, OffsetTally()) + adopted.within(key),
            rejected=rejected.tallies.get(key, OffsetTally()),
        )
        if log is not None:
            facts.required = ledgers.allowed(key, log.identity)
            facts.readable = log.readable.get(key, OffsetTally())
            facts.shown = log.shown.of_partition(*key)
        facts = ledgers.complete(facts)
        facts = replace(facts, adopted=facts.adopted - adopted.ranges)
        audits.append(replace(compare(facts), impossible=impossible.get(key)))
    if topic in ledgers.topics:
        audits = _count(result, ledgers, adopted, topic, audits)
    result.note_rows_before(topic, audits)
    result.partitions += audits


def _count(
    result: AuditResult, ledgers: TableLedgers, adopted: AdoptedRows, topic: str, audits: list[PartitionAudit]
) -> list[PartitionAudit]:
    """Also compare the counts, which include offsets without records in Kafka."""
    counts = ledgers.counts(topic)
    # Skipped and filtered records have no row and no rejected record; the ledger counts them without offsets.
    passed = counts.skipped + counts.filtered
    # The ledger counts no rows of other tools.
    adopted_rows, adopted_missing = adopted.counted(audits)
    missing = sum(audit.rows_missing for audit in audits) - adopted_missing
    found = sum(audit.rows - audit.rows_too_many - audit.rows_before for audit in audits) - adopted_rows
    rejected = sum(audit.rejected - audit.rejected_too_many for audit in audits)
    if counts.rejected or rejected:
        result.counts.append(rejected_count(topic, counts.rejected, rejected))
    if not passed:
        unit = "rows and rejected records" if counts.rejected else "rows"
        expected = counts.written + counts.rejected
        beyond = f"{topic}, beyond the ranges named"
        result.counts.append(CountComparison(beyond, expected, found + rejected + missing, topic, unit))
        return audits
    result.counts.append(CountComparison(topic, counts.written, found, topic))
    lacking = max(0, counts.written - found) + max(0, counts.rejected - rejected)
    certain = max(lacking, missing - passed)
    if missing and not certain:
        return [_perhaps_filtered(audit, adopted.ranges) for audit in audits]
    if missing:
        result.notes.append(
            f"{topic}: up to {passed} of the offsets called missing were skipped or filtered; {certain} records are "
            "certainly missing."
        )
    return audits


def _perhaps_filtered(audit: PartitionAudit, adopted: RangeSet) -> PartitionAudit:
    """Return the audit without our missing rows, whose records may have been skipped or filtered."""
    certain = audit.missing & adopted
    unknown = audit.not_verifiable | (audit.missing - adopted)
    return replace(audit, missing=certain, rows_missing=certain.width, not_verifiable=unknown)
