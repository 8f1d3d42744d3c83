"""What is different in the maintenance of mirrors, which merges change all over each few minutes."""

from __future__ import annotations

import json

from pyiceberg.table import Table

from airflow_lakestream.cdc.iceberg_head import PLAIN_BOUNDS
from airflow_lakestream.cdc.merge.memory import MIRROR_ID, SUFFIX
from airflow_lakestream.core.mirrors import MIRROR
from airflow_lakestream.iceberg.upkeep.reads import Reads
from airflow_lakestream.spark.maintenance.config import Compaction


def of_table(how: Compaction, table: Table) -> Compaction:
    """Return how a table is compacted.

    A mirror is sorted by its key, so that a merge finds by bounds which files may have the keys of a batch; by the
    table's own order, if it has one. It is compacted in parts, since merges undo what was rewritten of their files.
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
    """Tell whether a table is what a mirror remembers of deleted rows. Its files would be mixed up, and too large."""
    return table.name()[-1].endswith(SUFFIX) and MIRROR_ID in table.metadata.properties


def needs_fewer_deletes(table: Table) -> bool:
    """Tell whether a read would open fewer delete files, were they rewritten."""
    if table.metadata.format_version != 2:
        return False
    try:
        return Reads.of(table).may_be_fewer
    except ValueError:
        # With equality deletes, which Iceberg's procedure leaves alone.
        return True
