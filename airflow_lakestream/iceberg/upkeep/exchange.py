"""Commit of a snapshot with the rows of its parent in another arrangement, decided for one head and guarded."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from airflow_lakestream.core import codec
from airflow_lakestream.iceberg import fitness
from airflow_lakestream.iceberg.commit.attempt import AppendAttempt, LandingTransaction, note
from airflow_lakestream.iceberg.commit.guard import CommitGuard
from airflow_lakestream.iceberg.commit.manifest_writers import Producer
from airflow_lakestream.iceberg.upkeep.ledger_edit import edit_commit, restated

# Makes the producer of the snapshot, with a summary.
Arrange = Callable[[LandingTransaction, dict[str, str]], Producer]


class ExchangeAttempt(AppendAttempt):
    """Attempt to commit such a snapshot."""

    def __init__(
        self, catalog: Catalog, name: str, guard: CommitGuard, summary: Mapping[str, str], arrange: Arrange
    ) -> None:
        super().__init__(catalog, name, guard, summary)
        self._arrange = arrange

    def _stage(self, transaction: LandingTransaction, table: Table, files: Sequence[DataFile]) -> None:
        producer = self._arrange(transaction, self._summary)
        note(producer, self._producers)
        with producer:
            pass


def fit_table(catalog: Catalog, name: str) -> Table:
    """Return the current table. Raises the errors of `fitness` for a table unfit for commits."""
    table = fitness.load_table(catalog, name)
    fitness.check(catalog, table)
    return table


def attempt_at(
    catalog: Catalog, name: str, table: Table, summary: Mapping[str, str], arrange: Arrange
) -> ExchangeAttempt:
    """Return an attempt for the head of `table`, for `ledger_edit.drive`.

    :param summary: further keys of the snapshot's summary.
    """
    edit_id = uuid.uuid4().hex
    guard = CommitGuard(catalog, edit_commit(edit_id, table, restated({}, {})))
    known = {codec.SUMMARY_VERSION: str(codec.VERSION), codec.SUMMARY_LANDING_ID: edit_id}
    return ExchangeAttempt(catalog, name, guard, {**known, **summary}, arrange)
