"""Iceberg's procedures in Spark, called for a table."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_lakestream.cdc.merge.merge import MOST_DELETED
from airflow_lakestream.config.maintenance import CompactionConfig, CompactionStrategy
from airflow_lakestream.exceptions import LakestreamError, Transient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

# Together with ids: without a time, Iceberg would also expire all snapshots older than five days.
_NO_OTHERS = "TIMESTAMP '1970-01-02 00:00:00'"
# A data file is rewritten if it has lost this share of its rows, as a merge does it, or has this many delete files.
_READABLE = {"delete-ratio-threshold": MOST_DELETED, "delete-file-threshold": 5}
# Iceberg only warns of parts that lost a conflict. The next try rewrites these parts.
_NO_PART_LOST = {"partial-progress.max-failed-commits": 0}
# Iceberg's messages if another writer was first: its retries are used up, or the files are gone.
_LOST = (
    "Cannot commit rewrite",
    "rewrite commits failed",
    "CommitFailedException",
    "database is locked",
    "SQLITE_BUSY",
)


class CompactionLost(LakestreamError, Transient):
    """Error of a compaction that lost against other writers in each try."""

    def __init__(self, table: str, tries: int, last: str) -> None:
        super().__init__(
            f"{table}: not compacted, since in each of {tries} tries another writer removed the files or committed too "
            f"often (last: {last}). Nothing was changed. Compact while less is replaced, narrow it by "
            "`where`, or commit in parts: maintenance.compact.partial_progress."
        )


@dataclass(frozen=True)
class IcebergProcedures:
    """The procedures of a table.

    :param catalog: the catalog's name, the same in Spark and PyIceberg.
    :param table: namespace.table.
    """

    spark: SparkSession
    catalog: str
    table: str

    def compact(self, how: CompactionConfig) -> None:
        """Rewrite small files, and files that deletes make slow to read.

        Landings meanwhile are kept: Iceberg commits on top of them. Parts that lose in each try stay as they are.
        Raises CompactionLost.
        """
        parts = {"partial-progress.enabled": str(how.in_parts).lower()} | (_NO_PART_LOST if how.in_parts else {})
        options = {**_READABLE, **parts, **how.options}
        strategy = how.strategy or CompactionStrategy.BINPACK
        arguments = {"strategy": strategy, "sort_order": how.sort_order, "where": how.where, "options": options}
        try:
            self._win("rewrite_data_files", arguments, how.most_tries)
        except CompactionLost as e:
            if not how.in_parts:
                raise
            log.warning("%s A part of the table stays as it is until the next run.", e)

    def rewrite_position_deletes(self, tries: int) -> None:
        """Give each data file at most one delete file, and remove unneeded delete files, or leave all files as before.

        Leftovers cost time, and do no harm: merges may always be faster.
        """
        try:
            self._win("rewrite_position_delete_files", {"options": {"rewrite-all": "true"}}, tries)
        except CompactionLost as e:
            log.warning("%s", e)

    def _win(self, procedure: str, arguments: Mapping[str, Any], tries: int) -> None:
        """Call a procedure, with retries if other writers are faster. Raises CompactionLost.

        Any other error of the procedure is raised at once.

        :param tries: greatest number of calls.
        """
        for number in range(1, tries + 1):
            try:
                self._call(procedure, arguments)
            except Exception as e:
                if not any(word in str(e) for word in _LOST):
                    raise
                log.info("%s: compaction %s of %s lost against another writer.", self.table, number, tries)
                last = next(iter(str(e).splitlines()), "")
                if number == tries:
                    raise CompactionLost(self.table, number, last) from e
            else:
                return

    def rewrite_manifests(self) -> None:
        """Rewrite manifests, with entries ordered by partition."""
        self._call("rewrite_manifests", {})

    def expire(self, snapshot_ids: Sequence[int]) -> None:
        """Expire exactly these snapshots, and delete the files that only these snapshots have."""
        ids = _SqlText(f"ARRAY({', '.join(f'{one}L' for one in snapshot_ids)})")
        self._call("expire_snapshots", {"older_than": _SqlText(_NO_OTHERS), "snapshot_ids": ids})

    def remove_orphans(self, age: float, *, by_prefix: bool) -> int:
        """Delete older files of the table's folder that are in no snapshot; return the number of files.

        :param age: in seconds.
        :param by_prefix: list with Iceberg's own client of the store, not Hadoop's.
        """
        before = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(time.time() - age))
        arguments = {
            "older_than": _SqlText(f"TIMESTAMP '{before} UTC'"),
            "prefix_listing": _SqlText("true") if by_prefix else None,
        }
        return self._call("remove_orphan_files", arguments)

    @property
    def _place(self) -> str:
        # With the catalog: a namespace may have the same name.
        return ".".join(f"`{part}`" for part in (self.catalog, *self.table.split(".")))

    def _call(self, procedure: str, arguments: Mapping[str, Any]) -> int:
        given = {"table": self._place, **{key: value for key, value in arguments.items() if value is not None}}
        text = ", ".join(f"{key} => {_literal(value)}" for key, value in given.items())
        return len(self.spark.sql(f"CALL `{self.catalog}`.system.{procedure}({text})").collect())


class _SqlText(str):
    """Text to insert as SQL, not to quote as a value."""

    __slots__ = ()


def _literal(value: Any) -> str:
    if isinstance(value, _SqlText):
        return value
    if isinstance(value, Mapping):
        return f"map({', '.join(_literal(str(item)) for pair in value.items() for item in pair)})"
    escaped = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
