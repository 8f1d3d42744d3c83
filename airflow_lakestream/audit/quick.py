"""The quick audit: file statistics against the ledgers. Pure, after the manifests are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from airflow_lakestream.audit.books import TableLedgers
from airflow_lakestream.audit.compare import ImpossibleRows, PartitionFacts, judge_partition
from airflow_lakestream.audit.result import AuditResult, CountComparison, rejected_count
from airflow_lakestream.audit.statistics import FileFacts, TableFiles
from airflow_lakestream.audit.tally import OffsetTally
from airflow_lakestream.core.landing.unaccounted import OFFSETS_END, ForeignRowQuery, RowFate
from airflow_lakestream.core.ranges import Interval, PartitionKey, overlapping


def look_at_files(result: AuditResult, ledgers: TableLedgers, files: TableFiles, topics: Iterable[str]) -> None:
    """Compare the files' statistics with the ledgers, and add the findings to the result.

    With delete files, nothing is compared: the result is blind, since the statistics no longer show which rows are
    left.
    """
    if files.deletes:
        # A delete may be of any file, so counts and bounds no longer show which rows are left.
        result.blind.append(
            f"{len(files.deletes)} delete files: how many rows are left, and which, is not in the statistics. "
            "--full reads them."
        )
    else:
        judged, mixed = _without_rows_before(result, ledgers, files)
        _count(result, ledgers, judged, mixed, list(topics))
        _check_bounds(result, ledgers, judged, list(topics))
    for path, times in files.listed_twice.items():
        rows = next(f.rows for f in files.data if f.path == path)
        result.findings.append(f"the table lists data file {path} {times} times, {rows} rows each time")


def _without_rows_before(result: AuditResult, ledgers: TableLedgers, files: TableFiles) -> tuple[TableFiles, set[str]]:
    """Return the files without another tool's files, and the paths of mixed files, which may have rows of both.

    A file is another tool's if all its rows are below the origin, where the group began. Notes are added to the result.
    """
    fates = [(file, _fate(file, ledgers)) for file in files.data]
    if rows := sum(file.rows for file, fate in fates if fate is RowFate.OUTSIDE):
        result.notes.append(f"{rows} rows are below where the group began: another tool's, not judged.")
    mixed = {file.path for file, fate in fates if fate is None}
    if mixed:
        result.notes.append(
            f"{sum(file.rows for file, fate in fates if fate is None)} rows are in files that may have some below "
            "where the group began: how many of them were landed was not counted; --full does."
        )
    return TableFiles([file for file, fate in fates if fate is not RowFate.OUTSIDE]), mixed


def _fate(file: FileFacts, ledgers: TableLedgers) -> RowFate | None:
    """Return whether a file's rows are accounted for by a ledger or another tool's; None if the file may have both.

    Rows that can't be below the group's origin count as accounted for, even if no ledger has them: `_check_bounds`
    reports them. Rows below the origin that no ledger has are another tool's.
    """
    before = {topic: ledgers.before(topic) for topic in file.topics(ledgers.topics)}
    may_be_below = any(
        overlapping(ranges.intervals(*key), *(file.offset or (None, None)))
        for ranges in before.values()
        for key in ranges.partitions
        if file.partition is None or file.partition[0] <= key[1] <= file.partition[1]
    )
    if not may_be_below or file.nulls == file.rows:
        return RowFate.ACCOUNTED
    topic = only_topic(file, ledgers)
    if topic is None or file.bounds is None or not file.has_positions or file.nulls:
        return None
    query = ForeignRowQuery(topic, ledgers.landed_by_anyone(topic), ledgers.own_entry(topic).origin)
    return query.fate(*file.bounds)


def look_at_rejects(result: AuditResult, ledgers: TableLedgers, files: TableFiles | None) -> None:
    """Compare the size of the reject table with the ledgers.

    Too few records are a damage; more than expected are only noted, since records of failed landings may stay. Delete
    files make the result blind.

    :param files: the files of the reject table; None without a reject table.
    """
    expected, records = ledgers.counts().rejected, sum(file.rows for file in files.data) if files is not None else 0
    if files is not None and files.deletes and expected:
        result.blind.append("the reject table has delete files: how many records are left is not in the statistics.")
    elif records < expected:
        result.counts.append(rejected_count("all topics and groups", expected, records))
    elif records > expected:
        # Records of landings under way, rolled back or failed: only the ids in the rows show which records count.
        result.notes.append(f"the reject table has {records} records, of which {expected} count; --full shows which.")


def _count(result: AuditResult, ledgers: TableLedgers, files: TableFiles, mixed: set[str], topics: list[str]) -> None:
    """Compare the number of rows with the ledgers, by topic, or for the whole table if a file may have several topics.

    :param mixed: the paths of mixed files, see `_without_rows_before`.
    """
    if unknown := [f for f in files.data if f.nulls is None and f.rows]:
        result.blind.append(
            f"{len(unknown)} data files, {unknown[0].path} for one, have no count of the rows without _kafka_offset, "
            "so rows of other writers can't be distinguished from landed rows. --full reads them."
        )
        return
    if foreign := sum(f.nulls or 0 for f in files.data):
        result.notes.append(f"{foreign} rows have no Kafka offset: another writer's, not judged.")
    landed = [(file, only_topic(file, ledgers)) for file in files.data if file.rows - (file.nulls or 0)]
    if any(topic is None for _, topic in landed):
        # With files of several topics, only the whole table can be counted.
        expected = ledgers.counts().written
        rows = _landed_rows([file for file, _ in landed], mixed, expected)
        result.counts.append(CountComparison("all topics and groups", expected, rows))
        return
    for topic in topics:
        expected = ledgers.counts(topic).written
        rows = _landed_rows([file for file, file_topic in landed if file_topic == topic], mixed, expected)
        result.counts.append(CountComparison(topic, expected, rows, topic))


def _landed_rows(files: Iterable[FileFacts], mixed: set[str], expected: int) -> int:
    """Return the possible number of landed rows closest to `expected`: in mixed files, none to all rows are landed."""
    certain = perhaps = 0
    for file in files:
        rows = file.rows - (file.nulls or 0)
        if file.path in mixed:
            perhaps += rows
        else:
            certain += rows
    return min(max(expected, certain), certain + perhaps)


def _check_bounds(result: AuditResult, ledgers: TableLedgers, files: TableFiles, topics: list[str]) -> None:
    """Compare, by partition, the rows that the bounds prove with the ledgers; report impossible bounds.

    Verdicts go to the partitions of the result. A file of several topics or partitions proves no row of a partition:
    contradictions between its bounds and the ledgers become findings.
    """
    certain: dict[PartitionKey, OffsetTally] = {}
    impossible: dict[PartitionKey, ImpossibleRows] = {}
    without_bounds = 0
    for file in files.data:
        if file.partly:
            result.findings.append(
                f"unexpected: {file.path} has {file.partly} rows or more that lack a part of their position"
            )
        if file.bounds is None:
            without_bounds += file.nulls != file.rows
            continue
        partition, offset = file.bounds
        if (topic := only_topic(file, ledgers)) is not None and partition[0] == partition[1]:
            key = topic, partition[0]
            _count_certain(certain.setdefault(key, OffsetTally()), file, partition[0], offset)
            if (impossible_rows := _impossible_rows(file, partition[0], offset)) is not None:
                impossible[key] = impossible[key] + impossible_rows if key in impossible else impossible_rows
        else:
            result.findings += _outside(file, partition, offset, ledgers)
    if without_bounds:
        result.notes.append(f"{without_bounds} data files have no bounds: their rows were counted, but not placed.")
    for key in sorted({*certain, *ledgers.partitions(topics)}):
        if key[0] in topics:
            facts = PartitionFacts(*key, allowed=ledgers.allowed(key), rows=certain.get(key, OffsetTally()))
            result.partitions.append(replace(judge_partition(ledgers.complete(facts)), impossible=impossible.get(key)))


def _count_certain(rows: OffsetTally, file: FileFacts, partition: int, bounds: Interval) -> None:
    """Count the rows certain from the statistics: all if the file is dense, otherwise only the rows at the bounds."""
    low, high = bounds
    if partition < 0:
        return
    if file.is_dense and file.has_positions:
        rows.add_interval(low, high + 1)
    elif low == high and file.has_positions:
        rows.add_offsets([low] * (file.rows - (file.nulls or 0)))
    else:
        rows.add_offsets([offset for offset in (low, high) if 0 <= offset < OFFSETS_END])


def _impossible_rows(file: FileFacts, partition: int, bounds: Interval) -> ImpossibleRows | None:
    """Return the rows of a file of one partition at impossible positions, or None if the bounds are possible.

    The result has an empty topic. With a possible partition, only the rows at impossible bounds are counted.
    """
    if file.has_positions:
        return None
    if partition < 0:
        return ImpossibleRows("", partition, *bounds, file.rows - (file.nulls or 0))
    impossible = [offset for offset in set(bounds) if not 0 <= offset < OFFSETS_END]
    return ImpossibleRows("", partition, min(impossible), max(impossible), len(impossible))


def _outside(file: FileFacts, partitions: Interval, bounds: Interval, ledgers: TableLedgers) -> Iterator[str]:
    """Describe the contradictions between the ledgers and the bounds of a file of several topics or partitions."""
    candidates = file.topics(ledgers.known_topics)
    if not candidates:
        yield f"{file.path}: {file.rows} rows of topics that no group's ledger has"
        return
    # Rows below the group's beginning are another tool's, and no damage.
    landed = [ranges for topic in candidates for ranges in ledgers.landed_by_anyone(topic) | ledgers.before(topic)]
    for partition in sorted(set(partitions)):
        if not any(ranges.partition == partition for ranges in landed):
            yield f"{file.path}: rows of partition {partition} of {', '.join(candidates)}, which no group's ledger has"
    first, last = partitions
    within = [ranges for ranges in landed if first <= ranges.partition <= last]
    for offset in sorted(set(bounds)):
        if not any(ranges.from_offset <= offset < ranges.until_offset for ranges in within):
            yield (
                f"{file.path}: a row at offset {offset}, which no group's ledger has for {', '.join(candidates)}, "
                f"partitions {first} to {last}"
            )


def only_topic(file: FileFacts, ledgers: TableLedgers) -> str | None:
    """Return the only topic of a file's rows, by its bounds, or None if several or unknown topics are possible."""
    candidates = file.topics(ledgers.known_topics)
    return candidates[0] if len(candidates) == 1 and file.is_of_one_topic else None
