"""What a mirror remembers of rows that it has no longer: a table beside it, `<table>__deleted`.

Without it a late event, older than the deletion of its row, would bring the row back. Each entry is a fact of the
source's history and true whatever becomes of the landing that wrote it, so it is written before the mirror's commit,
and written twice does no harm. A truncation is an entry without a key.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import BinaryType, NestedField

from airflow_lakestream.cdc.columns import COMMIT, POSITION, VERSION, version_schema
from airflow_lakestream.cdc.newest import Mask, Version, is_later, versions
from airflow_lakestream.cdc.places import places
from airflow_lakestream.iceberg.arrow_types import fields_from_arrow
from airflow_lakestream.iceberg.files import write_data_files

log = logging.getLogger(__name__)

SUFFIX = "__deleted"
# The deleted row itself, as Arrow's IPC stream: only of the last event of a partition, where the event that follows
# may be the same row under another key, which leaves out what it has in common with this one.
ROW = "_row"
# Table property: the mirror's own id.
MIRROR_UUID = "lakestream.mirror-uuid"
# More files than that are written anew as one.
MOST_FILES = 32


@dataclass(frozen=True)
class Memory:
    """The entries of one mirror.

    :param key: the columns of the mirror's key.
    :param uuid: of the mirror: entries of another one that had its name are none.
    """

    catalog: Catalog
    mirror: str
    key: tuple[str, ...]
    uuid: str

    @property
    def name(self) -> str:
        """Name of the table."""
        return f"{self.mirror}{SUFFIX}"

    def truncated(self) -> Version | None:
        """Return the last truncation that is known."""
        table = self._load()
        if table is None:
            return None
        entries = table.scan(selected_fields=(self.key[0], *VERSION)).to_arrow()
        return max(versions(entries.filter(entries[self.key[0]].is_null())), default=None)

    def is_dead(self, rows: pa.Table) -> Mask:
        """Tell for each row whether its key was deleted later than its version."""
        dead = np.zeros(len(rows), np.bool_)
        table = self._load() if len(rows) else None
        if table is None:
            return dead
        entries = table.scan(selected_fields=(*self.key, *VERSION)).to_arrow()
        entries = entries.filter(entries[self.key[0]].is_valid())
        if not len(entries):
            return dead
        last = _last(entries, self.key)
        at = places(rows, last, self.key)
        known = np.flatnonzero(at >= 0)
        dead[known] = is_later(last.take(pa.array(at[known])), rows.take(pa.array(known)))
        return dead

    def moved(self, place: tuple[int, int]) -> pa.Table | None:
        """Return the row that was deleted at a place of the source; None where it was not kept."""
        table = self._load()
        if table is None:
            return None
        wanted = f"{COMMIT} = {place[0]} and {POSITION} = {place[1]}"
        found = [one for one in table.scan(row_filter=wanted).to_arrow()[ROW].to_pylist() if one is not None]
        return pa.ipc.open_stream(found[0]).read_all() if found else None

    def add(self, entries: pa.Table, key_fields: Sequence[NestedField]) -> None:
        """Write entries down: the key's columns, `VERSION` and `ROW`."""
        if not len(entries):
            return
        table = self._load() or self._create(key_fields)
        files = write_data_files(table.metadata, table.io, entries.select(table.schema().column_names), "entries")
        try:
            with table.transaction() as transaction, transaction.update_snapshot().fast_append() as update:
                for file in files:
                    update.append_data_file(file)
        except BaseException:
            log.warning("%s: %s entries may not have been written.", self.name, len(entries))
            raise
        if len(list(table.scan().plan_files())) > MOST_FILES:
            self._compact(table)

    def _compact(self, table: Table) -> None:
        """Write the entries anew as one file; entries that others add meanwhile stay as they are."""
        old = [task.file for task in table.scan().plan_files()]
        entries = table.scan(selected_fields=(*self.key, *VERSION)).to_arrow()
        of_keys = entries.filter(entries[self.key[0]].is_valid())
        others = entries.filter(entries[self.key[0]].is_null())
        kept = pa.concat_tables([_last(of_keys, self.key), others])
        # Rows that were kept for the next event have had it by now.
        kept = kept.append_column(ROW, pa.nulls(len(kept), pa.binary())).select(table.schema().column_names)
        files = write_data_files(table.metadata, table.io, kept, "entries")
        try:
            with table.transaction() as transaction, transaction.update_snapshot().overwrite() as update:
                for file in old:
                    update.delete_data_file(file)
                for file in files:
                    update.append_data_file(file)
        except Exception as e:  # noqa: BLE001  # the entries are there, in old files or new: the batch goes on
            # The commit may have been applied: the new files stay, for the removal of orphans if nothing has them.
            log.warning("%s: nobody said that it was compacted: %r", self.name, e)

    def _load(self) -> Table | None:
        try:
            table = self.catalog.load_table(self.name)
        except NoSuchTableError:
            return None
        return table if table.properties.get(MIRROR_UUID) == self.uuid else None

    def _create(self, key_fields: Sequence[NestedField]) -> Table:
        if self.catalog.table_exists(self.name):
            self.catalog.drop_table(self.name)
        keys = [
            NestedField(number, field.name, field.field_type, required=False)
            for number, field in enumerate(key_fields, 1)
        ]
        place = fields_from_arrow(version_schema(), "metadata_columns", first_id=len(keys) + 1)
        row = NestedField(len(keys) + len(place) + 1, ROW, BinaryType(), required=False)
        properties = {MIRROR_UUID: self.uuid}
        return self.catalog.create_table(self.name, Schema(*keys, *place, row), properties=properties)


def _last(entries: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the entry of the greatest version of each key."""
    ordered = entries.take(pc.sort_indices(entries, sort_keys=[(name, "ascending") for name in VERSION]))
    numbered = ordered.select(list(key)).append_column("", pa.array(np.arange(len(ordered))))
    last = numbered.group_by(list(key)).aggregate([("", "max")])["_max"]
    return ordered.take(last)
