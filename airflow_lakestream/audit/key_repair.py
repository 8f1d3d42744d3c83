"""Plan of a repair of a table by key, from the database of its comparison with the fold of its topic.

A wrong row is repaired only if Kafka still has all records that decide about its key. Compaction leaves the newest
record of each Kafka key, and retention removes the oldest records: if offsets order the records, the newest record of a
key is then still there. In all other cases the repair needs all landed records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.audit.key_comparison import FOLD_VERSION, MOST_ROWS, KeyComparison, later_than
from airflow_lakestream.audit.keyed import KeyedTable, RowFault
from airflow_lakestream.audit.tally import OffsetTally, TallySegments
from airflow_lakestream.cdc.columns import OFFSET, PARTITION
from airflow_lakestream.cdc.keys.identity import by_place
from airflow_lakestream.cdc.merge.repair import RowRepair, is_among
from airflow_lakestream.cdc.merge.snapshots import behind, is_mark, versions
from airflow_lakestream.core.ranges import Interval, OffsetRange, PartitionKey, RangeSet, shown
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.row_hashes import Hashes, RowHashes

if TYPE_CHECKING:
    from airflow_lakestream.cdc.events.records import RecordPayload

# The number of rows named in a text.
_SHOWN = 10
# From this number of different rows on, if they are more than half of all, other arguments are the likely cause.
_MANY = 10
_WAS_DELETION = "and deleted its key when it was landed."
_NOT_DAMAGE = "which is no damage: the landing had other arguments."
_GIVE = (
    "Nothing was changed. Give the arguments of the landing, such as delete_when, merge, sql and schema, by a DAG or a "
    "pipeline, or here."
)


@dataclass
class KeyRepairPlan:
    """Keys to repair, in the table `plan` of the database of a comparison that has run.

    :ivar is_whole: whether Kafka still has all landed records.
    """

    comparison: KeyComparison
    is_whole: bool = field(init=False)

    def __post_init__(self) -> None:
        self._check_arguments()
        rules, run = self.comparison.rules, self.comparison.execute
        run("CREATE TABLE tail (part INTEGER, until BIGINT)")
        for key in rules.landed.partitions:
            self.comparison.sql.execute("INSERT INTO tail VALUES (?, ?)", (key[1], self._unseen_until(key)))
        ((self.is_whole,),) = self.comparison.fetch("SELECT count(*) = 0 FROM hole")
        run(self._planning())

    def _check_arguments(self) -> None:
        """Raise InvalidArgument if the rows show that the fold has other arguments than the landing had."""
        query = """SELECT f.part, f.off FROM fold f JOIN dead_held d ON (f.k, f.part, f.off) = (d.k, d.part, d.off)
            WHERE NOT f.gone ORDER BY ALL LIMIT 1"""
        for part, off in self.comparison.fetch(query):
            raise InvalidArgument("landing", f"the record at [{part}] offset {off} makes a row, {_WAS_DELETION}", _GIVE)
        query = "SELECT count(*) FILTER (kind = ?1), (SELECT count(*) FROM fold) FROM faults"
        ((different, rows),) = self.comparison.fetch(query, RowFault.DIFFERENT.value)
        if different >= _MANY and different > rows / 2:
            raise InvalidArgument("landing", f"{different} of {rows} rows are others, {_NOT_DAMAGE}", _GIVE)

    def _unseen_until(self, key: PartitionKey) -> int:
        """Return the end of the last landed offsets of a partition that Kafka no longer shows; 0 without any."""
        rules = self.comparison.rules
        segments = TallySegments({"seen": rules.seen.get(key, OffsetTally())})
        mask = pc.greater(segments.counts["seen"], 0)
        starts, ends = (column.filter(mask).to_numpy() for column in (segments.starts, segments.ends))
        return _last_gap(rules.landed.intervals(*key), starts, ends)

    def _planning(self) -> str:
        """Return the statement that creates the table `plan`."""
        rules, null = self.comparison.rules, self.comparison.null_hash
        keys = ", ".join(f"key_{number}" for number in range(len(self.comparison.sides["held"].key)))
        return _PLAN.format(
            keys=keys,
            fold=FOLD_VERSION,
            whole=self.is_whole,
            refused=rules.has_other_logs,
            ordered=not rules.by_sequence,
            compacted=rules.by_kafka_key,
            absent=rules.keeps_absent,
            null=null,
            unseen_cut=later_than(self.comparison.cuts[1], FOLD_VERSION),
        )

    def _hashes(self, condition: str) -> Hashes:
        """Return the rising hashes of the planned keys for which a SQL condition holds."""
        hashes = self.comparison.sql.table("plan").filter(condition).project("k").order("k").fetchnumpy()["k"]
        return np.asarray(hashes, np.uint64)

    def change(self, head: int | None, lost: Sequence[str] = ()) -> RowRepair | None:
        """Return the repair of the table's rows for a commit, or None if nothing is to be repaired.

        :param head: the compared snapshot or version.
        :param lost: the paths of lost files.
        """
        out = self._hashes("is_sure")
        if not (len(out) or lost):
            return None
        return RowRepair(
            head=head,
            key=self.comparison.sides["held"].key,
            hashes=self.comparison.keys,
            out=out,
            rows=self.rows,
            deletions=self.deletions,
            lost=lost,
        )

    def rows(self) -> Iterator[pa.Table]:
        """Yield the right rows of the keys to repair."""
        fold, wanted = self.comparison.sides["fold"], self._hashes("is_sure AND in_fold")
        table = self.comparison.sides["held"]
        marks = [
            version
            for entries in table.deletions()
            for version in versions(self._without_key(entries))
            if is_mark(version)
        ]
        for rows in fold.rows() if len(wanted) else ():
            right_rows = rows.filter(pa.array(is_among(self.comparison.keys(rows), wanted)))
            if len(right_rows):
                yield behind(
                    right_rows.select([name for name in right_rows.column_names if name in table.columns.names]), marks
                )

    def deletions(self) -> Iterator[pa.Table]:
        """Yield the entries that the table's memory lacks: deletions of those keys to repair that have no right row."""
        fold, wanted = self.comparison.sides["fold"], self._hashes("is_sure AND NOT in_fold AND is_forgotten")
        if fold.entries is None or not len(wanted):
            return
        for file in fold.entries.files:
            for entries in file.read(()):
                keyed = entries.filter(entries[fold.key[0]].is_valid())
                needed = keyed.filter(pa.array(is_among(self.comparison.keys(keyed), wanted)))
                if len(needed):
                    yield needed

    def _without_key(self, entries: pa.Table) -> pa.Table:
        return entries.filter(entries[self.comparison.sides["held"].key[0]].is_null())

    def ranges(self, topic: str, fault: RowFault) -> RangeSet:
        """Return the offsets of the rows to repair with a fault, at most `MOST_ROWS`."""
        query = """SELECT part, off FROM faults JOIN plan p USING (k) WHERE p.is_sure AND kind = ?1
            ORDER BY part, off LIMIT ?2"""
        return RangeSet(
            OffsetRange(topic, part, off, off + 1) for part, off in self.comparison.fetch(query, fault.value, MOST_ROWS)
        )

    def left(self) -> list[str]:
        """Return a sentence about the wrong rows that stay."""
        query = "FROM faults JOIN plan p USING (k) WHERE NOT p.is_sure"
        ((count,),) = self.comparison.fetch(f"SELECT count(*) {query}")
        if not count:
            return []
        examples = self.comparison.fetch(f"SELECT kind, part, off {query} ORDER BY part, off LIMIT {_SHOWN}")
        names = shown([f"{kind} row at [{part}] offset {off}" for kind, part, off in examples], _SHOWN)
        more = f", and {count - len(examples)} more" if count > len(examples) else ""
        return [f"{names}{more}: Kafka has no longer all records that decide about these keys."]


class KafkaKeyMatch:
    """Comparison of the key in a plain record's row with the key in its Kafka key.

    Compaction leaves the newest record of each Kafka key. It is the newest record of a table's key only if both agree.

    :param payload: the formats of the records.
    """

    def __init__(self, database: duckdb.DuckDBPyConnection, table: KeyedTable, payload: RecordPayload) -> None:
        self._key, self._hashes = table.key, RowHashes()
        self._reader = payload.key_reader(pa.schema([table.columns.field(name) for name in table.key]))
        # Two cursors, since records are read and decoded in different threads.
        self._sql = {name: database.cursor() for name in ("of_kafka", "of_rows")}
        for name, sql in self._sql.items():
            sql.execute(f"CREATE TABLE {name} (part INTEGER, off BIGINT, k UBIGINT)")

    def add_records(self, partition: int, batch: RawBatch) -> None:
        """Note the Kafka keys of records. Raises the errors of the keys' format."""
        columns = self._reader.read(batch).columns.columns
        keys = pa.table(dict(zip(self._key, columns, strict=True)))
        self._add("of_kafka", keys, pa.repeat(pa.scalar(partition), len(batch)), batch.offsets)

    def add_rows(self, rows: pa.Table) -> None:
        """Note the keys of decoded records."""
        self._add("of_rows", rows, rows[PARTITION], rows[OFFSET])

    def _add(self, name: str, rows: pa.Table, partitions: pa.Array, offsets: pa.Array) -> None:
        """Insert keys into a table of the database, as hashes with the records' positions."""
        keys = self._hashes.of_rows(self._hashes.of_columns(by_place(rows, self._key)))
        noted = pa.table({"part": partitions, "off": offsets, "k": keys})
        self._sql[name].from_arrow(noted).insert_into(name)

    def agrees(self) -> bool:
        """Return whether all keys agree."""
        query = "SELECT count(*) FROM of_rows r LEFT JOIN of_kafka q USING (part, off) WHERE r.k IS DISTINCT FROM q.k"
        ((others,),) = self._sql["of_rows"].execute(query).fetchall()
        return bool(others == 0)


def _last_gap(landed: Sequence[Interval], starts: np.ndarray, ends: np.ndarray) -> int:
    """Return the end of the last landed offsets between rising segments, given by starts and ends; 0 without any."""
    end = 2**63 - 1
    for number in range(len(starts), -1, -1):
        start = int(ends[number - 1]) if number else 0
        for first, until in reversed(landed):
            if max(start, first) < min(end, until):
                return min(end, until)
        end = int(starts[number - 1]) if number else 0
    return 0


# `is_known`: no record after a key's last seen record is unseen. Of a key with several rows, the record of each row
# must be seen, or older than the fold's record.
_PLAN = """
CREATE TABLE plan AS
WITH wrong AS (SELECT DISTINCT k FROM faults),
colliding AS (
    SELECT k FROM (SELECT DISTINCT k, {keys} FROM held_more) GROUP BY k HAVING count(*) > 1
), placed AS (
    SELECT h.k, h.part, h.off, h.c AS t_c, h.p AS t_p, h.part AS t_part, h.off AS t_off,
        coalesce(h.off < l.until, false) AS is_landed, coalesce(h.off < s.until, false) AS is_seen
    FROM (FROM held WHERE k IN (FROM doubled SELECT k)) h
    ASOF LEFT JOIN landed l ON h.part = l.part AND h.off >= l.start
    ASOF LEFT JOIN seen s ON h.part = s.part AND h.off >= s.start
), unseen AS (
    SELECT DISTINCT h.k FROM placed h LEFT JOIN fold f ON f.k = h.k
    WHERE h.is_landed AND NOT h.is_seen
        AND NOT coalesce(row(f.c, f.p, f.part, f.off) >= row(h.t_c, h.t_p, h.t_part, h.t_off), false)
), lacking AS (
    SELECT DISTINCT f.k FROM fold f JOIN left_out b ON (b.part, b.off) = (f.part, f.off)
    LEFT JOIN fold_more m ON m.k = f.k
    WHERE f.k IN (FROM wrong SELECT k) AND (NOT {whole} OR coalesce(m.hs[b.col + 1] = {null}::UBIGINT, true))
), remembered AS (
    SELECT k, max(row(c, p, part, off)) AS v FROM dead_held GROUP BY k
), decided AS (
    SELECT w.k, f.k IS NOT NULL AS in_fold, f.gone, f.c AS f_c, f.p AS f_p, f.part AS f_part, f.off AS f_off,
        d.v AS dead, u.v AS unseen_dead, coalesce(m.v < d.v, true) AS is_forgotten,
        coalesce(f.part, struct_extract(d.v, 3)) AS part, coalesce(f.off, struct_extract(d.v, 4)) AS off
    FROM wrong w LEFT JOIN fold f ON f.k = w.k LEFT JOIN known_dead d ON d.k = w.k LEFT JOIN unseen_dead u ON u.k = w.k
    LEFT JOIN remembered m ON m.k = w.k
), known AS (
    SELECT d.*, {whole} OR ({ordered} AND d.off >= coalesce(b.until, 0)
        AND ({compacted} OR d.off >= coalesce(t.until, 0))) AS is_known
    FROM decided d LEFT JOIN tail t ON t.part = d.part
    LEFT JOIN (SELECT part, max(until) AS until FROM lost GROUP BY part) b ON b.part = d.part
)
SELECT k, in_fold, is_forgotten, CASE
    WHEN {refused} OR k IN (FROM colliding SELECT k) OR k IN (FROM unseen SELECT k) THEN false
    WHEN in_fold THEN is_known AND k NOT IN (FROM lacking SELECT k) AND ({whole} OR NOT (gone OR {absent}))
        AND NOT coalesce(unseen_dead > {fold}, false) AND NOT {unseen_cut}
    WHEN dead IS NOT NULL THEN is_known
    ELSE {whole} END AS is_sure
FROM known
"""
