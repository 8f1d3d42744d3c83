"""The comparison of a table by key finds each wrong row, and calls no row wrong of which Kafka shows too little."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_lakestream.audit.delta import DeltaAudit
from airflow_lakestream.audit.key_comparison import KeyComparison, opened
from airflow_lakestream.audit.keyed import KeyedRules, KeyedTable, KeyedVerdict
from airflow_lakestream.audit.run import Audit
from airflow_lakestream.audit.tally import OffsetTally
from airflow_lakestream.cdc.merge.head import File
from airflow_lakestream.core.ranges import OffsetRange, PartitionKey, RangeSet
from airflow_lakestream.delta.storage import DeltaStorage
from tests.support.keyed import Follower, Record
from tests.support.mirroring import IDENTITY, TABLE, HandDeltaMirror, HandMirror

FEW = max(3, settings.get_profile(settings.get_current_profile_name()).max_examples // 4)
MIRRORS = {"iceberg": HandMirror, "delta": HandDeltaMirror}
PLAIN: dict[str, Any] = {"envelope": None, "key": ["id"]}
Plant = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


def row(key: int, text: str | None, at: int = 0) -> dict[str, Any]:
    return {"id": key, "text": text, "at": at}


def record(key: int, text: str | None, at: int = 0, offset: int | None = None, lacks: str = "") -> Record:
    value = None if text is None else json.dumps({k: v for k, v in row(key, text, at).items() if k != lacks}).encode()
    return Record(json.dumps({"id": key}).encode(), value, key % 2, offset)


@dataclass(frozen=True)
class FaultyHead:
    """A head of a real table, whose rows another tool has changed."""

    inner: Any
    plant: Plant

    def read(self, file: File, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
        every = [part for one in file for part in self.inner.read(one)]
        rows = pa.concat_tables(every)
        yield pa.Table.from_pylist(self.plant(rows.to_pylist()), rows.schema)


def opened_at(mirror: HandMirror) -> tuple[KeyedTable, int | None]:
    """Return a table as the audit reads it, with its snapshot or version."""
    is_delta = isinstance(mirror, HandDeltaMirror)
    look: Any = (
        DeltaAudit(table=mirror.place, consumer_group="g") if is_delta else Audit(table=TABLE, consumer_group="g")
    )
    table, _, head = look.by_key(DeltaStorage() if is_delta else mirror.catalog)
    return table, head


def keyed(mirror: HandMirror, plant: Plant | None = None) -> KeyedTable:
    """Return a table as the audit reads it, with faults that are planted into its rows."""
    table, _ = opened_at(mirror)
    return table if plant is None else replace(table, head=FaultyHead(table.head, plant), files=[table.files])


def ranges(records: Sequence[Record]) -> RangeSet:
    return RangeSet(
        OffsetRange(IDENTITY.topic, one.partition, one.offset, one.offset + 1)
        for one in records
        if one.offset is not None
    )


def tallies(records: Sequence[Record]) -> dict[PartitionKey, OffsetTally]:
    seen = ranges(records)
    return {key: OffsetTally(seen.intervals(*key)) for key in seen.partitions}


def compared(table: KeyedTable, fold: KeyedTable, rules: KeyedRules) -> KeyedVerdict:
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder)) as database:
        return KeyComparison(database, table, fold, rules).run()


def at(rows: list[dict[str, Any]], key: int) -> dict[str, Any]:
    return next(one for one in rows if one["id"] == key)


# By kind of fault: what another tool does to the row of a key, and what of it is found.
FAULTS: dict[str, tuple[Callable[[list[dict[str, Any]], dict[str, Any]], object], set[str]]] = {
    "lost": (lambda rows, one: rows.remove(one), {"missing"}),
    "doubled": (lambda rows, one: rows.append(dict(one)), {"doubled"}),
    "doubled three times": (lambda rows, one: rows.extend([dict(one), dict(one, text="old")]), {"doubled"}),
    "stale": (lambda rows, one: one.update(text="older", _kafka_offset=one["_kafka_offset"] % 20), {"different"}),
    "wrong column": (lambda rows, one: one.update(text="other"), {"different"}),
    "null column": (lambda rows, one: one.update(at=None), {"different"}),
    "another key": (lambda rows, one: one.update(id=one["id"] + 1000), {"missing", "extra"}),
    "made up": (lambda rows, one: rows.append(dict(one, id=one["id"] + 2000, _kafka_offset=10**6)), {"extra"}),
    "beyond the ledger": (lambda rows, one: one.update(_kafka_offset=10**6), {"different"}),
}


@pytest.mark.parametrize("kind", MIRRORS)
@pytest.mark.parametrize("soft_delete", [False, True])
def test_each_of_thirty_faults_is_found_and_no_other(kind: str, soft_delete: bool, tmp_path: Path) -> None:
    follower = Follower(MIRRORS[kind](tmp_path), {**PLAIN, "soft_delete": soft_delete})
    records = [record(key, f"v{turn}", turn) for turn in range(2) for key in range(40)]
    records += [record(key, None) for key in range(36, 40)]
    offsets = {0: iter(range(1000)), 1: iter(range(1000))}
    records = [replace(one, offset=next(offsets[one.partition])) for one in records]
    follower.land(records)
    whole = keyed(follower.mirror)
    seen = ranges(records)
    rules = KeyedRules(landed=seen, seen=tallies(records))
    assert compared(whole, keyed(follower.mirror), rules) == KeyedVerdict(
        rows={0: 20, 1: 20} if soft_delete else {0: 18, 1: 18}
    )

    expected = set[tuple[str, str]]()

    def plant(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        expected.clear()
        for number in range(28):
            spoil, found = list(FAULTS.values())[number % len(FAULTS)]
            spoil(rows, at(rows, number))
            of = {"extra": number + (1000 if "missing" in found else 2000)}
            expected.update((fault, str(of.get(fault, number))) for fault in found)
        # Of a deleted row: it is back, as it was before.
        rows[:] = [one for one in rows if one["id"] not in (36, 38)]
        rows.extend(
            dict(at(rows, 35), id=key, text="v1", _kafka_partition=0, _kafka_offset=20 + key // 2) for key in (36, 38)
        )
        expected.update(("different" if soft_delete else "extra", str(key)) for key in (36, 38))
        return rows

    found = compared(keyed(follower.mirror, plant), whole, rules)
    assert {(one.fault.value, dict(one.key)["id"]) for one in found.wrong} == expected
    assert len(found.wrong) == len(expected)
    assert found.wrong == sorted(found.wrong)
    columns = {dict(one.key)["id"]: one.columns for one in found.wrong}
    assert (columns["4"], columns["5"]) == (("text",), ("at",))


VARIANTS: dict[str, dict[str, Any]] = {
    "newest": {},
    "marked": {"soft_delete": True},
    # A tombstone has no place in a sequence.
    "sequence": {"sequence_by": ["at"], "tombstones": "skip"},
    "first": {"insert_only": True},
    "given": {"merge": "given"},
}


@st.composite
def topics(draw: st.DrawFn) -> tuple[list[Record], list[Record], int]:
    """Return the records of a topic, those that Kafka still shows, and how many are landed.

    What is gone has expired from the beginning of a partition, or was compacted, or is in a damaged batch: then it may
    be any record, also the tombstone of a record that is there.
    """
    changes = draw(st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.integers(0, 3)), min_size=2, max_size=14))
    offsets, records = {0: 0, 1: 0}, []
    for number, (key, gone, place) in enumerate(changes):
        lacks = draw(st.sampled_from(["", "", "text"]))
        records.append(record(key, None if gone else f"v{number}", place, offsets[key % 2], lacks))
        offsets[key % 2] += 1
    lows = {partition: draw(st.integers(0, end)) for partition, end in offsets.items()}
    there = [one for one in records if (one.offset or 0) >= lows[one.partition]]
    there = [one for one in there if not draw(st.booleans())] if draw(st.booleans()) else there
    return records, there, draw(st.integers(1, len(records)))


@pytest.mark.parametrize("kind", MIRRORS)
@settings(max_examples=FEW)
@given(topic=topics(), variant=st.sampled_from(list(VARIANTS)), spoilt=st.integers(0, 5))
def test_no_row_is_called_wrong_whose_records_kafka_shows_no_more(
    kind: str, topic: tuple[list[Record], list[Record], int], variant: str, spoilt: int
) -> None:
    records, there, landed = topic
    landed_records = records[:landed]
    shown = [one for one in there if one in landed_records]
    if all(one.value is None for one in landed_records) or all(one.value is None for one in shown):
        return
    config = {**PLAIN, **VARIANTS[variant]}
    with tempfile.TemporaryDirectory() as folder:
        table, fold = (Follower(MIRRORS[kind](Path(folder, name)), config) for name in ("table", "fold"))
        table.land(landed_records)
        fold.land(shown)
        rules = KeyedRules(
            landed=ranges(landed_records),
            seen=tallies(shown),
            first_stays=variant == "first",
            keeps_absent=variant == "given",
        )
        assert compared(keyed(table.mirror), keyed(fold.mirror), rules).wrong == []

        def plant(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
            return [dict(one, text="spoilt") if one["id"] == spoilt else one for one in rows]

        # Without the column nothing is spoilt.
        if not any("text" in one for one in table.mirror.found()):
            return
        found = compared(keyed(table.mirror, plant), keyed(fold.mirror), rules)
        assert {dict(one.key)["id"] for one in found.wrong} <= {str(spoilt)}
        if shown == landed_records and any(one["id"] == spoilt for one in table.mirror.found()):
            assert found.wrong
