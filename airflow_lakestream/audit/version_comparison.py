"""Comparison of a history of rows with the fold of its topic, version by version, in the database of `KeyComparison`.

Two versions are the same version if they have the same key and the same last record. Without `history_columns` a
version covers one record, and its end is the time of a record or of a deletion, which Kafka, the table or its memory
has. With `history_columns` a version depends on all records of its key, also on the order in which they came: if a
record is unseen, or if the records come from several partitions, only the values of these columns are compared, and
whether versions are open.
"""

from __future__ import annotations

from collections.abc import Iterable

import duckdb
import pyarrow as pa

from airflow_lakestream.audit.key_comparison import MOST_ROWS, KeyComparison
from airflow_lakestream.audit.keyed import KeyedRules, KeyedTable, RowFault, WrongRow
from airflow_lakestream.cdc.columns import (
    BEGIN,
    COMMIT,
    IS_CURRENT,
    OFFSET,
    PARTITION,
    TIME,
    VALID_FROM,
    VALID_TO,
    VERSION,
)
from airflow_lakestream.cdc.keys.identity import by_place
from airflow_lakestream.tables.row_hashes import RowHashes

_ENDS = (VALID_TO, IS_CURRENT)
_SIDE = """k UBIGINT, s UBIGINT, h UBIGINT, lt BIGINT, b BIGINT, e BIGINT, is_open BOOLEAN,
    b_part INTEGER, b_off BIGINT, c BIGINT, p BIGINT, part INTEGER, off BIGINT"""
_WANTED = """
SELECT k FROM judged WHERE kind = 'content' UNION
(SELECT k FROM judged WHERE kind IN ('missing', 'extra') ORDER BY part, off LIMIT ?1) UNION
(SELECT k FROM doubled LIMIT ?1) UNION
(SELECT k FROM held WHERE e IS NULL GROUP BY k HAVING count(*) > 1 LIMIT ?1) UNION
(SELECT k FROM held WHERE is_open <> (e IS NULL) LIMIT ?1) UNION
(SELECT t.k FROM held t JOIN dead_held d ON d.k = t.k WHERE t.e IS NULL AND row(d.c, d.p) > row(t.c, t.p) LIMIT ?1)
"""


class KeyPartitions:
    """The partitions of the records of each key, in a database."""

    def __init__(self, database: duckdb.DuckDBPyConnection, key: tuple[str, ...]) -> None:
        self._sql, self._key, self._hashes = database, key, RowHashes()
        database.execute("CREATE TABLE IF NOT EXISTS origin (k UBIGINT, part INTEGER)")

    def add(self, rows: pa.Table) -> None:
        """Note the records of a batch."""
        keys = self._hashes.of_rows(self._hashes.of_columns(by_place(rows, self._key)))
        self._sql.register("batch", pa.table({"k": keys, "part": rows[PARTITION]}))
        self._sql.execute("INSERT INTO origin SELECT DISTINCT k, part FROM batch")
        self._sql.unregister("batch")


class VersionComparison(KeyComparison):
    """Comparison of the versions of `table` with those of `fold`, the same topic folded by key.

    The database has the `KeyPartitions` of the fold, if a key may come from several partitions.
    """

    wanted_keys = _WANTED
    unseen_rows = "SELECT part, count(*) FROM judged WHERE kind = 'unseen' GROUP BY part"

    def __init__(
        self, database: duckdb.DuckDBPyConnection, table: KeyedTable, fold: KeyedTable, rules: KeyedRules
    ) -> None:
        super().__init__(database, table, fold, rules)
        left_out = BEGIN[:2] if rules.is_by_log else ()
        self._names = [name for name in self._names if name not in left_out]
        self._by_columns = BEGIN[0] in table.columns.names

    def load_side(self, side: str) -> None:
        """Load the rows of a side: of the table, or of the fold."""
        self.execute(f"CREATE TABLE {side} ({_SIDE})")
        by_values = [name for name in self.rules.columns if name in self._names]
        further = {VALID_FROM, *_ENDS, PARTITION, OFFSET, *BEGIN}
        payload = [name for name in self._names if name not in further]
        begin = BEGIN[2:] if self._by_columns else (PARTITION, OFFSET)
        for rows in self.sides[side].rows():
            content = self._content(rows)
            hashes = [
                self._hashes.of_rows(self._hashes.of_columns(content.select(names))) for names in (by_values, payload)
            ]
            times = [rows[name].cast(pa.timestamp("us", "UTC")).cast(pa.int64()) for name in (VALID_FROM, VALID_TO)]
            last = rows[TIME] if self._by_columns else times[0]
            places = (*map(rows.column, begin), *map(rows.column, VERSION))
            self._insert(side, self.keys(rows), *hashes, last, *times, rows[IS_CURRENT], *places)

    def load_deletions(self) -> None:
        """Load the deletions by key, and the truncations, with their times."""
        for side, table in self.sides.items():
            columns = "k UBIGINT, ends BIGINT, c BIGINT, p BIGINT, part INTEGER, off BIGINT"
            self.execute(f"CREATE TABLE dead_{side} ({columns})")
            for entries in table.deletions():
                keys = pa.array(self.keys(entries), mask=entries[self._key[0]].is_null().to_numpy())
                times = entries[TIME] if TIME in entries.column_names else entries[COMMIT]
                self._insert(f"dead_{side}", keys, times, *map(entries.column, VERSION))

    @property
    def _has_holes(self) -> bool:
        """Whether landed offsets of any partition are unseen."""
        ((has_holes,),) = self.fetch("SELECT count(*) > 0 FROM hole")
        return bool(has_holes)

    def judging(self) -> Iterable[str]:
        """Return the statements that find and judge the suspects."""
        has_holes = self._has_holes
        # In a log of one partition each record comes after all before.
        is_rising = self.rules.repeats and len(self.rules.landed.partitions) == 1 and not self._is_absent
        tail = self._tail() if is_rising else None

        def is_known(offset: str) -> str:
            return "true" if not has_holes else "false" if tail is None else f"{offset} >= {tail}"

        judged = _JUDGED.format(
            is_weak=f"is_mixed OR NOT {is_known('off')}" if self._by_columns else "false",
            is_begin_known=is_known("least(b_off, f_b_off)") if self._by_columns else "true",
            repeats=str(self.rules.repeats).lower(),
            absent=str(self._is_absent and self._by_columns).lower(),
        )
        return "CREATE TABLE IF NOT EXISTS origin (k UBIGINT, part INTEGER)", _ONCE, _SUSPECTS, judged

    def _tail(self) -> int:
        """Return the first offset of the only partition from which no landed offset is unseen."""
        (key,) = self.rules.landed.partitions
        seen = self.rules.seen[key].intervals() if key in self.rules.seen else ()
        end: int = self.rules.landed.intervals(*key)[-1][1]
        return seen[-1][0] if seen and seen[-1][1] >= end else end

    @property
    def _is_absent(self) -> bool:
        """Whether a version may have values of earlier records, among them those that begin versions."""
        borrowed = {name for name, _ in self.rules.borrowed}
        return self.rules.keeps_absent or not borrowed.isdisjoint(self.rules.columns)

    def differing(self) -> Iterable[str]:
        """Return the statements for the columns in which versions differ from the fold's, and for all faults."""
        further = {VALID_FROM, *_ENDS, *VERSION, *BEGIN, TIME}

        def numbers(names: Iterable[str]) -> list[int]:
            return [self._names.index(name) for name in names if name in self._names]

        statement = _DIFFERING.format(
            width=len(self._names),
            payload=numbers(name for name in self._names if name not in further),
            shown=numbers(self.rules.columns),
            ends=numbers(_ENDS),
            begins=numbers((VALID_FROM, *BEGIN)),
            null=self.null_hash,
            absent=str(self.rules.keeps_absent).lower(),
            holes=str(self._has_holes).lower(),
            by_columns=str(self._by_columns).lower(),
            repeats=str(self.rules.repeats).lower(),
        )
        return statement, _OPEN, _FAULTS

    def wrong_rows(self) -> Iterable[WrongRow]:
        """Yield the versions with a fault, at most `MOST_ROWS`."""
        keys = ", ".join(f"coalesce(f.key_{number}, t.key_{number})" for number in range(len(self._key)))
        ends = [self._names.index(name) for name in _ENDS]
        for kind, part, off, times, differ, *values in self.fetch(
            _NAMED.format(keys=keys, ends=ends, flag=ends[1:]), MOST_ROWS
        ):
            key = tuple(zip(self._key, (str(value) for value in values), strict=True))
            names = tuple(self._names[number] for number in differ or ())
            yield WrongRow(part, off, RowFault(kind), key, names, times)


# One row of the table for each version: of several rows the one that is most like the fold's.
_ONCE = """
CREATE TABLE doubled AS SELECT k, part, off, count(*) AS times FROM held GROUP BY ALL HAVING count(*) > 1;
CREATE VIEW once AS
SELECT * FROM held t ANTI JOIN doubled d ON (d.k, d.part, d.off) = (t.k, t.part, t.off) UNION ALL
(SELECT DISTINCT ON (t.k, t.part, t.off) t.* FROM held t
JOIN doubled d ON (d.k, d.part, d.off) = (t.k, t.part, t.off)
LEFT JOIN fold f ON (f.k, f.part, f.off) = (t.k, t.part, t.off)
ORDER BY t.k, t.part, t.off, (t.h IS NOT DISTINCT FROM f.h)::INT + (t.e IS NOT DISTINCT FROM f.e)::INT DESC)
"""
_SUSPECTS = """
CREATE TABLE suspect AS
SELECT coalesce(t.k, f.k) AS k, coalesce(t.part, f.part) AS part, coalesce(t.off, f.off) AS off,
    t.k IS NOT NULL AS in_table, f.k IS NOT NULL AS in_fold, coalesce(t.s, f.s) AS s, coalesce(t.lt, f.lt) AS lt,
    t.e AS t_e, f.e AS f_e, t.b AS t_b, t.b_part AS b_part, t.b_off AS b_off, f.b_off AS f_b_off
FROM once t FULL JOIN fold f ON t.k = f.k AND t.part = f.part AND t.off = f.off
WHERE (t.h, t.b, t.e, t.is_open, t.b_part, t.b_off) IS DISTINCT FROM (f.h, f.b, f.e, f.is_open, f.b_part, f.b_off)
"""
# Pairs: an event that Debezium sent twice is a version of the first record, which may be unseen.
_JUDGED = """
CREATE TABLE mixed AS SELECT k FROM origin GROUP BY k HAVING count(DISTINCT part) > 1;
CREATE TABLE judged AS
WITH placed AS (
    SELECT o.*, coalesce(o.off < l.until, false) AS is_landed, coalesce(o.off < s.until, false) AS is_seen,
        coalesce(o.b_off < b.until, false) AS is_begin_seen, m.k IS NOT NULL AS is_mixed
    FROM suspect o
    ASOF LEFT JOIN landed l ON o.part = l.part AND o.off >= l.start
    ASOF LEFT JOIN seen s ON o.part = s.part AND o.off >= s.start
    ASOF LEFT JOIN seen b ON o.b_part = b.part AND o.b_off >= b.start
    LEFT JOIN mixed m ON m.k = o.k
), pairs AS (
    SELECT DISTINCT t.k, t.lt FROM placed t JOIN placed f ON (t.k, t.lt) = (f.k, f.lt)
    WHERE {repeats} AND NOT t.in_fold AND NOT f.in_table AND t.is_landed AND (NOT t.is_seen OR t.part <> f.part)
), known AS (SELECT *, {is_weak} AS is_weak, is_begin_seen AND {is_begin_known} AS is_begin_certain FROM placed)
SELECT o.*, CASE
    WHEN in_table AND in_fold THEN 'content'
    WHEN in_table AND NOT is_landed THEN 'extra'
    WHEN p.k IS NOT NULL AND in_fold THEN 'known'
    WHEN in_fold AND is_weak AND ({absent} OR EXISTS (FROM held t WHERE (t.k, t.s) = (o.k, o.s))) THEN 'known'
    WHEN in_fold THEN 'missing'
    WHEN NOT is_seen OR p.k IS NOT NULL THEN 'unseen'
    WHEN is_weak AND ({absent} OR EXISTS (FROM fold f WHERE (f.k, f.s) = (o.k, o.s))) THEN 'unseen'
    ELSE 'extra' END AS kind
FROM known o LEFT JOIN pairs p ON (p.k, p.lt) = (o.k, o.lt)
"""
# A value that the fold can't know for certain is no difference. An earlier end is right if an unseen record of the key,
# or an unseen deletion, has its time.
_DIFFERING = """
CREATE TABLE differing AS
WITH unseen_ends AS (
    SELECT k, t_b AS ends FROM judged WHERE kind = 'unseen' UNION
    SELECT d.k, d.ends FROM dead_held d ANTI JOIN dead_fold f ON (f.k, f.part, f.off) = (d.k, d.part, d.off)
), cuts AS (SELECT DISTINCT ends FROM dead_held WHERE k IS NULL),
every AS (
    SELECT j.*, h.part IS NOT NULL AS has_hole, f.hs AS f, coalesce(b.columns, []) AS borrowed,
        list_filter(range({width}), lambda i: f.hs[i + 1] <> t.hs[i + 1]) AS differ,
        CASE WHEN j.t_e IS NOT DISTINCT FROM j.f_e THEN true
            WHEN j.t_e IS NULL THEN true WHEN j.is_weak THEN false
            WHEN NOT {holes} OR {by_columns} THEN true
            WHEN NOT {repeats} AND j.t_e > j.f_e THEN true
            ELSE j.t_e NOT IN (FROM cuts SELECT ends)
                AND NOT EXISTS (FROM unseen_ends u WHERE (u.k, u.ends) = (j.k, j.t_e))
        END AS is_end_certain
    FROM judged j JOIN fold_more f ON (f.k, f.part, f.off) = (j.k, j.part, j.off)
    JOIN held_more t ON (t.k, t.part, t.off) = (j.k, j.part, j.off)
    LEFT JOIN hole h ON h.part = j.part
    LEFT JOIN (SELECT part, off, list(DISTINCT col) AS columns FROM left_out GROUP BY part, off) b
        ON (b.part, b.off) = (j.part, j.off)
    WHERE j.kind = 'content'
), kept AS (
    SELECT *, list_filter(differ, lambda i: CASE
        WHEN list_contains({ends}::BIGINT[], i) THEN is_end_certain
        WHEN list_contains(borrowed, i) THEN NOT ({holes} OR is_mixed OR f[i + 1] = {null}::UBIGINT)
        WHEN {absent} AND ({holes} OR is_mixed) AND list_contains({payload}::BIGINT[], i) THEN false
        WHEN list_contains({shown}::BIGINT[], i) THEN true
        WHEN is_weak THEN false
        WHEN list_contains({begins}::BIGINT[], i) THEN is_begin_certain
        ELSE true END) AS certain FROM every WHERE len(differ) > 0
)
SELECT k, part, off, any_value(certain) AS columns, bool_and(len(certain) > 0) AS is_wrong
FROM kept GROUP BY k, part, off
"""
# A version before a later version or deletion of its key has ended, even if Kafka has lost the records.
_OPEN = """
CREATE TABLE wrong AS
SELECT k, part, off, kind FROM judged WHERE kind IN ('missing', 'extra') UNION ALL
SELECT k, part, off, 'different' FROM differing WHERE is_wrong;
CREATE TABLE still_open AS
WITH good AS (
    SELECT t.* FROM once t ANTI JOIN wrong w ON (w.k, w.part, w.off) = (t.k, t.part, t.off)
), latest AS (
    SELECT k, max(row(c, p, part, off)) AS v FROM good WHERE e IS NULL GROUP BY k HAVING count(*) > 1
), gone AS (
    SELECT d.k, max(row(d.c, d.p)) AS v FROM dead_held d ASOF JOIN landed l ON d.part = l.part AND d.off >= l.start
    WHERE d.k IS NOT NULL AND d.off < l.until GROUP BY d.k
)
SELECT g.k, g.part, g.off, g.e IS NULL AS is_ended FROM good g LEFT JOIN latest l ON l.k = g.k
LEFT JOIN gone d ON d.k = g.k
WHERE g.is_open <> (g.e IS NULL) OR (g.e IS NULL AND (row(g.c, g.p, g.part, g.off) < l.v OR d.v > row(g.c, g.p)))
"""
_FAULTS = """
CREATE VIEW faults AS SELECT k, part, off, kind, 1 AS times FROM wrong
UNION ALL SELECT k, part, off, 'different', 1 FROM still_open
UNION ALL SELECT k, part, off, 'doubled', times FROM doubled
"""
_NAMED = """
SELECT j.kind, j.part, j.off, j.times, CASE WHEN j.kind <> 'different' THEN NULL
    WHEN o.k IS NULL THEN d.columns WHEN o.is_ended THEN {ends}::BIGINT[] ELSE {flag}::BIGINT[] END, {keys}
FROM (SELECT * FROM faults ORDER BY part, off LIMIT ?1) j
LEFT JOIN differing d ON (d.k, d.part, d.off) = (j.k, j.part, j.off)
LEFT JOIN still_open o ON (o.k, o.part, o.off) = (j.k, j.part, j.off)
LEFT JOIN (SELECT DISTINCT ON (k) * FROM fold_more) f ON f.k = j.k
LEFT JOIN (SELECT DISTINCT ON (k) * FROM held_more) t ON t.k = j.k
"""
