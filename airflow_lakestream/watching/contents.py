"""Contents of a table as a document of bounded size: files, newest snapshots, and samples of rejected records.

The document is written to Airflow's database for people to read. So likely secrets in records are hidden, and
characters that are not printable are escaped.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from airflow_lakestream.audit.run import load_both
from airflow_lakestream.config import arguments
from airflow_lakestream.config.settings import SettingField
from airflow_lakestream.core.bad_records import kind_of
from airflow_lakestream.core.names import check_table_name
from airflow_lakestream.core.secrecy import is_secret_name, without_secrets
from airflow_lakestream.decode.values.outcome import excerpt
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.reject_table import newest_counting_rows
from airflow_lakestream.iceberg.upkeep.file_use import FileUse
from airflow_lakestream.iceberg.upkeep.reject_summary import RejectExample, RejectReason, by_reason
from airflow_lakestream.tables.coordinates import iso
from airflow_lakestream.watching.streams.landings import SnapshotRecord, newest_snapshots

MOST_SAMPLES = 10
MOST_REASONS = 5
MOST_SNAPSHOTS = 10
MOST_CHARACTERS = 200  # most characters of a text from a record
MOST_BYTES = 32 * 2**10  # most bytes of the document as JSON
READ_BYTES = 32 * 2**20  # most bytes of reject files that are read for samples
# Characters of a value that are searched for secrets: a secret may reach beyond the shown characters.
_SEARCHED_CHARACTERS = 1000
_COLUMNS = ("stage", "error", "value", "run_id")
_WORD = re.compile(r"[\w.-]+")
# By name in the document: the key in a snapshot's summary.
_TOTALS = {
    "data_files": "total-data-files",
    "delete_files": "total-delete-files",
    "bytes": "total-files-size",
    "rows": "total-records",
}


@dataclass(frozen=True)
class TableContents:
    """A look at an Iceberg table. Raises InvalidArgument.

    :param consumer_group: the group whose rejected records are shown.
    :param samples: how many rejected records are shown for each reason, at most; 0 for no samples.
    """

    table: str
    consumer_group: str
    samples: SettingField[int] = SettingField(3, arguments.count_from_zero)

    def __post_init__(self) -> None:
        check_table_name(self.table)
        if self.samples > MOST_SAMPLES:
            raise InvalidArgument("samples", f"{self.samples} are too many.", f"Take at most {MOST_SAMPLES}.")

    def look(self, catalog: Catalog) -> dict[str, Any]:
        """Return the document about files, snapshots and rejected records.

        Raises TableMissing, UnreadableLedger, UndecidedLedger.
        """
        main, rejects = load_both(catalog, self.table)
        document = {
            "table": self.table,
            "consumer_group": self.consumer_group,
            "files": _files(main),
            "snapshots": {
                "count": len(main.metadata.snapshots),
                "newest": [_snapshot(record) for record in newest_snapshots(main, MOST_SNAPSHOTS)],
            },
            "rejects": self._rejects(main, rejects),
        }
        return _cut_to_size(document)

    def _rejects(self, main: Table, rejects: Table | None) -> dict[str, Any]:
        """Return the number of the group's rejected records, and the reasons of the newest, with samples.

        `count` is the number of rejected records in the ledger. Of the reject table at most READ_BYTES are read:
        `looked_at` is the number of records read, and `kinds` the number of their reasons. `reasons` has at most
        MOST_REASONS of these.
        """
        ledger = ledger_store.read_ledger(main, self.consumer_group)
        count = sum(entry.counts.rejected for entry in ledger.topics.values())
        reasons: list[RejectReason] = []
        if rejects is not None and count:
            rows = newest_counting_rows(rejects, main, self.consumer_group, columns=_COLUMNS, most_bytes=READ_BYTES)
            reasons = by_reason(rows, self.samples)
        return {
            "count": count,
            "looked_at": sum(reason.count for reason in reasons),
            "kinds": len(reasons),
            "reasons": [
                {
                    "stage": reason.stage,
                    "reason": excerpt(reason.kind, MOST_CHARACTERS),
                    "records": reason.count,
                    "samples": [_sample(example) for example in reason.examples],
                }
                for reason in reasons[:MOST_REASONS]
            ],
        }


def _files(table: Table) -> dict[str, int | str | None]:
    """Return the numbers of data files, delete files, bytes, rows and small files, and the time of the last compaction.

    The numbers are from summaries of snapshots. A number that the summary does not have is None.
    """
    snapshot = table.metadata.current_snapshot()
    summary = {} if snapshot is None else ledger_store.summary_of(snapshot)
    totals = {name: summary.get(key, "") for name, key in _TOTALS.items()}
    use = FileUse.of(table.metadata)
    return {
        **{name: int(text) if text.isdecimal() else None for name, text in totals.items()},
        "small_files": use.small,
        "compacted_at": None if use.compacted_at is None else iso(use.compacted_at),
    }


def _snapshot(record: SnapshotRecord) -> dict[str, Any]:
    kind = "landing" if record.landing is not None else "compaction" if record.is_compaction else "other writer"
    return {
        # As text: browsers round 64-bit numbers.
        "snapshot_id": str(record.snapshot_id),
        "at": iso(record.at_ms),
        "operation": record.operation,
        "kind": kind,
        "consumer_group": record.consumer_group,
        "rows": record.rows,
    }


def _sample(example: RejectExample) -> dict[str, Any]:
    value = example.value
    text = None if value is None else without_secrets(value[:_SEARCHED_CHARACTERS].decode(errors="backslashreplace"))
    return {
        "topic": example.topic,
        "partition": example.partition,
        "offset": example.offset,
        "error": excerpt(_without_secrets(example.error), MOST_CHARACTERS),
        "value": None if text is None else excerpt(text, MOST_CHARACTERS),
        "bytes": None if value is None else len(value),
        "run_id": example.run_id,
    }


def _without_secrets(error: str) -> str:
    """Return the text of an error without secrets. If the text has a secret's name, all quoted values are removed."""
    names_secret = any(map(is_secret_name, _WORD.findall(error)))
    return kind_of(error) if names_secret else without_secrets(error)


def _cut_to_size(document: dict[str, Any]) -> dict[str, Any]:
    """Remove samples from a document, the last first, until the document has at most MOST_BYTES or no samples.

    Returns the same document, changed in place.
    """
    samples_by_reason = [reason["samples"] for reason in document["rejects"]["reasons"]]
    while len(json.dumps(document)) > MOST_BYTES and any(samples_by_reason):
        last_samples = next(samples for samples in reversed(samples_by_reason) if samples)
        last_samples.pop()
    return document
