"""Comparison of a mirror's current rows with the rows of the source table, in a database on disk.

The two sides are named "held", the mirror, and "base", the source database. `k` and `h` are hashes of a row's key and
content.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.audit.keyed import KeyedTable, RowFault, WrongRow
from airflow_lakestream.cdc.columns import DELETED, IS_CURRENT, OFFSET, PARTITION
from airflow_lakestream.cdc.keys.identity import by_place
from airflow_lakestream.cdc.merge.repair import is_among
from airflow_lakestream.tables.row_hashes import Hashes, RowHashes

# The greatest number of suspects that are read again; further suspects are only counted.
MOST_SUSPECTS = 20_000


def current_rows(table: KeyedTable, columns: Iterable[str]) -> Iterator[pa.Table]:
    """Yield the current rows of a mirror, with the given columns, partition and offset.

    Deleted rows that stay, and earlier versions, are left out.
    """
    state = [name for name in (DELETED, IS_CURRENT) if name in table.columns.names]
    for file in table.files:
        for rows in table.head.read(file, [*columns, PARTITION, OFFSET, *state]):
            if DELETED in state:
                rows = rows.filter(pc.invert(pc.fill_null(rows[DELETED], False)))
            if IS_CURRENT in state:
                rows = rows.filter(pc.fill_null(rows[IS_CURRENT], True))
            yield rows


class RowDigests:
    """Hashes of keys and of rows, equal for equal values of both sides.

    :param key: the columns of the key, and `columns` all compared columns.
    """

    def __init__(self, key: tuple[str, ...], columns: pa.Schema) -> None:
        self.key, self.columns, self._hashes = key, columns, RowHashes()

    def of_keys(self, rows: pa.Table) -> Hashes:
        """Return the hash of each row's key."""
        return self._hashes.of_rows(self._hashes.of_columns(by_place(rows, self.key)))

    def of_values(self, rows: pa.Table) -> Hashes:
        """Return the hashes of values, in the shape (columns, rows)."""
        return self._hashes.of_columns(rows.select(self.columns.names))

    def of_rows(self, rows: pa.Table) -> Hashes:
        """Return the hash of each row."""
        return self._hashes.of_rows(self.of_values(rows))


@dataclass(frozen=True)
class SuspectRows:
    """Keys whose rows differ, or that only one side has, and keys with several rows in the mirror.

    :param keys: the columns of the key, at most `MOST_SUSPECTS`.
    :param left_out: the number of further keys.
    """

    keys: pa.Table
    left_out: int
    doubled: list[WrongRow] = field(default_factory=list)


class SourceComparison:
    """Comparison of all rows of both sides. The result is suspects only, since both sides may change meanwhile."""

    def __init__(self, database: duckdb.DuckDBPyConnection, digests: RowDigests) -> None:
        self._sql, self._digests = database, digests
        self.rows = {"held": 0, "base": 0}

    def load(self, side: str, parts: Iterable[pa.Table]) -> None:
        """Load the rows of a side: of the mirror, "held", or of the database, "base"."""
        for number, rows in enumerate(parts):
            keys, content = self._digests.of_keys(rows), self._digests.of_rows(rows)
            places = [
                rows[name].cast(pa.int64()) if name in rows.column_names else pa.nulls(len(rows), pa.int64())
                for name in _PLACE
            ]
            hashed = pa.table([keys, content, *places], ["k", "h", "part", "off"])
            for index, name in enumerate(self._digests.key):
                hashed = hashed.append_column(f"key_{index}", _stored(rows[name]))
            relation = self._sql.from_arrow(hashed)
            if number == 0:
                relation.create(side)
            else:
                relation.insert_into(side)
            self.rows[side] += len(rows)
        if not self.rows[side]:
            self._sql.execute(f"CREATE TABLE IF NOT EXISTS {side} AS {self._empty()}")

    def _empty(self) -> str:
        """Return the query for a side without rows."""
        keys = "".join(f", NULL AS key_{index}" for index in range(len(self._digests.key)))
        return f"SELECT 0::UBIGINT AS k, 0::UBIGINT AS h, 0::BIGINT AS part, 0::BIGINT AS off{keys} LIMIT 0"

    def suspects(self) -> SuspectRows:
        """Return the suspects among the loaded rows."""
        names = [f"key_{index}" for index in range(len(self._digests.key))]
        keys = ", ".join(f"coalesce(t.{name}, b.{name}) AS {name}" for name in names)
        self._sql.execute(_SUSPECTS.format(keys=keys))
        rows: pa.Table = self._sql.sql(_FEW, params=[MOST_SUSPECTS]).to_arrow_table()
        ((count,),) = self._sql.execute("SELECT count(*) FROM suspect").fetchall()
        schema = pa.schema([self._digests.columns.field(name).with_nullable(True) for name in self._digests.key])
        columns = [_restored(rows[name], field.type) for name, field in zip(names, schema, strict=True)]
        any_keys = ", ".join(f"any_value({name})" for name in names)
        doubled = self._sql.execute(_DOUBLED.format(keys=any_keys, most=MOST_SUSPECTS)).fetchall()
        wrong = [
            WrongRow(part, off, RowFault.DOUBLED, self._named(values), times=times)
            for part, off, times, *values in doubled
        ]
        return SuspectRows(pa.Table.from_arrays(columns, schema=schema), count - len(rows), wrong)

    def _named(self, values: Iterable[object]) -> tuple[tuple[str, str], ...]:
        """Return the values of a key as text, each with the name of its column."""
        return tuple(zip(self._digests.key, map(str, values), strict=True))


_PLACE = (PARTITION, OFFSET)
_SUSPECTS = """
CREATE OR REPLACE TABLE suspect AS SELECT DISTINCT ON (k) coalesce(t.k, b.k) AS k, {keys}
FROM held t FULL JOIN base b ON t.k = b.k WHERE t.h IS DISTINCT FROM b.h
"""
_FEW = "SELECT * EXCLUDE (k) FROM suspect ORDER BY k LIMIT ?1"
_DOUBLED = """
SELECT max(part), max(off), count(*), {keys} FROM held GROUP BY k HAVING count(*) > 1 ORDER BY 1, 2 LIMIT {most}
"""


def _stored(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of an extension type as its storage."""
    return column.cast(column.type.storage_type) if isinstance(column.type, pa.BaseExtensionType) else column


def _restored(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return a column in a type, the reverse of `_stored`."""
    if isinstance(kind, pa.BaseExtensionType):
        storage = column.cast(kind.storage_type)
        return pa.chunked_array([pa.ExtensionArray.from_storage(kind, chunk) for chunk in storage.chunks], kind)
    return column.cast(kind)


@dataclass(frozen=True)
class DifferingRows:
    """Result of a comparison of suspects, by the hash of a row's key.

    :param faults: the rows that differ.
    :param base: for each key the hash of the database's row, or None if the database has no row of the key.
    """

    faults: dict[int, WrongRow]
    base: dict[int, int | None]


def differing_rows(digests: RowDigests, keys: pa.Table, held: pa.Table, base: pa.Table) -> DifferingRows:
    """Compare the rows of some keys.

    :param held: the mirror's rows; rows of other keys are ignored.
    :param base: the database's rows; rows of other keys are ignored.
    """
    held_rows, base_rows = _indices(digests.of_keys(held)), _indices(digests.of_keys(base))
    held_values, base_values = digests.of_values(held), digests.of_values(base)
    base_hashes = digests.of_rows(base)
    partitions, offsets = (held[name].to_pylist() for name in _PLACE)
    result = DifferingRows({}, {})
    texts = [_stored(keys[name]).to_pylist() for name in digests.key]
    for number, key_hash in enumerate(digests.of_keys(keys).tolist()):
        mine, others = held_rows.get(key_hash, []), base_rows.get(key_hash, [])
        result.base[key_hash] = int(base_hashes[others[0]]) if others else None
        key = tuple((name, str(text[number])) for name, text in zip(digests.key, texts, strict=True))
        if not mine:
            if others:
                result.faults[key_hash] = WrongRow(-1, -1, RowFault.MISSING, key)
            continue
        last = mine[-1]
        if not others:
            result.faults[key_hash] = WrongRow(partitions[last], offsets[last], RowFault.EXTRA, key)
        elif not any((held_values[:, row] == base_values[:, others[0]]).all() for row in mine):
            differs = np.flatnonzero(held_values[:, last] != base_values[:, others[0]])
            names = tuple(digests.columns.names[index] for index in differs)
            result.faults[key_hash] = WrongRow(partitions[last], offsets[last], RowFault.DIFFERENT, key, names)
    return result


def _indices(hashes: Hashes) -> dict[int, list[int]]:
    """Return the indices of each hash."""
    indices: dict[int, list[int]] = {}
    for index, value in enumerate(hashes.tolist()):
        indices.setdefault(value, []).append(index)
    return indices


def rows_among(digests: RowDigests, parts: Iterable[pa.Table], wanted: Hashes) -> Iterator[pa.Table]:
    """Yield the rows whose keys have a wanted hash; `wanted` rises."""
    for rows in parts:
        yield rows.filter(pa.array(is_among(digests.of_keys(rows), wanted)))
