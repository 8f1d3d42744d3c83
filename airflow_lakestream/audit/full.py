"""The full audit: every row's position against every record that Kafka still shows. Pure, once both are read."""

from __future__ import annotations

from dataclasses import replace

from airflow_lakestream.audit.books import Books
from airflow_lakestream.audit.compare import PartitionAudit, PartitionFacts, compare
from airflow_lakestream.audit.log import LogFound
from airflow_lakestream.audit.result import AuditResult, RowCount
from airflow_lakestream.audit.rows import RowsFound
from airflow_lakestream.audit.tally import Tally
from airflow_lakestream.core.ranges import RangeSet


def judge_topic(result: AuditResult, books: Books, rows: RowsFound, topic: str, log: LogFound | None) -> None:
    """Add the verdict on one topic's partitions; `log` is None when Kafka has the topic no more."""
    audits = []
    for key in sorted({*books.partitions([topic]), *(key for key in rows.tallies if key[0] == topic)}):
        facts = PartitionFacts(*key, allowed=books.allowed(key), rows=rows.tallies.get(key, Tally()))
        if log is not None:
            facts.required = books.allowed(key, log.identity)
            facts.readable = log.readable.get(key, Tally())
            facts.shown = log.shown.of_partition(*key)
        audits.append(compare(books.complete(facts)))
    if topic in books.topics:
        audits = _count(result, books, topic, audits)
    result.partitions += audits


def _count(result: AuditResult, books: Books, topic: str, audits: list[PartitionAudit]) -> list[PartitionAudit]:
    """Compare the counts too: they tell of rows where Kafka shows no record any more."""
    counts = books.counts(topic)
    unwritten = counts.read - counts.written
    missing = sum(audit.rows_missing for audit in audits)
    found = sum(audit.rows - audit.rows_too_many for audit in audits)
    if not unwritten:
        result.counts.append(RowCount(f"{topic}, beyond the ranges named", counts.written, found + missing, topic))
        return audits
    result.counts.append(RowCount(topic, counts.written, found, topic))
    if not missing:
        return audits
    # Rejected, skipped and filtered records have no rows either, and the ledger counts them without their offsets.
    if counts.written <= found:
        return [
            replace(a, missing=RangeSet(), rows_missing=0, not_verifiable=a.not_verifiable | a.missing) for a in audits
        ]
    result.notes.append(
        f"{topic}: up to {unwritten} of the offsets called missing were rejected, skipped or filtered; "
        f"{counts.written - found} rows are missing in truth."
    )
    return audits
