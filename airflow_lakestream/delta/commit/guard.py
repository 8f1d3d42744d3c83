"""Commit guard of a Delta table: checks of a head before a landing, and the actions of the landing's version."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.core.ports import StaleFiles
from airflow_lakestream.delta import ledger_store
from airflow_lakestream.delta.commit.committing import commit_info
from airflow_lakestream.delta.commit.log import Action
from airflow_lakestream.delta.commit.protocol import check_writable, protocol_of
from airflow_lakestream.delta.head import DeltaTableHead
from airflow_lakestream.tables.guards import check_landing

_NO_UUID = "the table was dropped and created again"


@dataclass(frozen=True)
class DeltaTarget:
    """Target of written files: the table at the last look, with the schema change of the next commit.

    :param base: None for a table that the commit creates.
    :param fields: the columns after the commit, as Delta's JSON.
    :param partitions: the names of the partition columns.
    :param changes: the schema change in words.
    :param properties: the properties of a new table.
    """

    base: DeltaTableHead | None
    fields: Sequence[Mapping[str, Any]]
    partitions: tuple[str, ...]
    changes: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)


def check_fit(head: DeltaTableHead | None, target: DeltaTarget, table: str) -> None:
    """Refuse files written for another table, schema or partitioning. Raises StaleFiles, and UnfitTable.

    A head that has the target's schema change already is accepted.
    """
    if target.base is None or head is None:
        if head is not None:
            raise StaleFiles(table, "another run created the table")
        if target.base is not None:
            raise StaleFiles(table, "the table was dropped")
        return
    check_writable(head)
    if head.table_id != target.base.table_id:
        raise StaleFiles(table, _NO_UUID)
    if list(head.fields) != list(target.base.fields) and list(head.fields) != list(target.fields):
        raise StaleFiles(table, "the schema was changed")
    if head.partitions != target.partitions:
        raise StaleFiles(table, "the partitioning was changed")


def check_ledger(
    head: DeltaTableHead | None, consumer_group: str, landing: Landing, *, allow_group_overlap: bool
) -> None:
    """Refuse a landing forbidden by the ledgers at the head; without a table, nothing is forbidden.

    Raises the errors of `tables.guards.check_landing`, and UnreadableLedger.
    """
    if head is None:
        return
    others = {} if allow_group_overlap else ledger_store.other_ledgers(head, consumer_group)
    check_landing(head.table, landing, ledger_store.read_ledger(head, consumer_group), others.values())


def landing_actions(
    head: DeltaTableHead | None,
    target: DeltaTarget,
    consumer_group: str,
    landing: Landing,
    files: Sequence[Action],
    operation: tuple[str, dict[str, Any]],
    notes: Mapping[str, str],
    gone: Sequence[str] = (),
) -> list[Action]:
    """Return the actions of a version: commit info, protocol, properties with the ledger, transaction, files.

    Raises the errors of the landing's precondition.

    :param files: actions that add and remove files.
    :param operation: the name and the parameters of the operation in the commit info.
    :param notes: further properties to set.
    :param gone: the names of properties to remove.
    """
    landing.check_precondition()
    # The change in words is left out if another landing has made the change already.
    changes = target.changes if head is None or list(head.fields) != list(target.fields) else ()
    summary = ledger_store.summary_of(head, consumer_group, landing, changes if head is not None else ())
    version = 0 if head is None else head.version + 1
    own = {**ledger_store.properties_after(head, consumer_group, version, landing), **notes}
    generation = ledger_store.next_generation(head, consumer_group)
    actions: list[Action] = [commit_info(*operation, dict(summary)), *protocol_of(head, target.fields)]
    if head is None:
        head = _new_head(target)
    kept = {key: value for key, value in head.properties.items() if key not in gone}
    properties = {**kept, **own}
    actions.append(head.metadata_action(properties, target.fields))
    actions.append({"txn": {"appId": ledger_store.app_id(consumer_group), "version": generation}})
    return [*actions, *files]


def _new_head(target: DeltaTarget) -> DeltaTableHead:
    return DeltaTableHead(
        table="",
        version=-1,
        table_id=str(uuid.uuid4()),
        created_time=time.time_ns() // 1_000_000,
        properties=target.properties,
        partitions=target.partitions,
        schema=pa.schema([]),
        fields=target.fields,
    )
