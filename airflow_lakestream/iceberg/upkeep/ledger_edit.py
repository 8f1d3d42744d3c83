"""Manual changes of a ledger, and snapshots without changed rows: compare-and-set on main, like every landing.

A commit of properties alone has no compare-and-set: of two commits on the same base, the second would win silently.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from airflow_lakestream.core import codec, lineage
from airflow_lakestream.core.codec import LedgerProperty
from airflow_lakestream.core.ledger import Counts, Landing, Ledger, TopicEntry, TopicIdentity
from airflow_lakestream.core.lineage import encode_restated
from airflow_lakestream.core.ports import Conflict
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.exceptions import LakestreamError, Transient
from airflow_lakestream.iceberg import fitness, ledger_store
from airflow_lakestream.iceberg.commit.attempt import CommitAttempt, LandingTransaction, Stage, note
from airflow_lakestream.iceberg.commit.commit import (
    Addition,
    RefusalCarrier,
    RequestPart,
    TableCommit,
    files_fit,
    head_is,
    property_part,
)
from airflow_lakestream.iceberg.commit.manifest_writers import Producer
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.rejects.settlement import FORMER_NAMES, names_of
from airflow_lakestream.tables.schema.change import SchemaChange
from airflow_lakestream.tables.tries import tries

# Attempts of a change, and the first pause between two attempts in seconds.
TRIES = 8
RETRY_PAUSE = 0.2

# Returns the new ledgers for the current table; called again if another writer came first.
Decide = Callable[[Table], Mapping[str, Ledger]]
# Returns table properties to be set in the same commit.
Properties = Callable[[Table], Mapping[str, str]]
# Makes the producer of the snapshot, with a summary.
Arrange = Callable[[LandingTransaction, dict[str, str]], Producer]
NO_LEDGERS: Mapping[str, Ledger] = {}
NO_PROPERTIES: Mapping[str, str] = {}


class EditOvertaken(Conflict):
    """Commit of another writer since the change was decided."""

    def __init__(self, table: str) -> None:
        super().__init__(f"{table}: another writer committed since the change of the ledger was decided.")


class EditNotDone(LakestreamError, Transient):
    """Failure of a change: faster writers at each try, or an outcome unknown to the end."""

    def __init__(self, table: str, last: BaseException | None) -> None:
        super().__init__(
            f"{table}: the change could not be committed in {TRIES} tries (last: {last}). Pause the DAGs that land in "
            "the table, look with `lakestream ledger show` whether it was changed after all, and run the command again."
        )


def edit_attempt(
    catalog: Catalog, table: Table, addition: Addition, summary: Mapping[str, str], stage: Stage | None = None
) -> CommitAttempt:
    """Return an attempt of a change without a landing, valid for the head of the decision only.

    :param table: the table at the decision.
    :param addition: writes the ledgers.
    :param summary: further keys of the snapshot's summary.
    """
    edit_id = uuid.uuid4().hex
    commit = TableCommit(
        "",
        Landing(edit_id, edit_id, {}),
        SchemaChange.none(table.metadata),
        ledger=None,
        fits=(files_fit, head_is(ledger_store.head_of(table.metadata), EditOvertaken)),
        additions=(addition,),
        summary=summary,
        is_landing=False,
        # PyIceberg would put the change on a head that it was not decided for.
        for_one_head=True,
    )
    return CommitAttempt(catalog, ledger_store.name_of(table), commit, stage)


def fit_table(catalog: Catalog, name: str) -> Table:
    """Return the current table. Raises the errors of `fitness` for a table unfit for commits."""
    table = fitness.load_table(catalog, name)
    fitness.check(catalog, table)
    return table


def restated(ledgers: Mapping[str, Ledger], further_properties: Mapping[str, str]) -> Addition:
    """Return the addition with changed ledgers; all other ledgers are written as they are.

    :param further_properties: further properties to set.
    """

    def ledger_part(head: Table | None, snapshot_id: int) -> RequestPart:
        """Return the part with the ledgers of all groups at the new snapshot."""
        assert head is not None, "the change was decided for a table"
        # A changed ledger is a new base at the new snapshot, without earlier landings.
        after = {group: LedgerProperty(snapshot_id, ledger, ()) for group, ledger in ledgers.items()}
        for other in ledger_store.groups(head):
            if other not in after:
                try:
                    after[other] = ledger_store.read(head, other).property_after(snapshot_id, None)
                # A ledger that can't be decided keeps its property: that is its own error, at its next run.
                except (lineage.UndecidedLedger, codec.UnreadableLedger):
                    continue
        properties = {codec.property_key(group): codec.encode_property(value) for group, value in after.items()}
        for group in ledgers:
            properties |= ledger_store.newcomer_properties(head, group)
        return property_part(properties | dict(further_properties))

    return ledger_part


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
        # The snapshot is written at the end of the context.
        with producer:
            pass

    restated_summary = encode_restated(ledgers) if ledgers else {}
    return edit_attempt(catalog, table, restated(ledgers, properties), {**restated_summary, **summary}, stage)


def rename(catalog: Catalog, name: str, group: str, to: str, decide: Decide) -> int:
    """Move a group's ledger to another name, together with the rejected records. Raises as `restate_ledgers`.

    The rejected records keep the former name; a property notes it for the new name.

    :param decide: returns the ledgers of both names after the move.
    """

    def former(table: Table) -> Mapping[str, str]:
        names = [former_name for former_name in names_of(table.properties, group) if former_name != to]
        return {FORMER_NAMES + to: json.dumps(names)}

    return restate_ledgers(catalog, name, decide, former)


def restate_ledgers(catalog: Catalog, name: str, decide: Decide, properties: Properties = lambda _: {}) -> int:
    """Replace ledgers by the result of `decide`; return the snapshot's id.

    Raises the errors of `decide`, and EditNotDone.

    :param decide: returns the new ledgers by group, for the current table. It is called again if another writer came
        first.
    :param properties: returns further table properties to set in the same commit.
    """
    snapshot_id = drive(name, lambda: _attempt(catalog, name, decide, properties))
    assert snapshot_id is not None, "there is an attempt for each head"
    return snapshot_id


def drive(name: str, make: Callable[[], CommitAttempt | None], undo: Callable[[], object] = lambda: None) -> int | None:
    """Commit a snapshot without a landing and return the id, or None if nothing is left to change.

    Raises the errors of `make` and its guard, and EditNotDone.

    :param make: returns an attempt for the current head, or None; called again if another writer came first.
    :param undo: deletes files after an error, unless a commit was sent: it may still be applied, and files that it does
        not bring stay as orphans.
    """
    attempts = list[CommitAttempt]()
    try:
        return _drive(name, make, attempts)
    except BaseException:
        if not any(attempt.reached_catalog for attempt in attempts):
            undo()
        raise


def _drive(name: str, make: Callable[[], CommitAttempt | None], attempts: list[CommitAttempt]) -> int | None:
    """Commit an attempt for the present head, and add each attempt to `attempts`; see `drive`."""
    attempt: CommitAttempt | None = None
    last: BaseException | None = None
    for _ in tries(TRIES, RETRY_PAUSE):
        if attempt is None:
            if (attempt := make()) is None:
                return None
            attempts.append(attempt)
        try:
            snapshot_id = attempt.commit([])
        except (RefusalCarrier, CommitFailedException, ValidationException) as e:
            attempt.clean_up(keep=None)
            attempt, last = None, e
        except Exception as e:
            # A catalog's client may raise any error: raised again if nothing was sent; else the outcome is looked up.
            if not attempt.reached_catalog:
                attempt.clean_up(keep=None)
                raise
            # The outcome is unknown: the same attempt, tried again, finds its own snapshot or can't be applied.
            last = e
        else:
            attempt.clean_up(keep=snapshot_id)
            return snapshot_id
    raise EditNotDone(name, last)


def forget(catalog: Catalog, name: str, group: str, identity: TopicIdentity, ranges: RangeSet, removed: Counts) -> int:
    """Write a receipt for rows deleted on purpose; return the snapshot's id. Raises the errors of a landing.

    :param ranges: the offsets of the deleted rows, as landed before.
    :param removed: the counts of the deleted rows.
    """
    entry = TopicEntry(forgotten=ranges, removed=removed)
    edit_id = f"ledger forget {uuid.uuid4().hex}"
    sink = IcebergSink(catalog, name, group, TableDesign(metadata=pa.schema([])), allow_group_overlap=True)
    sink.load(edit_id)
    return sink.commit(Landing(landing_id=edit_id, run_id=edit_id, topics={identity: entry}))


def _attempt(catalog: Catalog, name: str, decide: Decide, properties: Properties) -> CommitAttempt:
    table = fit_table(catalog, name)
    ledgers = decide(table)
    return edit_attempt(catalog, table, restated(ledgers, properties(table)), encode_restated(ledgers))
