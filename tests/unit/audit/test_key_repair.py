"""A repair makes rows what their topic says, where Kafka shows enough of it; it never makes any other row."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_lakestream.audit.key_comparison import KeyComparison, opened
from airflow_lakestream.audit.key_repair import KeyRepairPlan
from airflow_lakestream.audit.keyed import KeyedRules, KeyedVerdict
from airflow_lakestream.cdc.merge.memory import SUFFIX
from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.core.ranges import RangeSet
from tests.support.keyed import Follower, Record
from tests.support.mirroring import TABLE, HandDeltaMirror, HandMirror
from tests.unit.audit.test_keyed import FEW, MIRRORS, PLAIN, VARIANTS, keyed, opened_at, ranges, record, tallies

Rows = list[dict[str, Any]]
# Of each key's row the kind of its fault, and an offset.
Faults = Sequence[tuple[str, int]]
KINDS = ("none", "lost", "doubled", "stale", "double of another", "column", "other key", "made up", "beyond")
SURE = {name: given for name, given in VARIANTS.items() if name != "first"}


def plant(rows: Rows, faults: Faults) -> Rows:
    """Return rows with faults, as another tool could make them."""
    for key, (kind, place) in enumerate(faults):
        own = [one for one in rows if one["id"] == key]
        rows = [one for one in rows if one["id"] != key]
        made = {**(own or rows or [{}])[0], "id": key, "_kafka_offset": place}
        match kind:
            case "doubled":
                own = own * 2
            case "stale":
                own = [{**one, "text": "older", "_kafka_offset": place} for one in own]
            case "double of another":
                own = [*own, made] if rows else own
            case "column":
                own = [{**one, "text": "other"} for one in own]
            case "other key":
                own = [{**one, "id": (key + 1) % 6} for one in own]
            case "made up":
                own = own or ([made] if rows else [])
            case "beyond":
                own = [{**one, "_kafka_offset": 10**6 + place} for one in own]
            case "lost":
                own = []
        rows += own
    return rows


def overwrite(mirror: HandMirror, rows: Rows) -> None:
    """Write rows in place of all rows of a mirror, as another tool would."""
    if isinstance(mirror, HandDeltaMirror):
        schema = pa.schema(DeltaTable(mirror.place).schema())
        write_deltalake(mirror.place, pa.Table.from_pylist(rows, schema), mode="overwrite")
    else:
        table = mirror.table()
        table.overwrite(pa.Table.from_pylist(rows, table.schema().as_arrow()))


def repair(table: Follower, fold: Follower, rules: KeyedRules) -> tuple[KeyedVerdict, list[str]]:
    """Compare a mirror with the fold and repair it; return what was wrong, and what of it stays."""
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder)) as database:
        held, head = opened_at(table.mirror)
        comparison = KeyComparison(database, held, keyed(fold.mirror), rules)
        verdict = comparison.run()
        plan = KeyRepairPlan(comparison)
        change = plan.change(head)
        if change is not None:
            sink = table.mirror.sink()
            sink.load("repair")
            sink.table.repair(change, sink.design, Landing(f"repair {uuid.uuid4().hex}", "repair", {}))
        return verdict, plan.left()


def by_key(mirror: HandMirror) -> dict[int, Rows]:
    found: dict[int, Rows] = defaultdict(list)
    for one in mirror.found():
        found[one["id"]].append(one)
    return {key: sorted(some, key=repr) for key, some in found.items()}


@st.composite
def topics(draw: st.DrawFn) -> tuple[list[Record], list[Record], RangeSet, bool]:
    """Return a topic's records, those that Kafka still shows, offsets of damaged batches, and how it was compacted.

    Compaction by the key leaves the newest record of each key in the cleaned part; by another key it may take any.
    """
    changes = draw(st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.integers(0, 3)), min_size=3, max_size=14))
    ends, records = {0: 0, 1: 0}, list[Record]()
    for number, (key, gone, place) in enumerate(changes):
        lacks = draw(st.sampled_from(["", "", "text"]))
        records.append(record(key, None if gone else f"v{number}", place, ends[key % 2], lacks))
        ends[key % 2] += 1
    way, is_by_key = draw(st.sampled_from(["whole", "expired", "compacted", "damaged", "all"])), draw(st.booleans())
    there, damaged = records, list[Record]()
    if way in ("compacted", "all"):
        cleaned = {partition: draw(st.integers(0, end)) for partition, end in ends.items()}
        old = [one for one in there if (one.offset or 0) < cleaned[one.partition]]
        if is_by_key:
            last = {one.key: one for one in old}
            old_gone = [one for one in old if one is not last[one.key]]
            old_gone += [one for one in last.values() if one.value is None and draw(st.booleans())]
        else:
            old_gone = [one for one in old if draw(st.booleans())]
        there = [one for one in there if all(one is not other for other in old_gone)]
    if way in ("expired", "all"):
        lows = {partition: draw(st.integers(0, end)) for partition, end in ends.items()}
        there = [one for one in there if (one.offset or 0) >= lows[one.partition]]
    if way in ("damaged", "all"):
        damaged = [one for one in there if draw(st.integers(0, 3)) == 0]
        there = [one for one in there if all(one is not other for other in damaged)]
    return records, there, ranges(damaged), is_by_key


FAULTS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 8)), min_size=6, max_size=6)


@pytest.mark.parametrize("kind", MIRRORS)
@settings(max_examples=FEW)
@given(
    topic=topics(),
    variant=st.sampled_from(list(SURE)),
    several=st.lists(FAULTS, min_size=3, max_size=3),
    late=st.integers(0, 13),
)
def test_a_repair_makes_no_row_but_the_right_one(
    kind: str, topic: tuple[list[Record], list[Record], RangeSet, bool], variant: str, several: list[Faults], late: int
) -> None:
    records, there, damaged, is_by_key = topic
    # One record is landed after the repair: it may be older than a deletion of its key.
    last = records[late % len(records)]
    landed = [one for one in records if one is not last]
    shown = [one for one in there if one is not last]
    if all(one.value is None for one in landed) or all(one.value is None for one in shown):
        return
    config = {**PLAIN, **SURE[variant]}
    with tempfile.TemporaryDirectory() as folder:
        names = ("table", "twin", "fold")
        table, twin, fold = (Follower(MIRRORS[kind](Path(folder, name)), config) for name in names)
        table.land(landed)
        twin.land(landed)
        fold.land(shown)
        right = by_key(twin.mirror)
        if not right or any({"text", "at"} - one.keys() for some in right.values() for one in some):
            return
        rules = KeyedRules(
            landed=ranges(landed),
            seen=tallies(shown),
            lost=damaged,
            by_sequence=variant == "sequence",
            by_kafka_key=is_by_key and variant != "sequence",
            keeps_absent=variant == "given",
        )
        for faults in several:
            overwrite(table.mirror, plant(twin.mirror.found(), faults))
            wrong = by_key(table.mirror)
            _, left = repair(table, fold, rules)
            found = by_key(table.mirror)
            for key in {*right, *wrong, *found}:
                assert found.get(key) in (right.get(key), wrong.get(key)), key
            if shown == landed:
                assert (found, left) == (right, [])
                assert repair(table, fold, rules) == (KeyedVerdict(rows=repair(twin, fold, rules)[0].rows), [])
        if shown != landed:
            return
        for follower in (table, twin):
            follower.land([last])
        assert by_key(table.mirror) == by_key(twin.mirror)


@pytest.mark.parametrize("kind", MIRRORS)
def test_rows_of_a_cleaned_topic_are_set_right_and_a_forgotten_deletion_is_remembered(
    kind: str, tmp_path: Path
) -> None:
    table, fold = (Follower(MIRRORS[kind](tmp_path / name), PLAIN) for name in ("table", "fold"))
    records = [record(key, f"v{turn}", turn, turn * 3 + at) for turn in range(2) for at, key in enumerate((0, 2, 4))]
    records += [record(2, None, offset=6), record(4, "last", offset=7)]
    late = records.pop(4)
    landed = records
    table.land(landed)
    right = by_key(table.mirror)
    shown = [one for one in landed if (one.offset or 0) in (3, 6, 7)]
    fold.land(shown)
    # The memory is lost, and the rows are as they were before the last change of each key.
    if isinstance(table.mirror, HandDeltaMirror):
        shutil.rmtree(table.mirror.place + SUFFIX)
    else:
        table.mirror.catalog.drop_table(TABLE + SUFFIX)
    rows = [{**some[0], "text": "v0", "_kafka_offset": at} for at, some in enumerate(right.values())]
    overwrite(table.mirror, [*rows, {**rows[0], "id": 2, "_kafka_offset": 1}])
    rules = KeyedRules(landed=ranges(landed), seen=tallies(shown), by_kafka_key=True)

    verdict, left = repair(table, fold, rules)
    assert [one.fault.value for one in verdict.wrong] == ["extra", "different", "different"]
    assert (by_key(table.mirror), left) == (right, [])
    table.land([late])
    assert by_key(table.mirror) == right


V0, V1, GONE = record(0, "v0", 5, 0), record(0, "v1", 1, 1), record(0, None, offset=1)
KEY: dict[str, Any] = {"by_kafka_key": True}
# Of a key's two records the second one, which of the two Kafka shows (2: none), the table's settings, and the rules.
CASES: dict[str, tuple[Record, int, dict[str, Any], dict[str, Any], bool]] = {
    "the first expired": (V1, 1, {}, KEY, True),
    "the first expired, by another Kafka key": (V1, 1, {}, {}, True),
    "the first expired, the last of the sequence": (V1, 1, VARIANTS["sequence"], {"by_sequence": True}, False),
    "the first expired, and the second lacks a value": (
        record(0, "v1", 1, 1, lacks="text"), 1, VARIANTS["given"], {**KEY, "keeps_absent": True}, False,
    ),
    "the first expired, and a deletion marks it": (GONE, 1, VARIANTS["marked"], KEY, False),
    "the second is gone, as a record of another Kafka key": (V1, 0, {}, {}, False),
    "the second is damaged": (V1, 0, {}, {**KEY, "lost": ranges([V1])}, False),
    "the first expired, and another log was followed": (V1, 1, {}, {**KEY, "has_other_logs": True}, False),
    "a deletion, and the first expired": (GONE, 1, {}, KEY, True),
    "both expired": (V1, 2, {}, KEY, False),
}  # fmt: skip


@pytest.mark.parametrize("kind", MIRRORS)
@pytest.mark.parametrize("case", CASES)
def test_a_row_is_repaired_exactly_if_its_records_decide(kind: str, case: str, tmp_path: Path) -> None:
    second, shown, config, rules, is_repaired = CASES[case]
    table, fold = (Follower(MIRRORS[kind](tmp_path / name), {**PLAIN, **config}) for name in ("table", "fold"))
    other = record(2, "other", 1, 2)
    records = [V0, second, other]
    table.land(records)
    there = [*{id(one): one for one in (records[shown], other)}.values()]
    fold.land(there)
    right = by_key(table.mirror)
    made = {**right[2][0], "id": 0, "text": "made up", "_kafka_offset": 10**6}
    overwrite(table.mirror, [*right[2], made])
    wrong = by_key(table.mirror)
    verdict, left = repair(table, fold, KeyedRules(landed=ranges(records), seen=tallies(there), **rules))
    assert len(verdict.wrong) == 1
    assert (by_key(table.mirror), len(left)) == ((right, 0) if is_repaired else (wrong, 1))


@pytest.mark.parametrize("kind", MIRRORS)
def test_a_row_of_an_unseen_record_stays_although_a_key_has_two(kind: str, tmp_path: Path) -> None:
    table, fold = (Follower(MIRRORS[kind](tmp_path / name), PLAIN) for name in ("table", "fold"))
    records = [record(0, f"v{turn}", turn, turn) for turn in range(2)]
    table.land(records)
    fold.land(records[:1])
    [row] = table.mirror.found()
    overwrite(table.mirror, [row, {**row, "text": "v0", "at": 0, "_kafka_offset": 0}])
    before = by_key(table.mirror)
    verdict, left = repair(
        table, fold, KeyedRules(landed=ranges(records), seen=tallies(records[:1]), by_kafka_key=True)
    )
    assert [one.fault.value for one in verdict.wrong] == ["doubled"]
    assert (by_key(table.mirror), len(left)) == (before, 1)
