"""Commit as a value: the landing, the table that it was made for, checks of the head, and parts of the request.

A kind of commit is a builder: a function that adds checks and parts of the request to a commit. The guard runs the
checks in every attempt. A check refuses a head by a RefusalCarrier; any other error leaves open whether an earlier
attempt was applied, and keeps the files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from pyiceberg.exceptions import ValidationException
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import SetPropertiesUpdate, TableRequirement, TableUpdate

from airflow_lakestream.core import codec
from airflow_lakestream.core.ledger import Landing, Ledger
from airflow_lakestream.core.ports import Conflict, StaleFiles
from airflow_lakestream.exceptions import LakestreamError
from airflow_lakestream.iceberg import fitness, ledger_store
from airflow_lakestream.tables.guards import check_landing
from airflow_lakestream.tables.schema.change import SchemaChange


class RefusalCarrier(ValidationException):
    """Carrier of a package error through PyIceberg: a ValidationException ends the retries and deletes manifests."""

    def __init__(self, error: LakestreamError) -> None:
        self.error = error
        super().__init__(str(error))


@dataclass(frozen=True)
class RequestPart:
    """Requirements and updates that go with a commit's own."""

    requirements: tuple[TableRequirement, ...] = ()
    updates: tuple[TableUpdate, ...] = ()


def property_part(properties: Mapping[str, str]) -> RequestPart:
    """Return the part that sets table properties; empty without properties."""
    return RequestPart(updates=(SetPropertiesUpdate(updates=dict(properties)),) if properties else ())


# A check of a table's head; raises RefusalCarrier to refuse the head.
Check: TypeAlias = Callable[["TableCommit", Table], None]
# Returns a further part of a request, for the table's head (None for a new table) and the id of the new snapshot; may
# refuse the head by a RefusalCarrier, too.
Addition: TypeAlias = Callable[[Table | None, int], RequestPart]
CommitBuilder: TypeAlias = Callable[["TableCommit"], "TableCommit"]


def ledger_allows(commit: TableCommit, head: Table) -> None:
    """Refuse a landing that the ledgers of this group or of another group forbid."""
    _check_landing(commit, head, ledger_store.other_ledgers(head, commit.group))


def ledger_allows_overlap(commit: TableCommit, head: Table) -> None:
    """Refuse a landing that the ledger of this group forbids; other groups may have the same offsets."""
    _check_landing(commit, head, {})


def _check_landing(commit: TableCommit, head: Table, others: Mapping[str, Ledger]) -> None:
    own = ledger_store.read_ledger(head, commit.group)
    try:
        check_landing(ledger_store.name_of(head), commit.landing, own, others.values())
    except Conflict as e:
        raise RefusalCarrier(e) from None


def files_fit(commit: TableCommit, head: Table) -> None:
    """Refuse files written for another table, schema or spec, since PyIceberg would accept the files."""
    name, written_for = ledger_store.name_of(head), commit.change.base
    try:
        fitness.check_version(head.metadata, name)
    except fitness.FormatVersionTooNew as e:
        raise RefusalCarrier(e) from None
    if head.metadata.table_uuid != written_for.table_uuid:
        raise RefusalCarrier(StaleFiles(name, "the table was dropped and created again"))
    if not commit.change.fits(head.metadata):
        raise RefusalCarrier(StaleFiles(name, "the schema was changed"))
    if head.metadata.default_spec_id != written_for.default_spec_id:
        raise RefusalCarrier(StaleFiles(name, "the partition spec was changed"))


def head_is(snapshot_id: int | None, moved: Callable[[str], LakestreamError]) -> Check:
    """Return a check that refuses another head; `moved`: makes the error from the table's name."""

    def check(_: TableCommit, head: Table) -> None:
        if ledger_store.head_of(head.metadata) != snapshot_id:
            raise RefusalCarrier(moved(ledger_store.name_of(head)))

    return check


@dataclass(frozen=True)
class TableCommit:
    """One change of a table, in one snapshot.

    :param change: the table for which the files were written, and the change of its schema in the same commit.
    :param ledger: the check of the ledgers, or None.
    :param fits: checks of a head before files are staged for it, and again in the request, in this order.
    :param checks: further checks in the request, after `ledger`.
    :param additions: further parts of the request.
    :param notes: table properties next to the ledger's, for later readers of the table.
    :param summary: further entries of the snapshot's summary.
    :param after: called after the commit, with the table before and the metadata now.
    :param is_landing: whether the landing goes into its group's ledger, and snapshots expire. Else the additions write
        the ledgers.
    :param for_one_head: whether PyIceberg must not send the files again to a moved head, as for removed files.
    """

    group: str
    landing: Landing
    change: SchemaChange
    ledger: Check | None = ledger_allows
    fits: tuple[Check, ...] = (files_fit,)
    checks: tuple[Check, ...] = ()
    additions: tuple[Addition, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    summary: Mapping[str, str] = field(default_factory=dict)
    after: tuple[Callable[[Table, TableMetadata], None], ...] = ()
    is_landing: bool = True
    for_one_head: bool = False

    def whole_summary(self) -> dict[str, str]:
        """Return the entries of the snapshot's summary: the landing or the id of another change, and `summary`."""
        id_only = {codec.SUMMARY_VERSION: str(codec.VERSION), codec.SUMMARY_LANDING_ID: self.landing.landing_id}
        return {**(codec.encode_summary(self.group, self.landing) if self.is_landing else id_only), **self.summary}

    def check_fit(self, head: Table) -> None:
        """Refuse a head that files must not be staged for, or that staged files do not fit. Raises RefusalCarrier.

        Other errors leave open whether an earlier attempt was applied.
        """
        for check in self.fits:
            check(self, head)

    def check_ledger(self, head: Table) -> None:
        """Refuse a landing forbidden by the ledger at a head, or by another check. Raises RefusalCarrier."""
        for check in (self.ledger, *self.checks):
            if check is not None:
                check(self, head)


def with_fit(commit: TableCommit, check: Check) -> TableCommit:
    """Return the commit with a further check of each head for which files are staged."""
    return replace(commit, fits=(*commit.fits, check))
