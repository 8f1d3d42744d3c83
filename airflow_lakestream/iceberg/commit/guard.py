"""Commit guard: the compare-and-set check inside PyIceberg's commit retry, called on every attempt.

PyIceberg replays an append on a moved head without a check (its fast append validates nothing), and deletes the
manifests of a commit that was reported as failed though it was applied. So the table that commits has this guard for
a catalog: it refuses landings that the ledger at the real head forbids, computes the ledger for that head, and lets a
commit fail only after it has looked for its own snapshot.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError, ValidationException
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadataV1
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCreate,
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertLastAssignedFieldId,
    AssertRefSnapshotId,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
    TableRequirement,
    TableUpdate,
)

from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.core.ports import Conflict, StaleFiles
from airflow_lakestream.iceberg import fitness, ledger_store
from airflow_lakestream.iceberg.commit import hive, retention
from airflow_lakestream.iceberg.commit.commit import RefusalCarrier, RequestPart, TableCommit
from airflow_lakestream.tables.schema.change import SchemaChange

log = logging.getLogger(__name__)

Kind = TypeVar("Kind")


class NotApplied(ValidationException):
    """Commit without effect; PyIceberg deletes the manifests and does not send the same changes again."""


class OutcomeUnknown(Exception):
    """Commit with an unknown outcome; PyIceberg must not delete files."""


class CommitGuard:
    """Catalog for the attempts of a commit; all calls except `commit_table` go to the real catalog.

    It is used for all attempts, also after an unknown outcome: earlier attempts then count as its own.
    """

    def __init__(self, catalog: Catalog, commit: TableCommit) -> None:
        self._catalog, self.commit = catalog, commit
        # Whether a request was sent to the catalog.
        self.asked = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def as_catalog(self) -> Catalog:
        """Return the guard with the type of a catalog, for PyIceberg."""
        return cast(Catalog, self)

    def expect(self, landing: Landing) -> None:
        """Set the landing for the next request: the same landing, completed for another head."""
        self.commit = replace(self.commit, landing=landing)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Commit, unless a check refuses the table's head. Called by PyIceberg on every attempt.

        If the landing is in the history already, the current table is returned. Else the commit also sets the ledgers'
        properties and removes expiring snapshots; afterwards the files that only these needed are deleted. Raises
        RefusalCarrier for a refused landing, OutcomeUnknown, and the error of `_not_applied` if the commit was prepared
        for another head.
        """
        if any(isinstance(r, AssertCreate) for r in requirements):
            response = self._create(table, requirements, updates)
        else:
            response = self._commit_at_head(table, requirements, updates)
        for step in self.commit.after:
            step(table, response.metadata)
        return response

    def _commit_at_head(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Check the head, and send the commit with requirements that hold for this head only."""
        current = self._catalog.load_table(table.name())
        if self.landed_in(current) is not None:
            return response_of(current)
        self.commit.check_fit(current)
        if ledger_store.facts_of(current.metadata).head_id != _base_of(requirements):
            raise self._not_applied("main moved since the commit was prepared")
        snapshot = _only(AddSnapshotUpdate, updates).snapshot
        if not isinstance(current.metadata, TableMetadataV1) and (
            (snapshot.sequence_number or 0) <= current.metadata.last_sequence_number
        ):
            # A rollback has set main back to the commit's base. A catalog would refuse the snapshot's sequence number
            # by an error that leaves the outcome open.
            raise self._not_applied("main moved since the commit was prepared, and was rolled back")
        requirements += self._schema_requirements(current, updates)
        self.check_ledger(current)
        self._check_precondition()
        expiring = retention.expiring(current.metadata) if self.commit.is_landing else []
        part = self._part(current, current, snapshot.snapshot_id, expiring)
        response = self._commit(table, requirements + part.requirements, updates + part.updates)
        if expiring:
            retention.delete_unneeded_files(current, response.metadata, expiring)
        return response

    def _part(self, head: Table | None, ledgers: Table, snapshot_id: int, expiring: Sequence[int] = ()) -> RequestPart:
        """Return the ledger's properties, the removal of snapshots, and the commit's additions; may refuse the head.

        :param head: the current table, or None for a new one.
        :param ledgers: the table with the ledgers: a new table has none.
        """
        commit, parts = self.commit, list[RequestPart]()
        if commit.is_landing:
            properties = ledger_store.properties_after(ledgers, commit.group, snapshot_id, commit.landing, expiring)
            ledger_update = SetPropertiesUpdate(updates={**properties, **commit.notes})
            required = retention.requirements(self._catalog, expiring)
            parts.append(RequestPart(required, (ledger_update, *retention.removals(expiring))))
        parts += (add(head, snapshot_id) for add in commit.additions)
        return RequestPart(
            tuple(item for part in parts for item in part.requirements),
            tuple(item for part in parts for item in part.updates),
        )

    def landed_in(self, table: Table) -> int | None:
        """Return the snapshot of this landing in the table's history, or None."""
        group, landing_id = self.commit.group, self.commit.landing.landing_id
        if not self.commit.is_landing:
            # The journal is not read: it is a part of the ledger, and this commit may repair a ledger.
            return ledger_store.live_snapshot_of(table, landing_id)
        return ledger_store.snapshot_of_landing(table, group, landing_id)

    def check_ledger(self, current: Table) -> None:
        """Refuse a landing forbidden by the ledger at the table's head, or by another check. Raises RefusalCarrier."""
        self.commit.check_ledger(current)

    def _check_precondition(self) -> None:
        """Refuse a landing whose own precondition fails. Raises RefusalCarrier."""
        try:
            self.commit.landing.check_precondition()
        except Conflict as e:
            raise RefusalCarrier(e) from None

    def change_at(self, current: Table) -> SchemaChange | None:
        """Return the remaining change of the schema, or None if already made or empty."""
        change = self.commit.change
        return None if not change or change.is_made_in(current.metadata) else change

    def _schema_requirements(self, current: Table, updates: tuple[TableUpdate, ...]) -> tuple[TableRequirement, ...]:
        """Return assertions of the table's columns and partition spec. Raises NotApplied if the schema was changed."""
        changes = any(isinstance(update, SetCurrentSchemaUpdate) for update in updates)
        if changes != (self.change_at(current) is not None):
            # The next attempt stages the change again: PyIceberg would repeat a change that another run has made.
            raise NotApplied("the schema was changed since the commit was prepared")
        metadata = current.metadata
        required: list[TableRequirement] = [
            AssertCurrentSchemaId.model_validate(
                {"type": "assert-current-schema-id", "current-schema-id": metadata.current_schema_id}
            ),
            AssertDefaultSpecId.model_validate(
                {"type": "assert-default-spec-id", "default-spec-id": self.commit.change.base.default_spec_id}
            ),
        ]
        if changes:
            required.append(
                AssertLastAssignedFieldId.model_validate(
                    {"type": "assert-last-assigned-field-id", "last-assigned-field-id": metadata.last_column_id}
                )
            )
        return tuple(required)

    def _create(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Create the table with the first snapshot and the ledger."""
        self._check_precondition()
        # The staged table has no history: the ledger after this landing is the landing alone.
        part = self._part(None, table, _only(AddSnapshotUpdate, updates).snapshot.snapshot_id)
        return self._commit(table, requirements + part.requirements, updates + part.updates)

    def _commit(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Send the request; after a failure, find the outcome in the table.

        Raises RefusalCarrier, OutcomeUnknown, and the error of `_not_applied`.
        """
        self.asked = True
        try:
            return fitness.commit_table(self._catalog, table, requirements, updates)
        except (CommitFailedException, TableAlreadyExistsError) as e:
            # "Failed" may mean "applied, and the answer lost": only the table shows the outcome.
            current = self._look_again(table)
            if current is not None and self.landed_in(current) is not None:
                log.info("The commit was reported as failed (%s), but it had been applied.", e)
                return response_of(current)
            # NotTaken is certain: the request had no effect, and can't have one later.
            if not isinstance(e, hive.NotTaken) and _may_be_applied_yet(current, requirements):
                raise OutcomeUnknown(f"reported as failed ({e}), but nothing keeps it from being applied yet") from e
            if any(isinstance(r, AssertCreate) for r in requirements):
                raise RefusalCarrier(StaleFiles(ledger_store.name_of(table), "another run created the table")) from e
            raise self._not_applied(str(e)) from e

    def _not_applied(self, reason: str) -> Exception:
        """Return the error for a commit without effect.

        CommitFailedException makes PyIceberg rebase the files and try again. The changes of a commit for one head fit
        no other head: NotApplied ends PyIceberg's retry, and the next attempt makes the changes again.
        """
        return NotApplied(reason) if self.commit.for_one_head else CommitFailedException(reason)

    def _look_again(self, table: Table) -> Table | None:
        """Return the table after a failed request, or None if it is missing. Raises OutcomeUnknown."""
        try:
            return self._catalog.load_table(table.name())
        except NoSuchTableError:
            return None
        except Exception as e:
            raise OutcomeUnknown(f"the commit was reported as failed, and the table can't be read: {e}") from e


def _may_be_applied_yet(current: Table | None, requirements: tuple[TableRequirement, ...]) -> bool:
    """Return whether the catalog could still apply a request that it reported as failed.

    It could if the table is missing, or if main is at the snapshot that the request asserts. For example, Glue reports
    a "concurrent modification" if the client's own first request is still under way.
    """
    if current is None:
        return True
    if any(isinstance(r, AssertCreate) for r in requirements):
        return False
    return ledger_store.facts_of(current.metadata).head_id == _base_of(requirements)


def response_of(table: Table) -> CommitTableResponse:
    """Return a catalog's response to a commit with the current table as the outcome."""
    return CommitTableResponse.model_construct(metadata=table.metadata, metadata_location=table.metadata_location)


def _base_of(requirements: tuple[TableRequirement, ...]) -> int | None:
    """Return the asserted snapshot of main, or None for a main without snapshots.

    Further branches may be asserted, too.
    """
    refs = (r for r in requirements if isinstance(r, AssertRefSnapshotId))
    return _only(AssertRefSnapshotId, tuple(r for r in refs if r.ref == MAIN_BRANCH)).snapshot_id


def _only(kind: Callable[..., Kind], items: tuple[Any, ...]) -> Kind:
    """Return the only item of a kind. Raises AssertionError for none or several."""
    matches = [item for item in items if isinstance(item, cast(type, kind))]
    if len(matches) != 1:
        raise AssertionError(f"a commit of a landing has exactly one {kind}, found {matches}")
    return cast(Kind, matches[0])
