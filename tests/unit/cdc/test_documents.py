"""Mirrors of Maxwell's and Canal's documents equal a model of the database, for random statements and deliveries."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from airflow_lakestream.core.policies import MergeMode
from tests.support.keyed import Follower, Record
from tests.support.mirroring import HandDeltaMirror, HandMirror

FEW = settings.get_profile(settings.get_current_profile_name()).max_examples // 2
MIRRORS = {"iceberg": HandMirror, "delta": HandDeltaMirror}
PARTITIONS = 3
# The time of the first statement, in seconds.
BEGIN = 1_800_000_000

Row = dict[str, Any]
Change = tuple[Row | None, Row | None]


@dataclass(frozen=True)
class Statement:
    """One statement: the rows before and after it of each change, in order; a truncation has none."""

    number: int
    changes: Sequence[Change]
    truncates: bool = False

    @property
    def seconds(self) -> int:
        """The time of the statement."""
        return BEGIN + self.number

    def keys(self) -> Iterator[tuple[int, Row | None]]:
        """Yield the keys that the statement changes, each with the row after the change."""
        for before, after in self.changes:
            if before is not None and (after is None or after["id"] != before["id"]):
                yield before["id"], None
            if after is not None:
                yield after["id"], after


@st.composite
def statements(draw: st.DrawFn, *, truncates: bool, most: int = 9) -> list[Statement]:
    """Return statements of a table; each has several rows of one kind, as an event of the binary log."""
    rows, found = dict[int, Row](), list[Statement]()
    for number in range(draw(st.integers(1, most))):
        free = [key for key in range(6) if key not in rows]
        kinds = ["insert"] * bool(free) + ["update", "move", "shift", "delete"] * bool(rows)
        kind = draw(st.sampled_from([*kinds, *(["truncate"] if truncates else [])]))
        changes = list[Change]()
        some = (
            draw(st.lists(st.sampled_from(free if kind == "insert" else [*rows]), min_size=1, max_size=3, unique=True))
            if kind != "truncate"
            else []
        )
        text = draw(st.sampled_from([f"v{number}", "same", None]))
        if kind == "insert":
            changes = [(None, {"id": key, "text": text}) for key in some]
        elif kind == "update":
            changes = [(rows[key], {"id": key, "text": text}) for key in some]
        elif kind == "delete":
            changes = [(rows[key], None) for key in some]
        elif kind == "move" and free:
            changes = [(rows[some[0]], {**rows[some[0]], "id": free[0]})]
        elif kind == "shift":
            # Each key becomes the next one, as of `SET id = id + 1 ORDER BY id DESC`.
            changes = [(rows[key], {**rows[key], "id": key + 1}) for key in sorted(rows, reverse=True)]
        one = Statement(number, changes, kind == "truncate")
        if one.truncates:
            rows = {}
        for key, row in one.keys():
            rows.pop(key, None)
            if row is not None:
                rows[key] = row
        if changes or one.truncates:
            found.append(one)
    return found


def maxwell(kind: str, data: Row, seconds: int, old: Row | None = None, **more: Any) -> bytes:
    """Return a document of Maxwell with the columns of the key."""
    found = {"database": "shop", "table": "orders", "type": kind, "ts": seconds, "xid": 7, **more}
    found |= {"primary_key_columns": ["id"], "data": data, **({} if old is None else {"old": old})}
    return json.dumps({name: value for name, value in found.items() if value is not None}).encode()


def canal(kind: str, rows: Sequence[Row] | None, millis: int, olds: Sequence[Row] | None = None, **more: Any) -> bytes:
    """Return a flat message of Canal, with each value as text."""
    is_ddl = kind in ("TRUNCATE", "ALTER", "CREATE")
    texts = [
        [{name: None if one is None else str(one) for name, one in row.items()} for row in some] if some else None
        for some in (rows, olds)
    ]
    found = {"data": texts[0], "database": "shop", "es": millis, "gtid": "", "id": 5, "isDdl": is_ddl, "old": texts[1]}
    found |= {"mysqlType": {"id": "bigint", "text": "varchar(9)"}, "pkNames": None if is_ddl else ["id"], "sql": ""}
    return json.dumps(
        found | {"sqlType": {"id": -5, "text": 12}, "table": "orders", "ts": millis + 9, "type": kind} | more
    ).encode()


def changed(before: Row, after: Row) -> Row:
    """Return the old values of changed columns."""
    return {name: one for name, one in before.items() if after[name] != one}


@dataclass(frozen=True)
class Sent:
    """One record with the keys that it changes, and its place in the log; a row of a bootstrap has no place."""

    value: bytes
    changes: Sequence[tuple[int, Row | None]]
    place: tuple[int, int] | None = None
    partition: int = 0
    truncates: bool = False

    @property
    def record(self) -> Record:
        """The record."""
        return Record(None, self.value, self.partition)


def by_maxwell(one: Statement, *, by_log: bool, rotated: int) -> Iterator[Sent]:
    """Yield the records of a statement: one for each row, in the partition of its key."""
    for number, (before, after) in enumerate(one.changes):
        is_last = number == len(one.changes) - 1
        row = after or before or {}
        more: Row = {"commit": is_last or None}
        # The log is rotated, and bytes begin again.
        file, byte = (1, 4 + 100 * one.number) if one.number < rotated else (2, 4 + 100 * (one.number - rotated))
        if by_log:
            more |= {"position": f"mysql-bin.{file:06}:{byte}", "xoffset": None if is_last else number, "server_id": 9}
        kind = "update" if before and after else "insert" if after else "delete"
        old = changed(before, after) or None if before and after else None
        partition = row["id"] % PARTITIONS if by_log else 0
        keys = [*Statement(one.number, [(before, after)]).keys()]
        yield Sent(maxwell(kind, row, one.seconds, old, **more), keys, (one.number, number), partition)


def by_canal(one: Statement) -> Iterator[Sent]:
    """Yield the record of a statement, which has all rows."""
    if one.truncates:
        yield Sent(canal("TRUNCATE", None, 1000 * one.seconds), [], truncates=True)
        return
    before, after = one.changes[0]
    kind = "UPDATE" if before and after else "INSERT" if after else "DELETE"
    rows = [new or old or {} for old, new in one.changes]
    # Canal's `old` has the columns that any row of the statement has changed until then.
    names, olds = set[str](), list[Row]()
    for old, new in one.changes:
        if old and new:
            names |= {*changed(old, new)}
            olds.append({name: old[name] for name in names})
    yield Sent(canal(kind, rows, 1000 * one.seconds, olds or None), [*one.keys()])


@dataclass
class NewestByPlace:
    """Model of a mirror: the last change of each key, by place in the log or by offset."""

    by_log: bool
    rows: dict[int, Row] = field(default_factory=dict)
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    last: dict[int, tuple[int, int]] = field(default_factory=dict)

    def take(self, some: Sequence[Sent]) -> None:
        """Take records in the order of each partition's offsets."""
        for one in some:
            if one.truncates:
                self.rows, self.places = {}, {}
            # Behind all rows of the event that came last.
            read = (self.last.get(one.partition, (-1, 0))[0], 2**50)
            place = read if one.place is None else one.place
            if one.place is not None:
                self.last[one.partition] = one.place
            for key, row in one.changes:
                if not self.by_log or place >= self.places.get(key, (-1, -1)):
                    self.places[key] = place
                    self.rows.pop(key, None)
                    if row is not None:
                        self.rows[key] = row


def again(draw: st.DrawFn, sent: list[Sent]) -> list[Sent]:
    """Return records of which some come again, from one on, as after a restart of the program."""
    start = draw(st.integers(0, len(sent) - 1))
    end = draw(st.integers(start, len(sent)))
    return [*sent[:end], *sent[start:]]


@st.composite
def deliveries(draw: st.DrawFn, sent: list[Sent]) -> list[list[Sent]]:
    """Return batches: of each partition as many further records as one likes, until all are there."""
    sent = again(draw, sent)
    parts = {number: [one for one in sent if one.partition == number] for number in range(PARTITIONS)}
    batches = list[list[Sent]]()
    while any(parts.values()):
        most = 99 if len(batches) > 4 else 4
        counts = {number: draw(st.integers(0, min(most, len(part)))) for number, part in parts.items()}
        if not any(counts.values()):
            counts = {number: len(part) for number, part in parts.items()}
        batches.append([one for number, part in parts.items() for one in part[: counts[number]]])
        parts = {number: part[counts[number] :] for number, part in parts.items()}
    return batches


SETTINGS = {
    "maxwell": {"envelope": "maxwell", "schema": "id bigint, text string"},
    # A truncation, which may come first, names no key.
    "canal": {"envelope": "canal", "schema": "id bigint, text string", "key": ["id"]},
}


@settings(max_examples=FEW, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.data(), st.sampled_from(["maxwell", "log", "canal"]), st.booleans(), st.sampled_from(sorted(MIRRORS)))
def test_a_mirror_of_documents_is_the_databases_table_however_they_come(
    data: st.DataObject, kind: str, soft_delete: bool, table_format: str
) -> None:
    by_log = kind == "log"
    some = data.draw(statements(truncates=kind == "canal"))
    rotated, executors = data.draw(st.integers(0, 9)), data.draw(st.sampled_from([0, 1, 2]))
    sent, rows = list[Sent](), dict[int, Row]()
    bootstrap = data.draw(st.integers(0, 12)) if kind != "canal" else -1
    for number, one in enumerate(some):
        sent += by_canal(one) if kind == "canal" else by_maxwell(one, by_log=by_log, rotated=rotated)
        for key, row in one.keys():
            rows.pop(key, None)
            rows |= {} if row is None else {key: row}
        if number == bootstrap:
            sent += [
                Sent(maxwell("bootstrap-insert", row, one.seconds), [(key, row)], partition=key % PARTITIONS * by_log)
                for key, row in rows.items()
            ]
    model, asked = NewestByPlace(by_log), SETTINGS["canal" if kind == "canal" else "maxwell"]
    with tempfile.TemporaryDirectory() as folder:
        modes = [MergeMode.AUTO] if table_format == "delta" else [*MergeMode]
        mirror = MIRRORS[table_format](Path(folder), modes=modes, executors=executors)
        follower = Follower(mirror, asked | {"soft_delete": soft_delete})
        for batch in data.draw(deliveries(sent)):
            follower.land([one.record for one in batch])
            model.take(batch)
            found = follower.rows()
            assert {row["id"]: row for row in found} == model.rows
            assert len(found) == len(model.rows)


@settings(max_examples=FEW // 2, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.data(), st.sampled_from(["maxwell", "log", "canal"]), st.sampled_from(sorted(MIRRORS)))
def test_a_history_of_documents_has_each_version_until_the_next_one(
    data: st.DataObject, kind: str, table_format: str
) -> None:
    some = data.draw(statements(truncates=kind == "canal"))
    sent = [
        record
        for one in some
        for record in (by_canal(one) if kind == "canal" else by_maxwell(one, by_log=kind == "log", rotated=4))
    ]
    changes, live = list[tuple[int, int, Any]](), set[int]()
    for one in some:
        last = dict.fromkeys(live) if one.truncates else {}
        last |= dict(one.keys())
        live = {key for key in {*live, *last} if last.get(key, key)}
        changes += [(key, one.seconds, row) for key, row in last.items()]
    with tempfile.TemporaryDirectory() as folder:
        mirror = MIRRORS[table_format](Path(folder))
        follower = Follower(mirror, SETTINGS["canal" if kind == "canal" else "maxwell"] | {"history": True})
        ends = sorted(data.draw(st.sets(st.integers(1, len(sent)), max_size=3)) | {len(sent)})
        for start, end in zip([0, *ends], ends, strict=False):
            follower.land([one.record for one in sent[start:end]])
        versions = set()
        for key in {one[0] for one in changes}:
            own = [(at, row) for of, at, row in changes if of == key]
            until = [at for at, _ in own[1:]] + [None]
            versions |= {(key, row["text"], at, end) for (at, row), end in zip(own, until, strict=True) if row}
        found = {
            (row["id"], row["text"], row["_valid_from"].timestamp(), row["_valid_to"] and row["_valid_to"].timestamp())
            for row in mirror.found()
        }
        assert found == versions
