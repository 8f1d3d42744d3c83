"""Comparison of a mirror's current rows with the rows of the source table, in a database on disk."""

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

# More rows are counted, and not looked at again.
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
    """Comparison of all rows of both sides, which may change meanwhile: its result are suspects only."""

    def __init__(self, database: duckdb.DuckDBPyConnection, digests: RowDigests) -> None:
        self._sql, self._digests = database, digests
        self.rows = {"held": 0, "base": 0}

    def load(self, side: str, parts: Iterable[pa.Table]) -> None:
        """Load the rows of a side: of the mirror, "held", or of the database, "base"."""
        for number, rows in enumerate(parts):
            keys, content = self._digests.of_keys(rows), self._digests.of_rows(rows)
            place = [rows[one] if one in rows.column_names else pa.nulls(len(rows), pa.int64()) for one in _PLACE]
            found = pa.table([keys, content, *(one.cast(pa.int64()) for one in place)], ["k", "h", "part", "off"])
            for at, name in enumerate(self._digests.key):
                found = found.append_column(f"key_{at}", _stored(rows[name]))
            relation = self._sql.from_arrow(found)
            if number == 0:
                relation.create(side)
            else:
                relation.insert_into(side)
            self.rows[side] += len(rows)
        if not self.rows[side]:
            self._sql.execute(f"CREATE TABLE IF NOT EXISTS {side} AS {self._empty()}")

    def _empty(self) -> str:
        keys = "".join(f", NULL AS key_{at}" for at in range(len(self._digests.key)))
        return f"SELECT 0::UBIGINT AS k, 0::UBIGINT AS h, 0::BIGINT AS part, 0::BIGINT AS off{keys} LIMIT 0"

    def suspects(self) -> SuspectRows:
        """Return the suspects."""
        names = [f"key_{at}" for at in range(len(self._digests.key))]
        keys = ", ".join(f"coalesce(t.{one}, b.{one}) AS {one}" for one in names)
        self._sql.execute(_SUSPECTS.format(keys=keys))
        found: pa.Table = self._sql.sql(_FEW, params=[MOST_SUSPECTS]).to_arrow_table()
        ((count,),) = self._sql.execute("SELECT count(*) FROM suspect").fetchall()
        schema = pa.schema([self._digests.columns.field(one).with_nullable(True) for one in self._digests.key])
        columns = [_restored(found[name], one.type) for name, one in zip(names, schema, strict=True)]
        named = ", ".join(f"any_value({one})" for one in names)
        doubled = [
            WrongRow(part, off, RowFault.DOUBLED, self._named(values), times=times)
            for part, off, times, *values in self._sql.execute(
                _DOUBLED.format(keys=named, most=MOST_SUSPECTS)
            ).fetchall()
        ]
        return SuspectRows(pa.Table.from_arrays(columns, schema=schema), count - len(found), doubled)

    def _named(self, values: Iterable[object]) -> tuple[tuple[str, str], ...]:
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
    return column.cast(column.type.storage_type) if isinstance(column.type, pa.BaseExtensionType) else column


def _restored(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if isinstance(kind, pa.BaseExtensionType):
        storage = column.cast(kind.storage_type)
        return pa.chunked_array([pa.ExtensionArray.from_storage(kind, one) for one in storage.chunks], kind)
    return column.cast(kind)


@dataclass(frozen=True)
class DifferingRows:
    """Rows of suspects that differ: the fault by the hash of the key, and the hash of the database's row, or None."""

    faults: dict[int, WrongRow]
    base: dict[int, int | None]


def differing_rows(digests: RowDigests, keys: pa.Table, held: pa.Table, base: pa.Table) -> DifferingRows:
    """Compare the rows of some keys.

    :param keys: the keys.
    :param held: the mirror's rows, and `base` the database's; rows of other keys are ignored.
    """
    of_held, of_base = ({}, {})  # type: tuple[dict[int, list[int]], dict[int, list[int]]]
    for rows, places in ((held, of_held), (base, of_base)):
        for at, one in enumerate(digests.of_keys(rows).tolist()):
            places.setdefault(one, []).append(at)
    values, wanted = digests.of_values(held), digests.of_values(base)
    whole = digests.of_rows(base)
    parts, offsets = (held[one].to_pylist() for one in _PLACE)
    found = DifferingRows({}, {})
    texts = [_stored(keys[name]).to_pylist() for name in digests.key]
    for number, one in enumerate(digests.of_keys(keys).tolist()):
        mine, other = of_held.get(one, []), of_base.get(one, [])
        found.base[one] = int(whole[other[0]]) if other else None
        key = tuple((name, str(text[number])) for name, text in zip(digests.key, texts, strict=True))
        if not mine:
            if other:
                found.faults[one] = WrongRow(-1, -1, RowFault.MISSING, key)
            continue
        at = mine[-1]
        if not other:
            found.faults[one] = WrongRow(parts[at], offsets[at], RowFault.EXTRA, key)
        elif not any((values[:, row] == wanted[:, other[0]]).all() for row in mine):
            columns = np.flatnonzero(values[:, at] != wanted[:, other[0]])
            names = tuple(digests.columns.names[place] for place in columns)
            found.faults[one] = WrongRow(parts[at], offsets[at], RowFault.DIFFERENT, key, names)
    return found


def rows_among(digests: RowDigests, parts: Iterable[pa.Table], wanted: Hashes) -> Iterator[pa.Table]:
    """Yield the rows whose keys have a wanted hash; `wanted` rises."""
    for rows in parts:
        own = np.flatnonzero(is_among(digests.of_keys(rows), wanted))
        yield rows.take(pa.array(own))
