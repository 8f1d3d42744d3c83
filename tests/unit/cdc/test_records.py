"""Tables by key of plain records equal a model, for random batches, orders, partitions, table formats and engines."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from airflow_lakestream.cdc.stops import MirrorStopped, StopReason
from airflow_lakestream.core.policies import MergeMode
from tests.support.keyed import Follower, Record
from tests.support.keyed_models import GivenRows, day
from tests.support.mirroring import HandDeltaMirror, HandMirror

FEW = settings.get_profile(settings.get_current_profile_name()).max_examples // 2
MIRRORS = {"iceberg": HandMirror, "delta": HandDeltaMirror}
KEYS, PARTITIONS = 4, 3


@dataclass(frozen=True)
class Upsert:
    """One record: a row of a key, or its deletion, with a place in the sequence.

    A deletion is a tombstone, without a text, or a record with the operation `D`.
    """

    key: int
    text: str | None
    at: int
    partition: int
    op: str | None = None

    @property
    def row(self) -> dict[str, Any]:
        """The row of the record."""
        return {"id": self.key, "text": self.text, "at": self.at, "op": self.op}

    @property
    def deletes(self) -> bool:
        """Whether the record deletes its key."""
        return self.text is None or self.op == "D"

    def record(self, *, in_value: bool, nested: bool = False) -> Record:
        """Return the record, with the key in the value or only in the Kafka key, perhaps within an object."""
        key: dict[str, Any] = {"id": self.key}
        row = {name: value for name, value in self.row.items() if name != "id"}
        key = {"user": key} if nested else key
        value = None if self.text is None else json.dumps(row | (key if in_value else {})).encode()
        return Record(json.dumps(key).encode() if self.key % 2 else b"%d" % self.key, value, self.partition)


@dataclass
class NewestRows:
    """Model of a table by key: the newest row of each key, and whether records of a key lack an order."""

    by_sequence: bool

    def of(self, records: Sequence[Upsert]) -> tuple[dict[int, Upsert], bool, bool]:
        """Return the records of rows, whether the newest record of a key is unknown, and whether any order is unknown.

        The record of a deletion is in place of its row.
        """
        rows, is_unknown, has_ties = dict[int, Upsert](), False, False
        for key in {one.key for one in records}:
            own = [one for one in records if one.key == key]
            last = max(self._place(one) for one in own)
            newest = [one for one in own if self._place(one) == last]
            is_unknown |= len({one.partition for one in newest}) > 1
            places = [{other.partition for other in own if self._place(other) == self._place(one)} for one in own]
            has_ties |= any(len(partitions) > 1 for partitions in places)
            rows[key] = newest[-1]
        return rows, is_unknown, has_ties

    def _place(self, one: Upsert) -> int:
        return one.at if self.by_sequence else 0


@st.composite
def upserts(draw: st.DrawFn, *, by_sequence: bool, moves: bool) -> list[Upsert]:
    """Return records in the order in which they come; with `moves` a few are not in the partition of their key."""
    moved = draw(st.sets(st.integers(0, 13), min_size=1, max_size=2)) if moves else set[int]()
    found = []
    for number in range(draw(st.integers(1, 14))):
        key = draw(st.integers(0, KEYS - 1))
        is_gone = not by_sequence and draw(st.integers(0, 3)) == 0
        partition = (key + (number in moved)) % PARTITIONS
        at, op = draw(st.integers(-3, 3)), draw(st.sampled_from([None, "U", "D"]))
        found.append(Upsert(key, None if is_gone else f"v{number}", at, partition, op))
    return found


@dataclass
class FirstRows:
    """Model of a table by key whose rows stay: the first row of each key, by the lowest partition within a batch."""

    rows: dict[int, dict[str, Any]] = field(default_factory=dict)

    def land(self, batch: Sequence[Upsert]) -> None:
        """Take the records of a commit."""
        for one in sorted(batch, key=lambda one: one.partition):
            self.rows.setdefault(one.key, one.row)


@dataclass
class RowHistory:
    """Model of a table with the history of rows: a version ends at the next record of its key."""

    records: dict[int, list[tuple[int, int, Upsert]]] = field(default_factory=dict)

    def land(self, number: int, one: Upsert) -> None:
        """Take a record; `number` is its place in the topic."""
        self.records.setdefault(one.key, []).append((one.at, number, one))

    def versions(self) -> list[dict[str, Any]]:
        """Return the rows, in the order of key and record."""
        found = []
        for _, own in sorted(self.records.items()):
            in_order = sorted(own, key=lambda one: one[:2])
            ends: list[datetime | None] = [*(day(at) for at, _, _ in in_order[1:]), None]
            found += [
                {"id": one.key, "text": one.text, "_valid_from": day(at), "_valid_to": end, "_is_current": end is None}
                for (at, _, one), end in zip(in_order, ends, strict=True)
                if not one.deletes
            ]
        return found


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose key may be a nested field, with the key alone."""
    if "user_id" not in row:
        return row
    assert row["user"] in (None, {"id": row["user_id"]})
    return {"id" if name == "user_id" else name: value for name, value in row.items() if name != "user"}


@dataclass
class RecentRows:
    """Model of a table by key that compares times: a record is a row unless the key has one within this many days."""

    within: int
    rows: list[dict[str, Any]] = field(default_factory=list)

    def land(self, batch: Sequence[Upsert]) -> None:
        """Take the records of a commit."""
        for one in sorted(batch, key=lambda one: one.partition):
            own = [row["at"] for row in self.rows if row["id"] == one.key]
            if all(abs(day(one.at) - at) > timedelta(days=self.within) for at in own):
                self.rows.append(one.row | {"at": day(one.at)})


def stop_of(follower: Follower, batch: Sequence[Record]) -> StopReason | None:
    """Land records; return the reason if the mirror stops, or None."""
    try:
        follower.land(batch)
    except MirrorStopped as stopped:
        return stopped.reason
    return None


@settings(max_examples=FEW, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.data(), st.booleans(), st.booleans(), st.booleans(), st.sampled_from(sorted(MIRRORS)))
def test_a_table_has_the_newest_record_of_each_key_however_the_records_come(
    data: st.DataObject, by_sequence: bool, moves: bool, soft_delete: bool, table_format: str
) -> None:
    records = data.draw(upserts(by_sequence=by_sequence, moves=moves))
    in_value = data.draw(st.lists(st.booleans(), min_size=len(records), max_size=len(records)))
    ends = sorted(data.draw(st.sets(st.integers(1, len(records)), max_size=4)) | {len(records)})
    model, executors = NewestRows(by_sequence), data.draw(st.sampled_from([0, 1, 2]))
    nested = data.draw(st.booleans())
    schema = "user struct<id: bigint>, user_id bigint" if nested else "id bigint"
    asked = {"envelope": None, "key": ["user.id" if nested else "id"], "schema": f"{schema}, text string, at bigint"}
    asked |= {"soft_delete": soft_delete, "delete_when": "op = 'D'"}
    asked["schema"] += ", op string"
    with tempfile.TemporaryDirectory() as folder:
        modes = [MergeMode.AUTO] if table_format == "delta" else [*MergeMode]
        mirror = MIRRORS[table_format](Path(folder), modes=modes, executors=executors)
        follower = Follower(mirror, asked | ({"sequence_by": ["at"]} if by_sequence else {}))
        done = 0
        for end in ends:
            several = zip(records[done:end], in_value[done:end], strict=True)
            batch = [one.record(in_value=of, nested=nested) for one, of in several]
            rows, is_unknown, has_ties = model.of(records[:end])
            if (reason := stop_of(follower, batch)) is not None:
                assert reason is StopReason.ORDER_UNKNOWN
                assert has_ties
                return
            assert not is_unknown
            done = end
            found = [flat(row) for row in follower.rows()]
            assert {row["id"]: row for row in found} == {key: one.row for key, one in rows.items() if not one.deletes}
            assert len(found) == len({one["id"] for one in found})
            # A record that deletes its key is the row, marked; a tombstone leaves the row before.
            marked = {flat(row)["id"]: row["text"] for row in mirror.found() if row.get("_is_deleted")}
            assert marked.keys() == {key for key, one in rows.items() if soft_delete and one.deletes}
            assert all(text == rows[key].text for key, text in marked.items() if rows[key].text is not None)


@settings(max_examples=FEW // 2, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.data(), st.booleans(), st.sampled_from(sorted(MIRRORS)))
def test_the_first_record_of_each_key_stays_however_often_the_key_comes_again(
    data: st.DataObject, moves: bool, table_format: str
) -> None:
    records = data.draw(upserts(by_sequence=True, moves=moves))
    ends = sorted(data.draw(st.sets(st.integers(1, len(records)), max_size=4)) | {len(records)})
    model, schema = FirstRows(), "id bigint, text string, at bigint, op string"
    with tempfile.TemporaryDirectory() as folder:
        mirror = MIRRORS[table_format](Path(folder), executors=data.draw(st.sampled_from([0, 2])))
        follower = Follower(mirror, {"envelope": None, "key": ["id"], "schema": schema, "insert_only": True})
        for start, end in pairwise([0, *ends]):
            follower.land([one.record(in_value=True) for one in records[start:end]])
            model.land(records[start:end])
            found = follower.rows()
            assert {row["id"]: row for row in found} == model.rows
            assert len(found) == len(model.rows)


@settings(max_examples=FEW // 2, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.data(), st.integers(1, 3), st.sampled_from(sorted(MIRRORS)))
def test_a_key_that_comes_again_outside_of_the_time_is_a_new_row_however_batches_end(
    data: st.DataObject, within: int, table_format: str
) -> None:
    records = data.draw(upserts(by_sequence=True, moves=True))
    ends = sorted(data.draw(st.sets(st.integers(1, len(records)), max_size=4)) | {len(records)})
    asked = {"envelope": None, "key": ["id"], "schema": "id bigint, text string, at timestamptz, op string"}
    asked |= {"insert_only": True, "sequence_by": "at", "within": f"{within} days"}
    model = RecentRows(within)
    with tempfile.TemporaryDirectory() as folder:
        mirror = MIRRORS[table_format](Path(folder), executors=data.draw(st.sampled_from([0, 2])))
        follower = Follower(mirror, asked)
        for start, end in pairwise([0, *ends]):
            some = [
                replace(one.record(in_value=True), value=json.dumps(one.row | {"at": str(day(one.at))}).encode())
                for one in records[start:end]
            ]
            follower.land(some)
            model.land(records[start:end])
            in_order = [sorted(rows, key=lambda row: (row["id"], row["at"])) for rows in (follower.rows(), model.rows)]
            assert in_order[0] == in_order[1]


@pytest.mark.parametrize("table_format", sorted(MIRRORS))
def test_files_of_another_time_are_not_read(tmp_path: Path, table_format: str) -> None:
    asked = {"envelope": None, "key": ["id"], "insert_only": True, "sequence_by": "at", "within": timedelta(days=7)}
    follower = Follower(MIRRORS[table_format](tmp_path), asked)

    def land(month: int, *days: int) -> None:
        values = [{"id": 1, "day": day, "at": f"2026-{month:02}-{day:02}T00:00:00Z"} for day in days]
        follower.land([Record(None, json.dumps(value).encode()) for value in values])

    land(1, 1, 2)
    [old] = [path for path in tmp_path.rglob("*.parquet") if "_delta_log" not in path.parts]
    kept = old.read_bytes()
    old.unlink()
    land(3, 1, 9)
    land(3, 2, 8)
    old.write_bytes(kept)
    assert sorted(row["at"].month * 100 + row["day"] for row in follower.rows()) == [101, 301, 309]


@settings(max_examples=FEW, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.data(), st.booleans(), st.booleans(), st.sampled_from(sorted(MIRRORS)))
def test_absent_fields_keep_their_values_and_null_is_a_value_however_batches_end(
    data: st.DataObject, by_sequence: bool, soft_delete: bool, table_format: str
) -> None:
    given_fields = st.fixed_dictionaries(
        {"at": st.integers(-3, 3)},
        optional={
            "a": st.sampled_from([None, 1, 2]),
            "b": st.sampled_from([None, {"c": 1}, {"d": 2}]),
            "op": st.sampled_from([None, "U", "D"]),
        },
    )
    values = given_fields if by_sequence else st.none() | given_fields
    records = data.draw(st.lists(st.tuples(st.integers(0, 2), values), min_size=1, max_size=12))
    ends = sorted(data.draw(st.sets(st.integers(1, len(records)), max_size=4)) | {len(records)})
    schema = "id bigint, at bigint, a bigint, b struct<c: bigint, d: bigint>, op string"
    asked = {"envelope": None, "key": ["id"], "schema": schema, "merge": "given", "delete_when": "op = 'D'"}
    asked |= {"soft_delete": soft_delete}
    model = GivenRows(by_sequence)
    with tempfile.TemporaryDirectory() as folder:
        modes = [MergeMode.AUTO] if table_format == "delta" else [*MergeMode]
        mirror = MIRRORS[table_format](Path(folder), modes=modes, executors=data.draw(st.sampled_from([0, 2])))
        follower = Follower(mirror, asked | ({"sequence_by": ["at"]} if by_sequence else {}))
        for start, end in pairwise([0, *ends]):
            batch = []
            for key, record in records[start:end]:
                model.land(key, record)
                value = None if record is None else json.dumps(record | {"id": key}).encode()
                batch.append(Record(b"%d" % key, value, key % PARTITIONS))
            follower.land(batch)
            expected = {key: row for key, row in model.rows.items() if row is not None}
            every = [(row["id"], row) for row in mirror.found() if row.get("_is_deleted")]
            for rows, held in (
                ([(row["id"], row) for row in follower.rows()], expected),
                (every, model.deleted if soft_delete else {}),
            ):
                found = [(key, {name: row[name] for name in ("at", "a", "b", "op")}) for key, row in rows]
                padded = {key: row | {"b": row["b"] and {"c": None, "d": None} | row["b"]} for key, row in held.items()}
                assert dict(found) == padded
                assert len(found) == len(padded)


@settings(max_examples=FEW, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.data(), st.sampled_from(sorted(MIRRORS)))
def test_each_version_of_a_row_is_valid_until_the_next_one_however_late_records_come(
    data: st.DataObject, table_format: str
) -> None:
    records = data.draw(upserts(by_sequence=True, moves=False))
    ends = sorted(data.draw(st.sets(st.integers(1, len(records)), max_size=5)) | {len(records)})
    asked = {"envelope": None, "key": ["id"], "schema": "id bigint, text string, at timestamptz, op string"}
    asked |= {"history": True, "sequence_by": "at", "delete_when": "op = 'D'"}
    model = RowHistory()
    with tempfile.TemporaryDirectory() as folder:
        modes = [MergeMode.AUTO] if table_format == "delta" else [*MergeMode]
        mirror = MIRRORS[table_format](Path(folder), modes=modes, executors=data.draw(st.sampled_from([0, 2])))
        follower = Follower(mirror, asked)
        for start, end in pairwise([0, *ends]):
            batch = []
            for number in range(start, end):
                one = records[number]
                model.land(number, one)
                value = json.dumps(one.row | {"at": str(day(one.at))}).encode()
                batch.append(replace(one.record(in_value=True), value=value))
            follower.land(batch)
            columns = ("id", "text", "_valid_from", "_valid_to", "_is_current")
            in_order = sorted(mirror.found(), key=lambda row: (row["id"], row["_valid_from"], row["_kafka_offset"]))
            assert [{name: row[name] for name in columns} for row in in_order] == model.versions()
