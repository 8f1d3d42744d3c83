"""A batch's newest events and a table's head: which files go out, which rows stay of them, and which come in.

Copy on write: only files that hold a changed key are written anew. Found for one head, and found anew for another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import IntegerType, LongType, StringType

from airflow_lakestream.cdc.columns import COMMIT, DELETED, OP, POSITION, UNAVAILABLE, VERSION
from airflow_lakestream.cdc.memory import ROW, Memory
from airflow_lakestream.cdc.newest import Mask, Newest, Numbers, Origin, is_before, is_gone, is_later, keys_of
from airflow_lakestream.cdc.old_rows import OldRows, as_bytes, marked_where, with_deleted, with_values
from airflow_lakestream.cdc.places import places
from airflow_lakestream.exceptions import LakestreamError, Terminal
from airflow_lakestream.iceberg.files import delete_files
from airflow_lakestream.iceberg.hits import live_files, read_rows

# So many bytes of rows that stay come together, then they are written.
PART_BYTES = 64 * 2**20
FILES_AT_ONCE = 2

WriteFiles = Callable[[pa.Table], list[DataFile]]


class ValueMissing(LakestreamError, Terminal):
    """An event leaves a value out, and neither the batch nor the table has it."""

    def __init__(self, table: str, column: str, partition: int, offset: int) -> None:
        super().__init__(
            f"{table}: the change event at partition {partition}, offset {offset} leaves out {column} (Debezium's "
            f"{UNAVAILABLE}), and the table has no row to take it from: events before it were not landed, or the row's "
            "key was changed and its events are in several partitions. Nothing was landed. Let the database send all "
            "values (ALTER TABLE ... REPLICA IDENTITY FULL), and read the table again with a snapshot of Debezium. If "
            "the table was truncated while Debezium read its first snapshot, let one batch reach beyond the "
            "truncation: delete the checkpoint, and run without max_offsets_per_trigger."
        )


@dataclass
class Merged:
    """What one commit does: files out, files of rows that stay, the rows that come in, and what is to be remembered."""

    out: list[DataFile] = field(default_factory=list)
    kept: list[DataFile] = field(default_factory=list)
    rows: pa.Table | None = None
    entries: pa.Table | None = None


@dataclass
class _Found:
    """What one file has of the changed keys: which of its rows goes out for which event, or is to be marked."""

    task: FileScanTask
    at: Numbers
    out: Mask
    marked: Mask

    @property
    def is_touched(self) -> bool:
        """Whether anything of the file changes."""
        return bool(self.out.any() or self.marked.any())


@dataclass
class Merger:
    """Merges one batch.

    :param key: the columns of the key.
    :param soft_delete: whether deleted rows stay, marked.
    :param target: the table's metadata as the commit makes it, new columns included.
    :param write: writes rows for the target.
    """

    batch: Newest
    key: tuple[str, ...]
    soft_delete: bool
    memory: Memory
    target: TableMetadata
    write: WriteFiles
    _written: list[DataFile] = field(default_factory=list)

    def merge(self, table: Table | None) -> Merged:
        """Merge into the table's head, or into nothing. Raises ValueMissing; see `undo` for the files written."""
        rows = self.batch.rows
        late = self._before_truncation(rows)
        matched = np.zeros(len(rows), np.bool_)
        found = self._look(table, late, matched) if table is not None else []
        is_delete = is_gone(rows)
        new = np.flatnonzero(~matched & ~late & ~is_delete)
        late[new[self.memory.is_dead(rows.take(pa.array(new)))]] = True
        merged, old = Merged(), OldRows()
        needed = self._needed(is_delete, late)
        for one in found:
            merged.out.append(one.task.file)
            assert table is not None, "nothing was found in none"
            merged.kept += self._rewrite(table, one, needed, old)
        upserts = self._upserts(np.flatnonzero(~late & ~is_delete), old)
        deletes = np.flatnonzero(~late & is_delete)
        marked = self._marked(deletes, old) if self.soft_delete else []
        merged.rows = pa.concat_tables([upserts, *marked], promote_options="permissive")
        merged.entries = self._entries(deletes, old)
        return merged

    def remember(self, merged: Merged) -> None:
        """Write down what is to be remembered; before the commit, see `Memory`."""
        if merged.entries is not None and len(merged.entries):
            schema = self.target.schema()
            self.memory.add(merged.entries, [schema.find_field(name) for name in self.key])

    def undo(self, io: FileIO, keep: Collection[str] = ()) -> list[str]:
        """Delete the files of rows that stay which were written, but for some; return those that may be left."""
        paths = [file.file_path for file in self._written if file.file_path not in keep]
        self._written = [file for file in self._written if file.file_path in keep]
        return delete_files(io, paths)

    def _before_truncation(self, rows: pa.Table) -> Mask:
        truncated = self.memory.truncated()
        return is_before(rows, truncated) if truncated is not None else np.zeros(len(rows), np.bool_)

    def _look(self, table: Table, late: Mask, matched: Mask) -> list[_Found]:
        """Return the files that change; note which events have a row, and which come late."""
        tasks = [task for task in live_files(table) if self._may_hold(table.metadata, task.file)]

        def look(task: FileScanTask) -> _Found:
            return self._look_into(table, task, late)

        with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="lakestream-look") as pool:
            found = list(pool.map(look, tasks))
        for one in found:
            hit = one.at >= 0
            matched[one.at[hit]] = True
            late[one.at[hit & ~one.out]] = True
        return [one for one in found if one.is_touched]

    def _may_hold(self, metadata: TableMetadata, file: DataFile) -> bool:
        if self.batch.truncated is not None:
            return True
        column = metadata.schema().find_field(self.key[0])
        lower, upper = ((bounds or {}).get(column.field_id) for bounds in (file.lower_bounds, file.upper_bounds))
        if lower is None or upper is None or not isinstance(column.field_type, IntegerType | LongType | StringType):
            return True
        low, high = (from_bytes(column.field_type, bound) for bound in (lower, upper))
        keys = self.batch.rows[self.key[0]]
        inside = pc.and_(pc.greater_equal(keys, pa.scalar(low)), pc.less_equal(keys, pa.scalar(high)))
        return bool(pc.any(inside).as_py())

    def _look_into(self, table: Table, task: FileScanTask, late: Mask) -> _Found:
        columns = [*self.key, *VERSION, *([DELETED] if self.soft_delete else [])]
        parts = list(read_rows(table.metadata, table.io, task, columns=columns))
        rows = pa.concat_tables(parts) if parts else table.metadata.schema().select(*columns).as_arrow().empty_table()
        at = places(rows, self.batch.rows, self.key)
        out = np.zeros(len(rows), np.bool_)
        hit = np.flatnonzero(at >= 0)
        # A marked row may be older than a truncation, as such an event is: it stays.
        out[hit] = is_later(self.batch.rows.take(pa.array(at[hit])), rows.take(pa.array(hit))) & ~late[at[hit]]
        marked = np.zeros(len(rows), np.bool_)
        if self.batch.truncated is not None:
            gone = is_before(rows, self.batch.truncated) & ~out
            if self.soft_delete:
                marked = gone & ~pc.fill_null(rows[DELETED], False).to_numpy()
            else:
                out |= gone
        return _Found(task, at, out, marked)

    def _needed(self, is_delete: Mask, late: Mask) -> set[int]:
        """Return the events whose old rows are needed: others take values from them, or they stay, or may be moved."""
        rows, needed = self.batch.rows, set()
        wanted = {one.key for one in self.batch.origins.values() if one.moved is None}
        needed |= {place for place, _ in self.batch.origins}
        if wanted:
            needed |= {at for at, one in enumerate(keys_of(rows, self.key)) if one in wanted}
        deletes = np.flatnonzero(is_delete & ~late).tolist()
        return needed | set(deletes if self.soft_delete else self.batch.befores)

    def _rewrite(self, table: Table, found: _Found, needed: set[int], old: OldRows) -> list[DataFile]:
        """Write the rows of a file that stay; hand over the old rows that are needed."""
        files: list[DataFile] = []
        held: list[pa.Table] = []
        start = 0
        take = np.isin(found.at, np.array(sorted(needed), np.int64)) & found.out
        for batch in read_rows(self.target, table.io, found.task):
            here = slice(start, start + len(batch))
            start += len(batch)
            if take[here].any():
                old.add(batch.filter(pa.array(take[here])))
            if found.marked[here].any():
                batch = marked_where(batch, found.marked[here], self.batch.truncated)
            held.append(batch.filter(pa.array(~found.out[here])))
            if sum(part.nbytes for part in held) >= PART_BYTES:
                files += self._write(held)
                held = []
        return files + self._write(held)

    def _write(self, held: Sequence[pa.Table]) -> list[DataFile]:
        rows = pa.concat_tables(held, promote_options="permissive") if held else None
        if rows is None or not len(rows):
            return []
        files = self.write(rows)
        self._written += files
        return files

    def _upserts(self, places_: Numbers, old: OldRows) -> pa.Table:
        """Return the rows of events, with the values that they leave out. Raises ValueMissing."""
        rows = self._complete(places_, old)
        return rows.append_column(DELETED, pa.repeat(pa.scalar(False), len(rows))) if self.soft_delete else rows

    def _complete(self, places_: Numbers, old: OldRows) -> pa.Table:
        rows = self.batch.rows.take(pa.array(places_))
        gone, rows = is_gone(rows), rows.drop_columns([OP])
        number_of = {int(place): number for number, place in enumerate(places_)}
        by_column: dict[str, dict[int, pa.Scalar | None]] = {}
        for (place, column), origin in self.batch.origins.items():
            if place not in number_of:
                continue
            value = self._value_of_same(place, column, old)
            if value is None:
                value = self._value(column, origin, old)
            # A deleted row is none that would be wrong without.
            if value is None and not gone[number_of[place]]:
                partition, offset = (self.batch.rows[name][place].as_py() for name in VERSION[2:])
                raise ValueMissing(self.memory.mirror, column, partition, offset)
            by_column.setdefault(column, {})[number_of[place]] = value
        for column, values in by_column.items():
            rows = with_values(rows, column, values)
        return rows

    def _value_of_same(self, place: int, column: str, old: OldRows) -> pa.Scalar | None:
        """Return the value of the event's own row, where that is what the same event made of it, sent before."""
        event = self.batch.rows.slice(place, 1)
        row = old.row_of(keys_of(event, self.key)[0], self.key)
        if row is None or any(row[name][0] != event[name][0] for name in (COMMIT, POSITION)):
            return None
        return row[column][0]

    def _row_before(self, at: int, old: OldRows) -> bytes | None:
        """Return what a deleted row had that the next event may leave out; None where no such event can come."""
        before = self.batch.befores.get(at)
        if not before:
            return None
        values = {
            name: self._value(name, value, old) if isinstance(value, Origin) else value
            for name, value in before.items()
        }
        known = {name: value for name, value in values.items() if value is not None}
        if not known:
            return None
        return as_bytes(pa.table({name: pa.repeat(value, 1) for name, value in known.items()}))

    def _value(self, column: str, origin: Origin, old: OldRows) -> pa.Scalar | None:
        row = old.row_of(origin.key, self.key) if origin.moved is None else self.memory.moved(origin.moved)
        return None if row is None or column not in row.column_names else row[column][0]

    def _marked(self, deletes: Numbers, old: OldRows) -> list[pa.Table]:
        """Return the deleted rows as they stay: with the values that they had last, in the batch or in the table."""
        known, rows = old.table(), self._complete(deletes, old)
        at = places(rows, known, self.key) if known is not None else np.full(len(rows), -1, np.int64)
        theirs = np.flatnonzero(at >= 0)
        if known is not None and len(theirs):
            contents = self.batch.contents.take(pa.array(deletes[theirs]))
            own = is_later(rows.take(pa.array(theirs)), contents)
            theirs = theirs[~own | is_later(known.take(pa.array(at[theirs])), contents)]
        is_mine = np.ones(len(rows), np.bool_)
        is_mine[theirs] = False
        parts = [rows.filter(pa.array(is_mine))]
        if known is not None and len(theirs):
            held, mine = known.take(pa.array(at[theirs])), rows.take(pa.array(theirs))
            for name in VERSION:
                held = held.set_column(held.column_names.index(name), name, mine[name])
            parts.append(held)
        return [with_deleted(part) for part in parts if len(part)]

    def _entries(self, deletes: Numbers, old: OldRows) -> pa.Table:
        """Return what is to be remembered: a truncation, and rows that were deleted and do not stay."""
        wanted = [at for at in deletes.tolist() if not self.soft_delete or at in self.batch.befores]
        rows = self.batch.rows.select([*self.key, *VERSION]).take(pa.array(wanted, pa.int64()))
        kept = [self._row_before(at, old) for at in wanted]
        rows = rows.append_column(ROW, pa.array(kept, pa.binary()))
        if self.batch.truncated is None:
            return rows
        values = dict(zip(VERSION, self.batch.truncated, strict=True))
        columns = [pa.array([values.get(one.name)], one.type) for one in rows.schema]
        return pa.concat_tables([rows, pa.Table.from_arrays(columns, schema=rows.schema)])
