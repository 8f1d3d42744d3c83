"""OPTIMIZE of a Delta table: the claim that lets only one run at a time, and Z-order by need.

With delta-rs, two OPTIMIZE at the same time can rewrite the same files: each row would be there twice. But delta-rs
refuses an OPTIMIZE if the table's metadata was changed since its beginning. So each OPTIMIZE begins with such a change.

A Z-order takes the partitions with files written since the last Z-order, one after the other. Each commit of a Z-order
notes the columns, and the last one of a run the version up to which all files are in order. Files of later versions are
out of order, unless a Z-order by the same columns wrote them. The log is read back to that note; if the log does not go
back so far, files of unknown versions count as out of order.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError

from airflow_lakestream.core.printable import counted, nearest
from airflow_lakestream.delta.committing import commit_info
from airflow_lakestream.delta.files import Add
from airflow_lakestream.delta.head import DeltaTableHead
from airflow_lakestream.delta.protocol import info_of, put_commit, read_commit
from airflow_lakestream.delta.takeout import adds_of
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.tries import tries

# Property of the table that each OPTIMIZE changes first.
OPTIMIZER = "lakestream.optimizer"
# Attempts to claim a table, and seconds before the second one.
TRIES, PAUSE = 8, 0.2


def claimed(look: Callable[[], DeltaTableHead], store: Any) -> DeltaTable:
    """Claim the table by a new version, and return the table at it: an OPTIMIZE that began before fails.

    The version changes only the properties. delta-rs would also add table features that other engines may not know.

    Raises CommitFailedError if other writers were faster at each try.

    :param look: returns the head of the table. Raises the errors of a table that can't be maintained.
    :param store: the store of the table's folder.
    """
    for _ in tries(TRIES, PAUSE):
        head = look()
        assert head.delta is not None, "the head was loaded by delta-rs"
        properties, version = {**head.properties, OPTIMIZER: uuid.uuid4().hex}, head.version + 1
        info = commit_info("SET TBLPROPERTIES", {}, {})
        if put_commit(store, version, [info, head.metadata_action(properties, head.fields)]):
            # Not a newer version, which might have the claim of another OPTIMIZE.
            head.delta.load_as_version(version)
            return head.delta
    raise CommitFailedError("Other writers were faster at each try.")


log = logging.getLogger(__name__)

# Key of a commit's `commitInfo`: the columns, and the version up to which all files are in order.
NOTE = "lakestream.zorder"
# Most versions that are read back: each is a file to read.
MOST_COMMITS = 20_000
# Bytes that delta-rs sorts in memory before it uses the disk.
MOST_MEMORY = 2**30
# Values of partition columns as texts, in the order of the columns.
Values = tuple[str | None, ...]


@dataclass(frozen=True)
class ZOrderPlan:
    """Partitions to rewrite, with their files, as of a version of the table."""

    version: int
    partitions: dict[Values, list[Add]]

    @property
    def files(self) -> int:
        """Files to rewrite."""
        return sum(map(len, self.partitions.values()))

    def __str__(self) -> str:
        if not self.partitions:
            return "No file was written since the last Z-order"
        size = sum(file["size"] for files in self.partitions.values() for file in files)
        parts, files = counted(len(self.partitions), "partition"), counted(self.files, "file")
        return f"{parts} with {files} of {counted(size, 'byte')} to Z-order"


@dataclass
class ZOrderReport:
    """Result of a Z-order.

    :param files: the number of rewritten files.
    :param new: the number of new files.
    :param lost: the number of partitions that another writer has changed meanwhile.
    :param is_whole: whether the plan was worked off.
    """

    files: int = 0
    new: int = 0
    lost: int = 0
    is_whole: bool = True


def check_columns(head: DeltaTableHead, columns: Sequence[str]) -> None:
    """Refuse columns by which a table can't be Z-ordered. Raises InvalidArgument."""
    for name in columns:
        if name not in head.schema.names:
            problem = f"{head.table} has no column {name!r}.{nearest(name, head.schema.names)}"
        elif name in head.partitions:
            problem = f"{name!r} is a partition column of {head.table}: each file has one value."
        elif pa.types.is_nested(head.schema.field(name).type):
            problem = f"{name!r} of {head.table} is {head.schema.field(name).type}, which has no bounds in files."
        else:
            continue
        raise InvalidArgument("maintenance.compact.zorder_by", problem)


def plan_of(store: Any, head: DeltaTableHead, columns: Sequence[str]) -> ZOrderPlan:
    """Return the partitions with files out of order. Raises InvalidArgument.

    :param store: the store of the table's folder.
    """
    check_columns(head, columns)
    is_out_of_order, default = _out_of_order(store, head.version, columns)
    files = defaultdict[Values, list[Add]](list)
    for add in adds_of(head):
        files[tuple(add["partitionValues"].values())].append(add)
    due = {
        values: adds
        for values, adds in files.items()
        if any(is_out_of_order.get(unquote(add["path"]), default) for add in adds)
    }
    return ZOrderPlan(head.version, due)


def _out_of_order(store: Any, newest: int, columns: Sequence[str]) -> tuple[dict[str, bool], bool]:
    """Return whether files are out of order, by path, and whether files without an entry are out of order."""
    by_path, up_to, version = dict[str, bool](), -1, newest
    while version > up_to:
        actions = read_commit(store, version) if newest - version < MOST_COMMITS else None
        if actions is None:
            return by_path, True
        note = json.loads(info_of(actions).get(NOTE, "{}"))
        is_ordered = note.get("by") == [*columns]
        for action in actions:
            if "add" in action:
                # The newest version decides: RESTORE adds a file once more.
                by_path.setdefault(unquote(action["add"]["path"]), not is_ordered)
        if is_ordered:
            up_to = max(up_to, note.get("up_to", -1))
        version -= 1
    return by_path, up_to < 0


def zorder(
    open_table: Callable[[], DeltaTable],
    head: DeltaTableHead,
    plan: ZOrderPlan,
    columns: Sequence[str],
    target_bytes: int | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> ZOrderReport:
    """Z-order the partitions of a plan, each in a commit. Raises DeltaError.

    :param open_table: returns a version that only this OPTIMIZE may rewrite, see `optimizing.claimed`.
    :param target_bytes: the size of new files, or None for the table's own setting.
    :param is_over: whether the caller asked to end; then the next run goes on.
    """
    report = ZOrderReport()
    for number, values in enumerate(plan.partitions, 1):
        if is_over():
            report.is_whole = False
            break
        note: dict[str, Any] = {"by": [*columns]}
        if number == len(plan.partitions) and not report.lost:
            note["up_to"] = plan.version
        filters: Any = [(name, "=", value or "") for name, value in zip(head.partitions, values, strict=True)]
        try:
            metrics = open_table().optimize.z_order(
                columns,
                partition_filters=filters or None,
                target_size=target_bytes,
                max_spill_size=MOST_MEMORY,
                commit_properties=CommitProperties(custom_metadata={NOTE: json.dumps(note)}),
            )
        except CommitFailedError:
            # Another writer removed one of the files.
            report.lost += 1
            continue
        if not metrics["numFilesRemoved"]:
            # Such as an empty text, which readers take for NULL.
            log.warning("%s: delta-rs finds no file of the partition %s, which stays as it is.", head.table, values)
        report.files += int(metrics["numFilesRemoved"])
        report.new += int(metrics["numFilesAdded"])
        log.info("%s: %s of %s partitions are Z-ordered.", head.table, number, len(plan.partitions))
    return report
