"""The comparison of a history finds each wrong version, and calls none wrong of which Kafka shows too little."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_lakestream.audit.key_comparison import opened
from airflow_lakestream.audit.keyed import KeyedRules, KeyedTable, KeyedVerdict
from airflow_lakestream.audit.version_comparison import KeyPartitions, VersionComparison
from airflow_lakestream.cdc.columns import UNAVAILABLE
from airflow_lakestream.cdc.stops import MirrorStopped
from tests.support.keyed import Follower, Record, Source
from tests.support.keyed_models import day
from tests.support.mirroring import HandMirror
from tests.unit.audit.test_keyed import FEW, MIRRORS, keyed, ranges, tallies

Row = dict[str, Any]
PLAIN: Row = {
    "envelope": None,
    "key": ["id"],
    "history": True,
    "sequence_by": "at",
    "delete_when": "text = 'gone'",
    "schema": "id bigint, at timestamptz, text string, note string",
}
VARIANTS: dict[str, Row] = {
    "each": {},
    "given": {"merge": "given"},
    "columns": {"history_columns": ["text"]},
    "columns given": {"history_columns": ["text"], "merge": "given"},
}


def record(key: int, text: str, at: int, partition: int, offset: int, *, lacks: bool = False) -> Record:
    """Return a record, perhaps one that lacks its text."""
    value = {"id": key, "at": str(day(at)), **({} if lacks else {"text": text}), "note": f"n{offset}"}
    return Record(None, json.dumps(value).encode(), partition, offset)


def compared(table: KeyedTable, fold: KeyedTable, rules: KeyedRules, records: Sequence[Record] = ()) -> KeyedVerdict:
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder)) as database:
        partitions = KeyPartitions(database, ("id",))
        for one in records:
            partitions.add(place_of(one))
        return VersionComparison(database, table, fold, rules).run()


def place_of(one: Record) -> pa.Table:
    key = json.loads(one.value or b"{}")["id"]
    return pa.table({"id": [key], "_kafka_partition": pa.array([one.partition], pa.int32())})


def versions(rows: list[Row], key: int) -> list[Row]:
    return sorted((one for one in rows if one["id"] == key), key=lambda one: one["_valid_from"])


def moved(rows: list[Row], one: Row, **new: Any) -> None:
    rows.append({**one, **new})


def close(one: Row, number: int) -> None:
    one.update(_valid_to=day(number), _is_current=False)


# By kind of fault: what another tool does to the versions of a key, and what of it is found, with its columns.
Fault = tuple[Callable[[list[Row], list[Row]], object], list[tuple[str, tuple[str, ...]]]]
ENDS = ("_valid_to", "_is_current")
FAULTS: dict[str, Fault] = {
    "version lost": (lambda rows, own: rows.remove(own[0]), [("missing", ())]),
    "current lost": (lambda rows, own: rows.remove(own[-1]), [("missing", ())]),
    "doubled": (lambda rows, own: rows.append(dict(own[0])), [("doubled", ())]),
    "doubled three times": (lambda rows, own: rows.extend([dict(own[1]), dict(own[1], text="old")]), [("doubled", ())]),
    "end too early": (lambda rows, own: own[0].update(_valid_to=day(-5)), [("different", ENDS[:1])]),
    "end too late": (lambda rows, own: own[0].update(_valid_to=day(50)), [("different", ENDS[:1])]),
    "two currents": (lambda rows, own: own[0].update(_valid_to=None, _is_current=True), [("different", ENDS)]),
    "current ended": (lambda rows, own: close(own[-1], 60), [("different", ENDS)]),
    "mark alone": (lambda rows, own: own[-1].update(_is_current=False), [("different", ENDS[1:])]),
    "begin": (lambda rows, own: own[1].update(_valid_from=day(-7)), [("different", ("_valid_from",))]),
    "value": (lambda rows, own: own[1].update(text="other"), [("different", ("text",))]),
    "other value": (lambda rows, own: own[-1].update(note=None), [("different", ("note",))]),
    "stale current": (lambda rows, own: own[-1].update(_kafka_offset=10**6), [("extra", ()), ("missing", ())]),
    "another key": (lambda rows, own: own[1].update(id=own[1]["id"] + 1000), [("extra", ()), ("missing", ())]),
    "made up": (lambda rows, own: moved(rows, own[0], id=own[0]["id"] + 2000), [("extra", ())]),
}


@pytest.mark.parametrize("kind", MIRRORS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_each_of_thirty_faults_is_found_and_no_other(kind: str, variant: str, tmp_path: Path) -> None:
    follower = Follower(MIRRORS[kind](tmp_path), PLAIN | VARIANTS[variant])
    offsets = {0: iter(range(1000)), 1: iter(range(1000))}
    records = [
        record(key, f"v{turn}", 10 * turn, key % 2, next(offsets[key % 2])) for turn in range(3) for key in range(40)
    ]
    # Deleted; and a late version.
    records += [record(key, "gone", 40, key % 2, next(offsets[key % 2])) for key in (30, 31)]
    records += [record(key, "late", 15, key % 2, next(offsets[key % 2])) for key in (32, 33)]
    for part in (records[:50], records[50:]):
        follower.land(part)
    whole = keyed(follower.mirror)
    rules = KeyedRules(
        landed=ranges(records),
        seen=tallies(records),
        keeps_absent="given" in variant,
        columns=tuple(VARIANTS[variant].get("history_columns", ())),
    )
    assert compared(whole, keyed(follower.mirror), rules, records) == KeyedVerdict(rows={0: 61, 1: 61})

    expected = set[tuple[str, int, tuple[str, ...]]]()

    def plant(rows: list[Row]) -> list[Row]:
        expected.clear()
        for number in range(30):
            spoil, found = list(FAULTS.values())[number % len(FAULTS)]
            spoil(rows, versions(rows, number))
            name = list(FAULTS)[number % len(FAULTS)]
            other = {"another key": 1000, "made up": 2000}.get(name, 0)
            expected.update((fault, number + (other if fault == "extra" else 0), names) for fault, names in found)
        return rows

    found = compared(keyed(follower.mirror, plant), whole, rules, records)
    assert {(one.fault.value, int(dict(one.key)["id"]), one.columns) for one in found.wrong} == expected
    assert len(found.wrong) == len(expected)
    assert found.wrong == sorted(found.wrong)


@st.composite
def topics(draw: st.DrawFn, variant: str) -> tuple[list[Record], list[Record], list[int]]:
    """Return the records of a topic, those that Kafka still shows, and where landings end.

    Unless keys stay in their partitions, a key comes from both. What is gone has expired, or is any record.
    """
    keys, times = st.integers(0, 2), st.integers(-3, 3)
    texts = st.sampled_from(["a", "b", "c", "gone"])
    changes = draw(st.lists(st.tuples(keys, texts, times, st.booleans()), min_size=2, max_size=12))
    stays = draw(st.booleans())
    offsets, records = {0: 0, 1: 0}, []
    for key, text, at, other in changes:
        partition = key % 2 if stays else int(other)
        records.append(
            record(key, text, at, partition, offsets[partition], lacks="given" in variant and draw(st.booleans()))
        )
        offsets[partition] += 1
    lows = {partition: draw(st.integers(0, end)) for partition, end in offsets.items()} if draw(st.booleans()) else {}
    there = [one for one in records if (one.offset or 0) >= lows.get(one.partition, 0)]
    there = [one for one in there if not draw(st.booleans())] if draw(st.booleans()) else there
    ends = draw(st.sets(st.integers(1, len(records)), max_size=3)) | {len(records)}
    return records, there, sorted(ends)


def has_ties(records: Sequence[Record]) -> bool:
    """Return whether records of a key from two partitions have one time: these stop a history."""
    places: dict[tuple[int, str], set[int]] = {}
    for one in records:
        value = json.loads(one.value or b"{}")
        places.setdefault((value["id"], value["at"]), set()).add(one.partition)
    return any(len(partitions) > 1 for partitions in places.values())


@pytest.mark.parametrize("kind", MIRRORS)
@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=FEW)
@given(data=st.data(), spoilt=st.integers(0, 11))
def test_no_version_is_called_wrong_whose_records_kafka_shows_no_more(
    kind: str, variant: str, data: st.DataObject, spoilt: int
) -> None:
    records, there, ends = data.draw(topics(variant))
    if has_ties(records) or not there:
        return
    config = PLAIN | VARIANTS[variant]
    with tempfile.TemporaryDirectory() as folder:
        made = (MIRRORS[kind], HandMirror)
        table, fold = (Follower(make(Path(folder, str(at))), config) for at, make in enumerate(made))
        start = 0
        for end in ends:
            table.land(records[start:end])
            start = end
        fold.land(there)
        rules = KeyedRules(
            landed=ranges(records),
            seen=tallies(there),
            keeps_absent="given" in variant,
            columns=tuple(config.get("history_columns", ())),
        )
        assert compared(keyed(table.mirror), keyed(fold.mirror), rules, there).wrong == []
        held = table.mirror.found()
        if not held:
            return
        place = held[spoilt % len(held)]
        columns = ("id", "_kafka_partition", "_kafka_offset")

        def plant(rows: list[Row]) -> list[Row]:
            own = next(one for one in rows if [one[name] for name in columns] == [place[name] for name in columns])
            own["text"] = "spoilt"
            return rows

        found = compared(keyed(table.mirror, plant), keyed(fold.mirror), rules, there).wrong
        assert {int(dict(one.key)["id"]) for one in found} <= {place["id"]}
        own = {one.partition for one in records if json.loads(one.value or b"{}")["id"] == place["id"]}
        if there == records and len(own) == 1:
            assert [(one.fault.value, one.columns) for one in found] == [("different", ("text",))]


@st.composite
def events(draw: st.DrawFn) -> tuple[list[Record], list[Record]]:
    """Return events of a database's table, some sent twice or without a value, and those that Kafka still shows."""
    source, rows, records = Source(), dict[int, Row](), list[Record]()
    for _ in range(draw(st.integers(1, 8))):
        source.begin()
        for key in draw(st.lists(st.integers(0, 2), min_size=1, max_size=2, unique=True)):
            old, name = rows.get(key), draw(st.sampled_from(["a", "b", None]))
            big = UNAVAILABLE if old and draw(st.booleans()) else draw(st.sampled_from(["x", "y"]))
            new = None if name is None else {"id": key, "name": name, "big": big}
            if old is None and new is None:
                continue
            records += source.change(old, new)
            rows[key] = new if new is None or new["big"] != UNAVAILABLE else {**new, "big": old and old["big"]}
            rows = {one: row for one, row in rows.items() if row is not None}
    if draw(st.booleans()) and records:
        at = draw(st.integers(0, len(records)))
        records = [*records[:at], *records[draw(st.integers(0, at)) :]]
    records = [replace(one, value=in_time(one.value), offset=at) for at, one in enumerate(records)]
    there = records[draw(st.integers(0, len(records))) :] if draw(st.booleans()) else records
    return records, [one for one in there if not draw(st.booleans())] if draw(st.booleans()) else there


def in_time(value: bytes | None) -> bytes:
    """Return an event whose commit is at the millisecond of its position."""
    event = json.loads(value or b"{}")
    event["source"]["ts_ms"] = json.loads(event["source"]["sequence"])[0]
    return json.dumps(event | {"source": event["source"] | {"ts_ms": int(event["source"]["ts_ms"])}}).encode()


@pytest.mark.parametrize("kind", MIRRORS)
@pytest.mark.parametrize("columns", [(), ("name",), ("big",)])
# Each example lands up to twenty times.
@settings(max_examples=max(2, FEW // 2))
@given(topic=events(), spoilt=st.integers(0, 9), landed=st.integers(1, 20))
def test_histories_of_a_database_are_compared_as_far_as_kafka_shows_them(
    kind: str, columns: tuple[str, ...], topic: tuple[list[Record], list[Record]], spoilt: int, landed: int
) -> None:
    records, there = topic
    if not there:
        return
    config: Row = {
        "history": True,
        "history_columns": list(columns) or None,
        "schema": "id bigint, name string, big string",
    }
    with tempfile.TemporaryDirectory() as folder:
        made = (MIRRORS[kind], HandMirror)
        table, fold = (Follower(make(Path(folder, str(at))), config) for at, make in enumerate(made))
        for part in (records[:landed], records[landed:]):
            if part:
                table.land(part)
        left_out = dict[str, list[int]]()
        fold.mirror.borrowed = lambda name, partition, offset: left_out.setdefault(name, []).append(offset)
        try:
            fold.land(there)
        except MirrorStopped:
            # An audit is blind then, and says so.
            return
        borrowed = [
            (name, pa.table({"part": pa.array([0] * len(at), pa.int32()), "off": at})) for name, at in left_out.items()
        ]
        rules = KeyedRules(
            landed=ranges(records),
            seen=tallies(there),
            is_by_log=True,
            repeats=True,
            columns=columns,
            borrowed=borrowed,
        )
        assert compared(keyed(table.mirror), keyed(fold.mirror), rules).wrong == []
        held = table.mirror.found()
        if not held:
            return
        place = held[spoilt % len(held)]

        def plant(rows: list[Row]) -> list[Row]:
            rows.remove(next(one for one in rows if one["_kafka_offset"] == place["_kafka_offset"]))
            return rows

        found = compared(keyed(table.mirror, plant), keyed(fold.mirror), rules).wrong
        assert {int(dict(one.key)["id"]) for one in found} <= {place["id"]}
        if there == records:
            assert [(one.fault.value, one.offset) for one in found] == [("missing", place["_kafka_offset"])]
