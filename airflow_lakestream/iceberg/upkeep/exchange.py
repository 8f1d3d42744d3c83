"""Commit of a snapshot with other files for rows of its parent, decided for one head and guarded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from airflow_lakestream.core.ledger import Ledger
from airflow_lakestream.core.lineage import encode_restated
from airflow_lakestream.iceberg import fitness
from airflow_lakestream.iceberg.commit.attempt import CommitAttempt, LandingTransaction, note
from airflow_lakestream.iceberg.commit.manifest_writers import Producer
from airflow_lakestream.iceberg.upkeep.ledger_edit import edit_attempt, restated

# Makes the producer of the snapshot, with a summary.
Arrange = Callable[[LandingTransaction, dict[str, str]], Producer]
NO_LEDGERS: Mapping[str, Ledger] = {}
NO_PROPERTIES: Mapping[str, str] = {}


def fit_table(catalog: Catalog, name: str) -> Table:
    """Return the current table. Raises the errors of `fitness` for a table unfit for commits."""
    table = fitness.load_table(catalog, name)
    fitness.check(catalog, table)
    return table


def attempt_at(
    catalog: Catalog,
    table: Table,
    summary: Mapping[str, str],
    arrange: Arrange,
    ledgers: Mapping[str, Ledger] = NO_LEDGERS,
    properties: Mapping[str, str] = NO_PROPERTIES,
) -> CommitAttempt:
    """Return an attempt for the head of `table`, for `ledger_edit.drive`.

    :param summary: further keys of the snapshot's summary.
    :param ledgers: the changed ledgers by group; default: none changes.
    :param properties: table properties to set in the same commit.
    """

    def stage(attempt: CommitAttempt, transaction: LandingTransaction, _: Table, __: Sequence[DataFile]) -> None:
        producer = arrange(transaction, attempt.summary)
        note(producer, attempt.producers)
        with producer:
            pass

    known = encode_restated(ledgers) if ledgers else {}
    return edit_attempt(catalog, table, restated(ledgers, properties), {**known, **summary}, stage)
