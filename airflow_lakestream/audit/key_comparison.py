"""Comparison of a table by key with the fold of its topic, row by row, in a database on disk: memory stays bounded.

The fold is the table that results from the records that Kafka still has. A row is wrong only if the fold has seen
enough records to be certain. Any other differing row is unseen: its record, or the record that deleted it, has left
Kafka.

Columns of the database: `k` and `h` are the hashes of a row's key and content; `c`, `p`, `part` and `off` its version.
The prefixes `t_` and `f_` mean table and fold. Tables: `held` and `fold` have the rows of both sides, `dead_...` their
deletions, `judged` the keys that differ, with the kind of the difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.audit.keyed import KeyedRules, KeyedTable, KeyedVerdict, RowFault, WrongRow
from airflow_lakestream.audit.tally import OffsetTally, TallySegments
from airflow_lakestream.cdc.columns import COMMIT, DELETED, OFFSET, PARTITION, POSITION, VERSION
from airflow_lakestream.cdc.keys.identity import by_place
from airflow_lakestream.cdc.merge.repair import is_among
from airflow_lakestream.cdc.merge.snapshots import Version, cut_of, is_mark, versions
from airflow_lakestream.tables.row_hashes import Hashes, RowHashes

# The greatest number of wrong rows in a result, since each takes memory; further rows are only counted.
MOST_ROWS = 100_000
# The memory of DuckDB, which spills to disk beyond.
MEMORY = "384MiB"
_SIDE = "k UBIGINT, h UBIGINT, c BIGINT, p BIGINT, part INTEGER, off BIGINT, gone BOOLEAN"

_WANTED = """
SELECT k FROM judged WHERE kind IN ('content', 'different') UNION
(SELECT k FROM judged WHERE kind IN ('missing', 'extra')
    ORDER BY coalesce(f_part, t_part), coalesce(f_off, t_off) LIMIT ?1) UNION
(SELECT k FROM doubled LIMIT ?1)
"""


@contextmanager
def opened(folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a database that keeps its rows in a folder."""
    config: dict[str, Any] = {
        "memory_limit": MEMORY,
        "temp_directory": str(folder / "spilled"),
        "threads": 2,
        "preserve_insertion_order": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
    }
    with closing(duckdb.connect(str(folder / "rows.duckdb"), config=config)) as database:
        yield database


class KeyComparison:
    """Comparison of the rows of a table with the rows of the fold of its topic."""

    # Queries for the keys of rows whose values are compared, and for the number of unseen rows by partition.
    wanted_keys = _WANTED
    unseen_rows = "SELECT t_part, count(*) FROM judged WHERE kind = 'unseen' GROUP BY t_part"

    def __init__(
        self, database: duckdb.DuckDBPyConnection, table: KeyedTable, fold: KeyedTable, rules: KeyedRules
    ) -> None:
        self.sql, self.rules, self._hashes = database, rules, RowHashes()
        self.sides = {"held": table, "fold": fold}
        # The last truncation of the fold, and the last truncation that only the table knows.
        self.cuts: tuple[Version | None, Version | None] = (None, None)
        self._key = table.key
        # The order of the version's columns in a log depends on where reading begins; the record's offset does not.
        left_out = (COMMIT, POSITION) if rules.is_by_log else ()
        self._names = [name for name in table.columns.names if name not in left_out]

    def run(self) -> KeyedVerdict:
        """Load both sides, compare them, and return the wrong rows."""
        for side in self.sides:
            self.load_side(side)
        self.load_deletions()
        self._load_ranges()
        self.execute(*self.judging())
        wanted = self.fetch(self.wanted_keys, MOST_ROWS)
        for side in self.sides:
            self._load_details(side, np.sort(np.array([key for (key,) in wanted], np.uint64)))
        self.execute(*self.differing())
        wrong = sorted(self.wrong_rows())
        ((count,),) = self.fetch("SELECT count(*) FROM faults")
        return KeyedVerdict(
            wrong,
            count - len(wrong),
            dict(self.fetch("SELECT part, count(*) FROM held GROUP BY part")),
            dict(self.fetch(self.unseen_rows)),
            self.fetch("SELECT count(*) FROM judged WHERE kind = 'unseen gone'")[0][0],
            self.fetch("SELECT count(*) FROM differing WHERE NOT is_wrong")[0][0],
        )

    def execute(self, *statements: str) -> None:
        """Execute statements."""
        for statement in statements:
            self.sql.execute(statement)

    def fetch(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return self.sql.execute(query, values).fetchall()

    def _insert(self, table: str, *columns: Any) -> None:
        """Insert rows, given as columns in the order of the database table's columns."""
        rows = pa.table({f"column_{number}": column for number, column in enumerate(columns)})
        self.sql.from_arrow(rows).insert_into(table)

    def _content(self, rows: pa.Table) -> pa.Table:
        """Return the compared columns of rows; NULL for a column that none of Kafka's records has any more."""
        columns = self.sides["held"].columns
        return pa.table(
            {
                name: rows[name] if name in rows.column_names else pa.nulls(len(rows), columns.field(name).type)
                for name in self._names
            }
        )

    def keys(self, rows: pa.Table) -> Hashes:
        """Return the hash of each row's key."""
        return self._hashes.of_rows(self._hashes.of_columns(by_place(rows, self._key)))

    @property
    def null_hash(self) -> int:
        """The hash of NULL."""
        return int(self._hashes.of_columns(pa.table({"null": pa.nulls(1)}))[0][0])

    def load_side(self, side: str) -> None:
        """Load the rows of a side: of the table, or of the fold."""
        self.execute(f"CREATE TABLE {side} ({_SIDE})")
        for rows in self.sides[side].rows():
            content = self._hashes.of_rows(self._hashes.of_columns(self._content(rows)))
            gone = rows[DELETED] if DELETED in rows.column_names else pa.repeat(pa.scalar(False), len(rows))
            self._insert(side, self.keys(rows), content, *map(rows.column, VERSION), gone)

    def load_deletions(self) -> None:
        """Load the deletions of both sides by key, and note the last truncations in `cuts`."""
        cuts: dict[str, set[Version]] = {}
        for side, table in self.sides.items():
            self.execute(f"CREATE TABLE dead_{side} (k UBIGINT, c BIGINT, p BIGINT, part INTEGER, off BIGINT)")
            cuts[side] = set()
            for entries in table.deletions():
                cuts[side] |= set(versions(entries.filter(entries[self._key[0]].is_null())))
                deletions = entries.filter(entries[self._key[0]].is_valid())
                self._insert(f"dead_{side}", self.keys(deletions), *map(deletions.column, VERSION))
        self.cuts = _last_cut(cuts["fold"]), _last_cut(cuts["held"] - cuts["fold"])

    def _load_ranges(self) -> None:
        """Create the tables `landed`, `lost` and `seen` of offset ranges, `left_out` of values, and `hole`.

        `hole` has the partitions with landed offsets that Kafka no longer shows.
        """
        for name, ranges in (("landed", self.rules.landed), ("lost", self.rules.lost)):
            rows = [(offsets.partition, offsets.from_offset, offsets.until_offset) for offsets in ranges]
            columns = zip(*rows, strict=True) if rows else ((), (), ())
            self.execute(f"CREATE TABLE {name} (part INTEGER, start BIGINT, until BIGINT)")
            self._insert(name, *(pa.array(values, pa.int64()) for values in columns))
        self.execute("CREATE TABLE left_out (col BIGINT, part INTEGER, off BIGINT)")
        for name, places in self.rules.borrowed:
            column_numbers = pa.repeat(pa.scalar(self._names.index(name), pa.int64()), len(places))
            self._insert("left_out", column_numbers, *places.columns)
        self.execute("CREATE TABLE seen (part INTEGER, start BIGINT, until BIGINT)", "CREATE TABLE hole (part INTEGER)")
        for key in self.rules.landed.partitions:
            segments = TallySegments({"seen": self.rules.seen.get(key, OffsetTally())})
            mask = pc.greater(segments.counts["seen"], 0)
            starts, ends = (column.filter(mask) for column in (segments.starts, segments.ends))
            self._insert("seen", pa.repeat(key[1], len(starts)), starts, ends)
            if segments.width(mask) < self.rules.landed.of_partition(*key).width:
                self._insert("hole", [key[1]])

    def _load_details(self, side: str, wanted: Hashes) -> None:
        """Load the rows whose key has a wanted hash, with a hash of each value, and with the key as text."""
        keys = ", ".join(f"key_{number} VARCHAR" for number in range(len(self._key)))
        self.execute(f"CREATE TABLE {side}_more (k UBIGINT, part INTEGER, off BIGINT, hs UBIGINT[], {keys})")
        if not len(wanted):
            return
        for rows in self.sides[side].rows():
            hashes = self.keys(rows)
            indices = np.flatnonzero(is_among(hashes, wanted))
            wanted_rows = rows.take(pa.array(indices))
            values = self._hashes.of_columns(self._content(wanted_rows)).T.ravel()
            width = len(self._names)
            lists = pa.ListArray.from_arrays(np.arange(len(indices) + 1, dtype=np.int32) * width, pa.array(values))
            key = map(_storage, wanted_rows.select(self._key).columns)
            self._insert(f"{side}_more", hashes[indices], wanted_rows[PARTITION], wanted_rows[OFFSET], lists, *key)

    def judging(self) -> Iterable[str]:
        """Return the statements that find and judge the suspects."""
        return _ONCE, _SUSPECTS, _judging(self.rules, *self.cuts)

    def differing(self) -> Iterable[str]:
        """Return the statements for the columns in which rows differ from the fold's, and for all faults."""
        version = (*VERSION, DELETED)
        payload = [number for number, name in enumerate(self._names) if name not in version]
        placeholders = {"width": len(self._names), "payload": payload, "null": self.null_hash}
        return _DIFFERING.format(**placeholders, absent=self.rules.keeps_absent), _FAULTS

    def wrong_rows(self) -> Iterable[WrongRow]:
        """Yield the rows with a fault, at most `MOST_ROWS`."""
        keys = ", ".join(f"coalesce(f.key_{number}, t.key_{number})" for number in range(len(self._key)))
        query = _FEW.format(keys=keys)
        for kind, part, off, t_part, t_off, times, differ, *values in self.fetch(query, MOST_ROWS):
            fault, other = RowFault(kind), (t_part, t_off)
            yield WrongRow(
                -1 if part is None else part,
                -1 if off is None else off,
                fault,
                tuple(zip(self._key, (str(value) for value in values), strict=True)),
                tuple(self._names[number] for number in differ or ()),
                times,
                other if fault is RowFault.DIFFERENT and other != (part, off) else None,
            )


def _last_cut(cuts: Iterable[Version]) -> Version | None:
    """Return the last of truncations and marks of snapshots, or None without any."""
    return max((cut_of(cut) if is_mark(cut) else cut for cut in cuts), default=None)


def _storage(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of an extension type as its storage."""
    return column.cast(column.type.storage_type) if isinstance(column.type, pa.BaseExtensionType) else column


# One row of the table for each key: of several rows the one that is like the fold's, or else the last one.
_ONCE = """
CREATE TABLE doubled AS SELECT k, count(*) AS times FROM held GROUP BY k HAVING count(*) > 1;
CREATE VIEW once AS
SELECT * FROM held WHERE k NOT IN (FROM doubled SELECT k) UNION ALL
(SELECT DISTINCT ON (t.k) t.* FROM held t JOIN doubled d ON d.k = t.k LEFT JOIN fold f ON f.k = t.k
ORDER BY t.k, coalesce(t.h = f.h, false) DESC, t.c DESC, t.p DESC, t.part DESC, t.off DESC)
"""
_SUSPECTS = """
CREATE TABLE suspect AS
SELECT coalesce(t.k, f.k) AS k, t.k IS NOT NULL AS in_table, f.k IS NOT NULL AS in_fold, f.gone AS f_gone,
    t.c AS t_c, t.p AS t_p, t.part AS t_part, t.off AS t_off, f.c AS f_c, f.p AS f_p, f.part AS f_part, f.off AS f_off
FROM once t FULL JOIN fold f ON t.k = f.k WHERE t.h IS DISTINCT FROM f.h
"""
TABLE_VERSION, FOLD_VERSION = (f"row({side}_c, {side}_p, {side}_part, {side}_off)" for side in "tf")


def later_than(version: Version | None, than: str) -> str:
    """Return the SQL condition that a version is later than the version in the columns `than`; false for None."""
    return "false" if version is None else f"row{tuple(version)} > {than}"


def _judging(rules: KeyedRules, cut: Version | None, unseen_cut: Version | None) -> str:
    """Return the statement that judges each suspect.

    :param cut: the last truncation that the fold has seen, or None.
    :param unseen_cut: the last truncation that only the table knows, or None.
    """
    order = "<" if rules.first_stays else ">"
    by_version = "false" if rules.within else f"{FOLD_VERSION} {order} {TABLE_VERSION}"
    # `unordered`: the first of several partitions depends on how the records were cut into batches.
    return _JUDGED.format(
        fold=FOLD_VERSION,
        table=TABLE_VERSION,
        cut=later_than(cut, TABLE_VERSION),
        unseen_cut=later_than(unseen_cut, FOLD_VERSION),
        unordered="t_part <> f_part" if rules.first_stays else "false",
        by_version=by_version,
    )


_JUDGED = """
CREATE TABLE known_dead AS SELECT k, max(row(c, p, part, off)) AS v FROM dead_fold GROUP BY k;
CREATE TABLE unseen_dead AS SELECT d.k, max(row(d.c, d.p, d.part, d.off)) AS v FROM dead_held d
    ASOF LEFT JOIN landed l ON d.part = l.part AND d.off >= l.start
    ASOF LEFT JOIN seen s ON d.part = s.part AND d.off >= s.start
    WHERE d.off < l.until AND NOT coalesce(d.off < s.until, false) GROUP BY d.k;
CREATE TABLE judged AS
WITH placed AS (
    SELECT o.*, coalesce(o.t_off < l.until, false) AS is_landed, coalesce(o.t_off < s.until, false) AS is_seen,
        d.v AS dead, u.v AS unseen_dead, coalesce(o.f_off < b.until, false) AS is_below_lost
    FROM suspect o
    ASOF LEFT JOIN landed l ON o.t_part = l.part AND o.t_off >= l.start
    ASOF LEFT JOIN seen s ON o.t_part = s.part AND o.t_off >= s.start
    LEFT JOIN known_dead d ON d.k = o.k LEFT JOIN unseen_dead u ON u.k = o.k
    LEFT JOIN (SELECT part, max(until) AS until FROM lost GROUP BY part) b ON b.part = o.f_part
)
SELECT *, CASE
    WHEN NOT in_table AND (coalesce(unseen_dead > {fold}, false) OR is_below_lost OR {unseen_cut}) THEN 'unseen gone'
    WHEN NOT in_table THEN 'missing'
    WHEN NOT is_landed THEN if(in_fold, 'different', 'extra')
    WHEN NOT in_fold AND (is_seen OR coalesce(dead > {table}, false) OR {cut}) THEN 'extra'
    WHEN NOT in_fold THEN 'unseen'
    WHEN (t_part, t_off) = (f_part, f_off) THEN 'content'
    WHEN {unordered} THEN 'unseen'
    WHEN is_seen OR {by_version} THEN 'different'
    ELSE 'unseen' END AS kind
FROM placed
"""
# A value that the fold can't know for certain is no difference: a record left the value out, or it was deleted since.
_DIFFERING = """
CREATE TABLE differing AS
WITH every AS (
    SELECT j.k, j.kind, h.part IS NOT NULL AS has_hole, coalesce(j.f_gone, false) OR {absent} AS is_mixed, f.hs AS f,
        coalesce(b.columns, []) AS borrowed,
        list_filter(range({width}), lambda i: f.hs[i + 1] <> t.hs[i + 1]) AS differ
    FROM judged j JOIN fold_more f ON f.k = j.k JOIN held_more t ON (t.k, t.part, t.off) = (j.k, j.t_part, j.t_off)
    LEFT JOIN hole h ON h.part = j.f_part
    LEFT JOIN (SELECT part, off, list(DISTINCT col) AS columns FROM left_out GROUP BY part, off) b
        ON (b.part, b.off) = (j.f_part, j.f_off)
    WHERE j.kind IN ('content', 'different')
), kept AS (
    SELECT *, list_filter(differ, lambda i: NOT (
        (list_contains(borrowed, i) AND (has_hole OR f[i + 1] = {null}::UBIGINT))
        OR (has_hole AND is_mixed AND list_contains({payload}::BIGINT[], i))
    )) AS certain FROM every WHERE len(differ) > 0
)
SELECT k, any_value(if(kind = 'content', certain, differ)) AS columns,
    bool_and(kind = 'different' OR len(certain) > 0) AS is_wrong
FROM kept GROUP BY k
"""
_FAULTS = """
CREATE VIEW faults AS SELECT k, if(kind = 'content', 'different', kind) AS kind, coalesce(f_part, t_part) AS part,
    coalesce(f_off, t_off) AS off, t_part, t_off, 1 AS times
FROM judged WHERE kind IN ('missing', 'extra', 'different')
    OR (kind = 'content' AND k IN (SELECT k FROM differing WHERE is_wrong))
UNION ALL SELECT d.k, 'doubled', o.part, o.off, o.part, o.off, d.times FROM doubled d JOIN once o ON o.k = d.k
"""
_FEW = """
SELECT j.kind, j.part, j.off, j.t_part, j.t_off, j.times, if(j.kind = 'different', d.columns, NULL), {keys}
FROM (SELECT * FROM faults ORDER BY part, off LIMIT ?1) j
LEFT JOIN differing d ON d.k = j.k LEFT JOIN (SELECT DISTINCT ON (k) * FROM fold_more) f ON f.k = j.k
LEFT JOIN (SELECT DISTINCT ON (k) * FROM held_more) t ON t.k = j.k
"""
