"""Maintenance of mirrors, whose merges change files all over the table every few minutes."""

from __future__ import annotations

import json

from pyiceberg.table import Table

from airflow_lakestream.cdc.iceberg_head import PLAIN_BOUNDS
from airflow_lakestream.cdc.merge.memory import MIRROR_ID, SUFFIX
from airflow_lakestream.core.mirrors import MIRROR
from airflow_lakestream.iceberg.upkeep.reads import ReadCounts
from airflow_lakestream.spark.maintenance.config import CompactionConfig


def of_table(how: CompactionConfig, table: Table) -> CompactionConfig:
    """Return the compaction of a table.

    A mirror is sorted by its key, so that a merge finds by bounds which files may have the keys of a batch; or by the
    table's own order, if it has one. A mirror is compacted in parts, since merges undo the rewrite of their files.
    """
    note = table.metadata.properties.get(MIRROR)
    if note is None:
        return how
    key = json.loads(note)["key"]
    if not table.sort_order().is_unsorted:
        return how.of_mirror(None, is_sorted=True)
    has_bounds = isinstance(table.schema().find_field(key[0]).field_type, PLAIN_BOUNDS)
    order = ", ".join("`" + name.replace("`", "``") + "`" for name in key)
    return how.of_mirror(order if has_bounds else None, is_sorted=has_bounds)


def is_memory(table: Table) -> bool:
    """Return whether a table is a mirror's memory of deleted rows.

    Compaction would mix up its files, and make them too large.
    """
    return table.name()[-1].endswith(SUFFIX) and MIRROR_ID in table.metadata.properties


def needs_fewer_deletes(table: Table) -> bool:
    """Return whether a read would open fewer delete files after a rewrite of the delete files."""
    if table.metadata.format_version != 2:
        return False
    try:
        return ReadCounts.of(table).may_be_fewer
    except ValueError:
        # With equality deletes, which Iceberg's procedure leaves alone.
        return True
