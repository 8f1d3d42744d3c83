"""Compare-and-set: a landing is made for a head, checked by the guard, and becomes the next version or is not applied.

If the version is taken, or the answer was lost, the version's file is read: it names the landing that wrote it. A
landing can't get two files: the second would be made for a head that shows whether the first was written.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import pyarrow as pa

from airflow_lakestream.core import codec
from airflow_lakestream.core.ledger import Landing, Ledger
from airflow_lakestream.core.ports import StaleFiles
from airflow_lakestream.delta import ledger_store
from airflow_lakestream.delta.files import Add
from airflow_lakestream.delta.head import DeltaTableHead
from airflow_lakestream.delta.protocol import Action, check_writable, info_of, protocol_of, put_commit, read_commit
from airflow_lakestream.delta.storage import DeltaTableAccess
from airflow_lakestream.exceptions import LakestreamError, Transient
from airflow_lakestream.tables.guards import check_landing
from airflow_lakestream.tables.tries import tries

log = logging.getLogger(__name__)

COMMIT_TRIES = 20
# Seconds before the second attempt.
RETRY_PAUSE = 0.05
# Versions between two checkpoints: the default of Delta's other writers.
CHECKPOINT_INTERVAL = 10

# Names of operations, and their parameters, in `commitInfo`.
APPEND = ("WRITE", {"mode": "Append"})
CREATE = ("CREATE TABLE AS SELECT", {"mode": "ErrorIfExists"})
OVERWRITE = ("WRITE", {"mode": "Overwrite"})


class DeltaCommitUnknown(LakestreamError, Transient):
    """Commit with an unknown outcome: the store gave no answer, and could not be read afterwards."""

    def __init__(self, table: str, cause: BaseException) -> None:
        super().__init__(
            f"{table}: the store did not report whether the last commit was written ({cause!r}), at any try. "
            "Its data files were left in place, since the commit may still land. A retry finds out: "
            "the ledger is in the same commit as the rows, so nothing is doubled or lost."
        )


class DeltaCommitRefused(LakestreamError, Transient):
    """Failure of all commit attempts, since another writer was faster each time; the table is unchanged."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"{table}: {COMMIT_TRIES} times in a row another writer committed first. Nothing was applied. Retry; let "
            "fewer writers commit to the table at once."
        )


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


@dataclass(frozen=True)
class DeltaFileChange:
    """Removed and new files of a version.

    :param out: the removed files.
    :param new: the new files.
    :param landing: the landing completed for this head, or None for the commit's own landing.
    """

    out: Sequence[Add] = ()
    new: Sequence[Add] = ()
    landing: Landing | None = None

    def actions(self) -> list[Action]:
        """Return the actions that remove files now, and add files."""
        return [*map(_remove_action, self.out), *({"add": dict(add)} for add in self.new)]


@dataclass(frozen=True)
class DeltaCommit:
    """One change of a table, in one version; see `iceberg.commit.commit` for the same value of Iceberg.

    :param target: the table for which the files were written, and the change of its columns in the same version.
    :param stage: returns the files to change at a head (None without a table); called after the checks.
    :param checks: checks of the head of each attempt, in this order; a check or `stage` raises to refuse the head.
    :param notes: table properties to set next to the ledger's.
    :param gone: the names of table properties to remove.
    :param written: all files that `stage` has written, for any head: the list grows. Files of attempts other than the
        committed one are deleted.
    """

    table: str
    group: str
    landing: Landing
    target: DeltaTarget
    stage: Callable[[DeltaTableHead | None], DeltaFileChange]
    checks: tuple[DeltaCheck, ...]
    notes: Mapping[str, str] = field(default_factory=dict)
    gone: Sequence[str] = ()
    written: Sequence[Add] = ()


# A check of a table's head (None without a table); raises the error that refuses the head.
DeltaCheck: TypeAlias = Callable[[DeltaCommit, DeltaTableHead | None], None]


def files_fit(commit: DeltaCommit, head: DeltaTableHead | None) -> None:
    """Refuse files written for another table, schema or partitioning. Raises StaleFiles, and UnfitTable.

    A head that has the target's schema change already is accepted.
    """
    table, target = commit.table, commit.target
    if target.base is None or head is None:
        if head is not None:
            raise StaleFiles(table, "another run created the table")
        if target.base is not None:
            raise StaleFiles(table, "the table was dropped")
        return
    check_writable(head)
    if head.table_id != target.base.table_id:
        raise StaleFiles(table, "the table was dropped and created again")
    if list(head.fields) != list(target.base.fields) and list(head.fields) != list(target.fields):
        raise StaleFiles(table, "the schema was changed")
    if head.partitions != target.partitions:
        raise StaleFiles(table, "the partitioning was changed")


def ledger_allows(commit: DeltaCommit, head: DeltaTableHead | None) -> None:
    """Refuse a landing that the ledgers of this group or of another group forbid.

    Raises the errors of `tables.guards.check_landing`, and UnreadableLedger.
    """
    if head is not None:
        _check_landing(commit, head, ledger_store.other_ledgers(head, commit.group))


def ledger_allows_overlap(commit: DeltaCommit, head: DeltaTableHead | None) -> None:
    """Refuse a landing that the ledger of this group forbids; other groups may have the same offsets."""
    if head is not None:
        _check_landing(commit, head, {})


def _check_landing(commit: DeltaCommit, head: DeltaTableHead, others: Mapping[str, Ledger]) -> None:
    """Refuse a landing that the group's ledger or other ledgers forbid."""
    check_landing(head.table, commit.landing, ledger_store.read_ledger(head, commit.group), others.values())


def _actions(commit: DeltaCommit, head: DeltaTableHead | None, change: DeltaFileChange) -> list[Action]:
    """Return the actions of a version: commit info, protocol, properties with the ledger, transaction, files.

    Raises the errors of the landing's precondition.
    """
    landing, target, group = change.landing or commit.landing, commit.target, commit.group
    landing.check_precondition()
    # The change in words is left out if another landing has made the change already.
    changes = target.changes if head is not None and list(head.fields) != list(target.fields) else ()
    summary = ledger_store.summary_of(head, group, landing, changes)
    version = 0 if head is None else head.version + 1
    own = {**ledger_store.properties_after(head, group, version, landing), **commit.notes}
    generation = ledger_store.next_generation(head, group)
    operation = CREATE if head is None else OVERWRITE if change.out else APPEND
    actions: list[Action] = [commit_info(*operation, dict(summary)), *protocol_of(head, target.fields)]
    if head is None:
        head = _new_head(target)
    kept = {key: value for key, value in head.properties.items() if key not in commit.gone}
    properties = {**kept, **own}
    actions.append(head.metadata_action(properties, target.fields))
    actions.append({"txn": {"appId": ledger_store.app_id(group), "version": generation}})
    return [*actions, *change.actions()]


class DeltaCommitter:
    """Attempts of a commit, each at the newest head."""

    def __init__(self, tables: DeltaTableAccess, commit: DeltaCommit) -> None:
        self._tables, self._commit, self._table = tables, commit, commit.table
        # The new files of the committed version.
        self.committed: Sequence[Add] = ()
        # Versions requested without an answer: this landing may have committed each, or may still commit it.
        self._open: list[int] = []

    @cached_property
    def _store(self) -> Any:
        return self._tables.store(self._table)

    def may_be_applied(self) -> bool:
        """Return whether an unanswered request may have been applied, or may still be applied."""
        return bool(self._open)

    def commit(self) -> int:
        """Commit the landing, or find its earlier commit, and return the version.

        An unclear outcome of an attempt is looked up in the log. Raises the errors of checks and `stage`,
        DeltaCommitUnknown and DeltaCommitRefused, and an error of the store if no attempt has sent a request.
        """
        unknown: BaseException | None = None
        for _ in tries(COMMIT_TRIES, RETRY_PAUSE):
            try:
                version = self._try()
            except LakestreamError:
                raise
            except Exception as e:  # any error of the store: raised if nothing was sent, else the outcome is looked up
                if not self._open:
                    raise
                log.warning("%s: the store did not report whether the commit was written: %r", self._table, e)
                unknown = e
            else:
                if version is not None:
                    return version
        if self._open and unknown is not None:
            raise DeltaCommitUnknown(self._table, unknown) from unknown
        raise DeltaCommitRefused(self._table)

    def _try(self) -> int | None:
        """Try to commit once; return the landing's version, or None if another writer has taken the version."""
        head = self._tables.open(self._table)
        # The search follows the read of the head: if the head has this landing, the search finds it.
        if (landed := self._landed()) is not None:
            return landed
        for check in self._commit.checks:
            check(self._commit, head)
        change = self._commit.stage(head)
        actions = _actions(self._commit, head, change)
        version = 0 if head is None else head.version + 1
        # The version is noted before the request: without an answer, it may be this landing's.
        self._open.append(version)
        if put_commit(self._store, version, actions):
            self.committed = change.new
            return version
        # The version may be this landing's: the store's client may have sent the request twice.
        return self._landed()

    def _landed(self) -> int | None:
        """Return the version that this landing got by an unanswered request, or None."""
        for version in list(dict.fromkeys(self._open)):
            actions = read_commit(self._store, version)
            if actions is None:
                continue
            if info_of(actions).get(codec.SUMMARY_LANDING_ID) == self._commit.landing.landing_id:
                # The version's files may be those of an earlier attempt at the same head, whose answer was lost.
                self.committed = [action["add"] for action in actions if "add" in action]
                log.info("%s: version %s is this landing's: it was written before.", self._table, version)
                return version
            # Another landing has the version, so this landing's request was not applied.
            self._open = [other for other in self._open if other != version]
        return None


def look_after(tables: DeltaTableAccess, table: str, version: int) -> None:
    """Write a checkpoint if due, and delete log files older than the table's retention; never raises.

    :param version: the version just committed; a checkpoint is due at each multiple of the table's interval.
    """
    try:
        head = tables.open(table)
        if head is None or head.delta is None:
            return
        if version % int(head.properties.get("delta.checkpointInterval", CHECKPOINT_INTERVAL)) or not version:
            return
        head.delta.create_checkpoint()
        if head.properties.get("delta.enableExpiredLogCleanup", "true").lower() == "true":
            head.delta.cleanup_metadata()
    except Exception as e:  # noqa: BLE001  # the landing is done; another writer makes the next checkpoint
        log.warning("%s: no checkpoint was written at version %s: %r", table, version, e)


def commit_info(operation: str, parameters: dict[str, Any], summary: dict[str, Any]) -> Action:
    """Return the action that describes a version."""
    return {
        "commitInfo": {
            "timestamp": time.time_ns() // 1_000_000,
            "operation": operation,
            "operationParameters": parameters,
            "engineInfo": "airflow-lakestream",
            **summary,
        }
    }


def _remove_action(add: Add) -> Action:
    """Return the action that removes a file."""
    return {
        "remove": {
            "path": add["path"],
            "deletionTimestamp": time.time_ns() // 1_000_000,
            "dataChange": True,
            "extendedFileMetadata": True,
            "partitionValues": dict(add["partitionValues"]),
            "size": add["size"],
        }
    }


def _new_head(target: DeltaTarget) -> DeltaTableHead:
    """Return the head before the first version of a new table, for its metadata."""
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
