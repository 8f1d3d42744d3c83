"""The quick audit: file statistics against the ledgers. Pure, once the manifests are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from airflow_lakestream.audit.books import Books
from airflow_lakestream.audit.compare import PartitionFacts, compare
from airflow_lakestream.audit.result import AuditResult, RowCount, rejected_count
from airflow_lakestream.audit.statistics import FileFacts, TableFiles
from airflow_lakestream.audit.tally import Tally
from airflow_lakestream.core.ranges import PartitionKey


def look_at_files(result: AuditResult, books: Books, files: TableFiles, topics: Iterable[str]) -> None:
    """Add to the result what the files' statistics say."""
    if files.delete_files:
        # What is deleted may be of any file: its count and its bounds no longer say which rows are left.
        result.blind.append(
            f"{files.delete_files} delete files: how many rows are left, and which, is not in the statistics. "
            "--full reads them."
        )
    else:
        _count(result, books, files, list(topics))
        _check_bounds(result, books, files, list(topics))
    for path, times in files.listed_twice.items():
        rows = next(f.rows for f in files.data if f.path == path)
        result.findings.append(f"the table lists data file {path} {times} times, {rows} rows each time")


def look_at_rejects(result: AuditResult, books: Books, files: TableFiles | None) -> None:
    """Compare the size of the reject table with the ledgers; `files` is None without one."""
    expected, found = books.counts().rejected, sum(file.rows for file in files.data) if files is not None else 0
    if files is not None and files.delete_files and expected:
        result.blind.append("the reject table has delete files: how many records are left is not in the statistics.")
    elif found < expected:
        result.counts.append(rejected_count("all topics and groups", expected, found))
    elif found > expected:
        # Of landings under way, rolled back, or that came to nothing: only their ids tell, and those are in the rows.
        result.notes.append(f"the reject table has {found} records, of which {expected} count; --full tells which.")


def _count(result: AuditResult, books: Books, files: TableFiles, topics: list[str]) -> None:
    if unknown := [f for f in files.data if f.nulls is None and f.rows]:
        result.blind.append(
            f"{len(unknown)} data files, {unknown[0].path} for one, do not say how many rows have no _kafka_offset, so "
            "rows of other writers can't be told from landed ones. --full reads them."
        )
        return
    if foreign := sum(f.nulls or 0 for f in files.data):
        result.notes.append(f"{foreign} rows have no Kafka offset: another writer's, not judged.")
    by_topic: dict[str, int] = {}
    for file in files.data:
        landed = file.rows - (file.nulls or 0)
        topic = _only_topic(file, books)
        if landed and topic is None:
            # Files of several topics: only the whole table can be counted.
            found = sum(f.rows - (f.nulls or 0) for f in files.data)
            result.counts.append(RowCount("all topics and groups", books.counts().written, found))
            return
        by_topic[topic or ""] = by_topic.get(topic or "", 0) + landed
    for topic in topics:
        result.counts.append(RowCount(topic, books.counts(topic).written, by_topic.get(topic, 0), topic))


def _check_bounds(result: AuditResult, books: Books, files: TableFiles, topics: list[str]) -> None:
    """Judge by partition what the bounds make certain; the rest of what they rule out becomes a finding."""
    certain: dict[PartitionKey, Tally] = {}
    blank = 0
    for file in files.data:
        if file.offset is None or file.partition is None:
            blank += file.nulls != file.rows
        elif (topic := _only_topic(file, books)) is not None and file.partition[0] == file.partition[1]:
            _take(certain.setdefault((topic, file.partition[0]), Tally()), file)
        else:
            result.findings += _outside(file, books)
    if blank:
        result.notes.append(f"{blank} data files have no bounds: their rows were counted, but not placed.")
    for key in sorted({*certain, *books.partitions(topics)}):
        if key[0] in topics:
            facts = PartitionFacts(*key, allowed=books.allowed(key), rows=certain.get(key, Tally()))
            result.partitions.append(compare(books.complete(facts)))


def _take(rows: Tally, file: FileFacts) -> None:
    """Count what the file holds for certain: all of it where it is dense, else the rows at its bounds."""
    assert file.offset is not None
    low, high = file.offset
    if file.is_dense:
        rows.add_interval(low, high + 1)
    elif low == high:
        rows.add_offsets([low] * (file.rows - (file.nulls or 0)))
    else:
        rows.add_offsets([low, high])


def _outside(file: FileFacts, books: Books) -> Iterator[str]:
    """Say what the bounds of a file of several topics or partitions rule out."""
    assert file.offset is not None
    assert file.partition is not None
    candidates = file.topics(books.known_topics)
    if not candidates:
        yield f"{file.path}: {file.rows} rows of topics that no group's ledger has"
        return
    landed = [r for topic in candidates for r in books.landed_by_anyone(topic)]
    for partition in sorted(set(file.partition)):
        if not any(r.partition == partition for r in landed):
            yield f"{file.path}: rows of partition {partition} of {', '.join(candidates)}, which no group's ledger has"
    first, last = file.partition
    within = [r for r in landed if first <= r.partition <= last]
    for offset in sorted(set(file.offset)):
        if not any(r.from_offset <= offset < r.until_offset for r in within):
            yield (
                f"{file.path}: a row at offset {offset}, which no group's ledger has for {', '.join(candidates)}, "
                f"partitions {first} to {last}"
            )


def _only_topic(file: FileFacts, books: Books) -> str | None:
    candidates = file.topics(books.known_topics)
    return candidates[0] if len(candidates) == 1 and file.is_of_one_topic else None
