"""Mirrors of Maxwell's and Canal's documents equal a model of the database, for random statements and deliveries."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyiceberg.exceptions import NoSuchTableError

from airflow_lakestream.cdc.stops import MirrorStopped, StopReason
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.policies import MergeMode
from airflow_lakestream.exceptions import BadRecord, InvalidArgument
from airflow_lakestream.lakes import lake_of
from airflow_lakestream.operators.kafka_mirror import KafkaMirrorOperator
from airflow_lakestream.run import source_audit
from airflow_lakestream.run.mirror_audit import MirrorAudit
from airflow_lakestream.run.mirror_tag import MirrorTag
from airflow_lakestream.run.resnapshot import ResnapshotTables
from tests.support.given_records import FORMATS, GivenLake
from tests.support.given_records import Record as GivenRecord
from tests.support.keyed import Follower, Record, stopped
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

    def of_keys(self) -> Iterator[tuple[int, Row | None]]:
        """Yield the keys that the statement changes, each with the row after the change."""
        for before, after in self.changes:
            if before is not None and (after is None or after["id"] != before["id"]):
                yield before["id"], None
            if after is not None:
                yield after["id"], after


def _apply(rows: dict[int, Row], one: Statement) -> None:
    if one.truncates:
        rows.clear()
    for key, row in one.of_keys():
        rows.pop(key, None)
        rows |= {} if row is None else {key: row}


def _changes(draw: st.DrawFn, kind: str, rows: dict[int, Row], free: list[int], text: str | None) -> list[Change]:
    """Return the changes of a statement of a kind."""
    if kind == "shift":
        # Each key becomes the next one, as of `SET id = id + 1 ORDER BY id DESC`.
        return [(rows[key], {**rows[key], "id": key + 1}) for key in sorted(rows, reverse=True)]
    there = free if kind == "insert" else [*rows]
    some = draw(st.lists(st.sampled_from(there), min_size=1, max_size=3, unique=True))
    if kind == "insert":
        return [(None, {"id": key, "text": text}) for key in some]
    if kind == "update":
        return [(rows[key], {"id": key, "text": text}) for key in some]
    if kind == "delete":
        return [(rows[key], None) for key in some]
    return [(rows[some[0]], {**rows[some[0]], "id": free[0]})]


@st.composite
def statements(draw: st.DrawFn, *, truncates: bool, most: int = 9) -> list[Statement]:
    """Return statements of a table; each has several rows of one kind, as an event of the binary log."""
    rows, found = dict[int, Row](), list[Statement]()
    for number in range(draw(st.integers(1, most))):
        free = [key for key in range(6) if key not in rows]
        kinds = ["insert"] * bool(free) + ["update", "shift", "delete"] * bool(rows) + ["move"] * bool(rows and free)
        kind = draw(st.sampled_from([*kinds, *(["truncate"] if truncates else [])]))
        text = draw(st.sampled_from([f"v{number}", "same", None]))
        changes = [] if kind == "truncate" else _changes(draw, kind, rows, free, text)
        found.append(Statement(number, changes, kind == "truncate"))
        _apply(rows, found[-1])
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
        keys = [*Statement(one.number, [(before, after)]).of_keys()]
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
    yield Sent(canal(kind, rows, 1000 * one.seconds, olds or None), [*one.of_keys()])


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
        _apply(rows, one)
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
        last |= dict(one.of_keys())
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


# As Maxwell's and Flink's documentation show them.
OF_MAXWELL = {
    **{"database": "test", "table": "e", "type": "insert", "ts": 1477053217, "xid": 23396, "commit": True},
    **{"position": "master.000006:800911", "server_id": 23042, "thread_id": 108},
    **{"primary_key": [1, "2016-10-21 05:33:37.523000"], "primary_key_columns": ["id", "c"]},
    "data": {"id": 1, "m": 4.2341, "c": "2016-10-21 05:33:37.523000", "comment": "I am a creature of light."},
}
OF_CANAL = {
    "data": [{"id": "111", "name": "scooter", "description": "Big 2-wheel scooter", "weight": "5.18"}],
    **{"database": "inventory", "es": 1589373560000, "id": 9, "isDdl": False},
    "mysqlType": {"id": "INTEGER", "name": "VARCHAR(255)", "description": "VARCHAR(512)", "weight": "FLOAT"},
    **{"old": [{"weight": "5.15"}], "pkNames": ["id"], "sql": "", "table": "products", "ts": 1589373560798},
    **{"sqlType": {"id": 4, "name": 12, "description": 12, "weight": 7}, "type": "UPDATE"},
}


@pytest.fixture
def lake(tmp_path: Path) -> GivenLake:
    return GivenLake(tmp_path, kind=MirrorConfig)


def text(document: Any, key: bytes | None = None) -> GivenRecord:
    return GivenRecord(json.dumps(document).encode(), key)


def rows_of(lake: GivenLake) -> list[Row]:
    """Return the rows without the mirror's own columns."""
    return [{n: v for n, v in row.items() if not n.startswith(("_kafka_", "_cdc_"))} for row in lake.rows()]


@pytest.mark.parametrize("table_format", FORMATS)
def test_the_documents_of_maxwells_page_are_rows(tmp_path: Path, table_format: str) -> None:
    lake = GivenLake(tmp_path, table_format, kind=MirrorConfig)
    update = OF_MAXWELL | {"type": "update", "ts": 1477053234, "position": "master.000006:802000"}
    update |= {"data": {"id": 1, "m": 5.444, "c": "2016-10-21 05:33:54.631000", "comment": "I am a creature of light."}}
    update |= {"old": {"m": 4.2341, "c": "2016-10-21 05:33:37.523000"}}
    ddl = {"type": "table-alter", "database": "test", "table": "e", "old": {}, "def": {}, "ts": 1477053308000}
    start = {"database": "test", "table": "e", "type": "bootstrap-start", "ts": 1450557744, "data": {}}
    config = {"envelope": "maxwell", "schema": "id int, c timestamp_ntz, m decimal(9,4)"}
    report = lake.land([text(ddl), text(start), text(OF_MAXWELL), text(update)], **config)
    assert (report.counts.written, report.counts.filtered, report.counts.read) == (2, 2, 4)
    # The update has changed a column of the key, so that only its row is there.
    row = {"id": 1, "c": datetime(2016, 10, 21, 5, 33, 54, 631000), "m": Decimal("5.4440")}
    assert rows_of(lake) == [row | {"comment": "I am a creature of light."}]
    (found,) = lake.rows()
    assert (found["_cdc_commit"], found["_cdc_position"]) == (6 * 2**32 + 802000, 2**40 + 1)


@pytest.mark.parametrize("table_format", FORMATS)
def test_the_message_of_canals_page_is_a_row_of_the_given_types(tmp_path: Path, table_format: str) -> None:
    lake = GivenLake(tmp_path, table_format, kind=MirrorConfig)
    create = OF_CANAL | {"type": "CREATE", "isDdl": True, "data": None, "old": None, "pkNames": None}
    report = lake.land([text(create), text(OF_CANAL)], envelope="canal", schema="id int, weight float")
    assert (report.counts.written, report.counts.filtered) == (1, 1)
    row = {"id": 111, "name": "scooter", "description": "Big 2-wheel scooter", "weight": pytest.approx(5.18)}
    assert rows_of(lake) == [row]


def test_texts_of_canal_become_values_of_the_given_types(lake: GivenLake) -> None:
    schema = "id bigint, n int, d decimal(8,2), f double, b boolean, t timestamp_ntz, day date, raw binary, s string"
    row = {"id": "007", "n": "-5", "d": "1.5", "f": "1e3", "b": "1", "t": "2026-01-02 03:04:05", "day": "2026-01-02"}
    row |= {"raw": "\xff\x00", "s": "12"}
    lake.land(
        [text(OF_CANAL | {"type": "INSERT", "data": [row, {"id": "8"}], "old": None})], envelope="canal", schema=schema
    )
    values = {"id": 7, "n": -5, "d": Decimal("1.50"), "f": 1000.0, "b": True, "t": datetime(2026, 1, 2, 3, 4, 5)}
    values |= {"day": date(2026, 1, 2), "raw": b"\xff\x00", "s": "12"}
    assert sorted(rows_of(lake), key=lambda one: one["id"]) == [values, dict.fromkeys(values) | {"id": 8}]


@pytest.mark.parametrize(
    ("key", "names"),
    [
        (b'{"database": "test", "table": "e", "pk.id": 1}', ["Id"]),
        (b'["test", "e", [{"id": 1}, {"n": 2}]]', ["Id", "n"]),
    ],
)
def test_the_key_of_a_record_of_maxwell_names_the_columns_in_lower_case(
    lake: GivenLake, key: bytes, names: list[str]
) -> None:
    document = {"database": "test", "table": "e", "type": "insert", "ts": 1, "data": {"Id": 1, "n": 2}}
    lake.land([text(document, key)], envelope="maxwell")
    assert json.loads(lake.iceberg().properties["lakestream.mirror"])["key"] == names


def test_a_given_key_may_be_another_than_the_databases_and_renamed(lake: GivenLake) -> None:
    document = {"database": "test", "table": "e", "type": "insert", "ts": 1, "data": {"id": 1, "code": "a"}}
    move = document | {"type": "update", "data": {"id": 1, "code": "b"}, "old": {"code": "a"}}
    config = {"envelope": "maxwell", "key": ["name"], "rename_columns": {"code": "name"}}
    lake.land([text(document), text(document | {"data": {"id": 2, "code": "c"}}), text(move)], **config)
    assert sorted(row["name"] for row in rows_of(lake)) == ["b", "c"]


def test_a_column_that_became_null_may_be_left_out_of_maxwells_row(lake: GivenLake) -> None:
    # As with output_nulls=false.
    insert = {"database": "a", "table": "b", "type": "insert", "ts": 1, "data": {"id": 1, "n": 2, "s": "x"}}
    update = insert | {"type": "update", "data": {"id": 1, "s": "y"}, "old": {"n": 2, "s": "x"}}
    lake.land([text(insert), text(update)], envelope="maxwell", key=["id"])
    assert rows_of(lake) == [{"id": 1, "n": None, "s": "y"}]


def canals(**more: Any) -> Row:
    return OF_CANAL | more


def maxwells(**more: Any) -> Row:
    return {name: one for name, one in (OF_MAXWELL | more).items() if one is not ...}


@pytest.mark.parametrize(
    ("envelope", "document", "reason"),
    [
        ("maxwell", maxwells(type="merge"), "type: 'merge' is no type of Maxwell's documents"),
        ("maxwell", maxwells(data=...), "data: it is null, not an object with the columns of a row"),
        ("maxwell", maxwells(data={}), "data: it is an object, not an object with the columns of a row"),
        ("maxwell", maxwells(ts="now"), "ts: it is the string 'now', not an integer"),
        ("maxwell", maxwells(table=...), "table: it is null, not a string"),
        ("maxwell", maxwells(position="here"), "position: 'here' is not file:byte of a binary log"),
        ("maxwell", maxwells(xoffset="1"), "xoffset: it is the string '1', not an integer"),
        ("maxwell", maxwells(primary_key_columns="id"), "primary_key_columns: it is the string 'id', not an array"),
        ("maxwell", maxwells(primary_key_columns=...), "it names no columns of a key: let Maxwell write"),
        ("maxwell", maxwells(data={"id": 1}), "data.c: null or missing, and the mirror's key needs a value"),
        ("maxwell", maxwells(type="update", old=[1]), "old: it is an array, not an object with the columns of a row"),
        ("maxwell", maxwells(ts=10**12), "ts: it is the number 1000000000000, not an integer"),
        ("maxwell", maxwells(server_id="a"), "server_id: it is the string 'a', not an integer"),
        ("maxwell", maxwells(data={"id": "one", "c": "x"}), "data.id: is the string 'one', not a number"),
        ("maxwell", [1], "the document is an array, not an object"),
        ("canal", canals(type="REPLACE"), "type: 'REPLACE' has no rows; let MySQL write them, by binlog_format=ROW"),
        ("canal", canals(data=None), "data: it is null, not an array of rows; let MySQL write them"),
        ("canal", canals(data=[1]), "data\\[0\\]: it is the number 1, not an object with the columns of a row"),
        ("canal", canals(old=[{}, {}]), "old: it is an array, not an array with an item for each row of data"),
        ("canal", canals(old=[{"x": "1"}]), "old\\[0\\]: it has the column x, and data lacks it"),
        ("canal", canals(isDdl=None), "isDdl: it is null, not a boolean"),
        ("canal", canals(es=None), "es: it is null, not an integer"),
        ("canal", canals(pkNames=None), "it names no columns of a key: its table has no primary key"),
        ("canal", canals(data=[{"id": "1"}, {"id": "x"}], old=None), "data.id: is the string 'x', not a number"),
    ],
)
def test_a_document_that_is_not_as_documented_is_a_bad_record_by_reason(
    lake: GivenLake, envelope: str, document: Any, reason: str
) -> None:
    good = text(OF_MAXWELL if envelope == "maxwell" else OF_CANAL)
    config = {"envelope": envelope, "schema": "id int"}
    with pytest.raises(BadRecord, match=rf"given\[0\] offset 1: .*{reason}"):
        lake.land([good, text(document)], **config)
    report = lake.land([good, text(document), GivenRecord(b"{")], **config, on_error="reject", max_rejected=1.0)
    assert (report.counts.written, report.counts.rejected) == (1, 2)
    assert re.search(reason, lake.rejected()[1]["error"])
    assert [row["id"] for row in rows_of(lake)] == [1 if envelope == "maxwell" else 111]


EVENT = {"before": None, "after": {"id": 1}, "op": "c", "source": {"db": "a", "table": "b", "ts_ms": 1}}
FLAT = {"id": 1, "__deleted": "false", "__op": "c"}
FORMS = {
    "an event of Debezium": EVENT,
    "a flattened event of Debezium": FLAT,
    "a document of Maxwell": OF_MAXWELL,
    "a document of Canal": OF_CANAL,
    "a plain record": {"id": 1, "name": "a"},
}
TAKEN: dict[str, tuple[Row, Row]] = {
    "a document of Maxwell": ({"envelope": "maxwell"}, OF_MAXWELL),
    "a document of Canal": ({"envelope": "canal"}, OF_CANAL),
    "an event of Debezium": ({"key": ["id"]}, EVENT),
    "a flattened event of Debezium": ({"envelope": "flattened", "key": ["id"]}, FLAT),
    "a plain record": ({"envelope": None, "key": ["id"]}, {"id": 1, "name": "a"}),
}


# Other tests mix the forms that are no documents.
MIXED = [
    (wanted, form)
    for wanted in TAKEN
    for form in FORMS
    if form != wanted and ("document" in form + wanted or (wanted, form) == ("a plain record", "an event of Debezium"))
]


@pytest.mark.parametrize(("wanted", "form"), MIXED)
def test_forms_that_are_mixed_in_a_topic_stop_by_name(lake: GivenLake, wanted: str, form: str) -> None:
    config, own = TAKEN[wanted]
    mixed = [text(own, b'{"id": 1}'), text(FORMS[form], b'{"id": 2}')]
    problem = rf"given\[0\] offset 1: it is {form}, and the mirror takes records for {wanted}: .*\[order-unknown\]"
    with pytest.raises(MirrorStopped, match=problem):
        lake.land(mixed, **config, on_error="reject", max_rejected=1.0)
    with pytest.raises(NoSuchTableError):
        lake.iceberg()


def test_a_table_keeps_its_envelope(lake: GivenLake) -> None:
    lake.land([text(OF_MAXWELL)], envelope="maxwell")
    for other, problem in (
        ({"envelope": "canal"}, "was made with 'maxwell'"),
        ({"envelope": "debezium"}, "was made with 'maxwell'"),
        ({"envelope": None, "key": ["id"]}, "is made of Maxwell's events, and this run would add plain records"),
    ):
        with pytest.raises(InvalidArgument, match=f"envelope: lake.events {problem}"):
            lake.land([text(OF_CANAL)], **other)


def test_documents_with_and_without_positions_have_no_order(lake: GivenLake) -> None:
    bare = {name: one for name, one in OF_MAXWELL.items() if name != "position"}
    for first, second, problem in (
        (OF_MAXWELL, bare, "the document has no position in the log, unlike the others"),
        (bare, OF_MAXWELL, "the document has a position in the log, unlike the others"),
    ):
        own = GivenLake(lake.folder / problem[17:20], kind=MirrorConfig)
        own.folder.mkdir()
        own.land([text(first)], envelope="maxwell")
        with pytest.raises(MirrorStopped, match=rf"given\[0\] offset 1: {problem}.*output_binlog_position=true"):
            own.land([text(first), text(second)], envelope="maxwell")


def in_parts(*some: tuple[bytes, int]) -> list[Record]:
    return [Record(None, value, partition) for value, partition in some]


@pytest.mark.parametrize("kind", MIRRORS)
def test_a_key_of_two_partitions_has_no_order_by_offsets(tmp_path: Path, kind: str) -> None:
    first = in_parts(
        (maxwell("insert", {"id": 1, "text": "a"}, 5), 0), (maxwell("insert", {"id": 2, "text": "a"}, 5), 1)
    )
    moved = in_parts((maxwell("update", {"id": 2, "text": "a"}, 6, {"id": 1}), 1))
    match = r"order\.?.*\[0\] offset 0 and .*\[1\] offset 1 have the same key \(id=1\).*output_binlog_position=true"
    for batches in ([first, moved], [[*first, *moved]]):
        with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
            follower = Follower(MIRRORS[kind](Path(folder)), {"envelope": "maxwell"})
            for one in batches[:-1]:
                follower.land(one)
            with pytest.raises(MirrorStopped, match=match.removeprefix(r"order\.?.*")) as raised:
                follower.land(batches[-1])
            assert raised.value.reason is StopReason.ORDER_UNKNOWN


def test_a_truncation_has_no_order_with_rows_of_another_partition(tmp_path: Path) -> None:
    follower = Follower(HandMirror(tmp_path), SETTINGS["canal"])
    follower.land(in_parts((canal("INSERT", [{"id": 1, "text": "a"}], 5), 0)))
    cut = in_parts((canal("INSERT", [{"id": 2, "text": "a"}], 5), 1), (canal("TRUNCATE", None, 6), 0))
    stopped(
        follower, cut, StopReason.ORDER_UNKNOWN, r"offset 1: the table was truncated, and the rows of other partitions"
    )


def test_documents_of_another_table_stop_with_the_setting_of_their_program(lake: GivenLake) -> None:
    for number, (config, document, setting) in enumerate(
        [("maxwell", OF_MAXWELL, "kafka_topic=%{database}.%{table}"), ("canal", OF_CANAL, "canal.mq.dynamicTopic")]
    ):
        own = GivenLake(lake.folder / str(number), kind=MirrorConfig)
        own.folder.mkdir()
        with pytest.raises(MirrorStopped, match=rf"offset 1: the event comes from the table .*{re.escape(setting)}"):
            own.land([text(document), text(document | {"table": "other"})], envelope=config)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (
            {"format": "avro", "schema_registry": "http://x"},
            "envelope: 'maxwell' goes with format=\"json\", not with 'avro'",
        ),
        (
            {"unavailable_placeholder": "x"},
            "unavailable_placeholder: is Debezium's, and a document of envelope='maxwell'",
        ),
        ({"sequence_by": "at"}, "sequence_by: is not for a mirror: events have their order"),
        ({"delete_when": "a = 1"}, "delete_when: is not for a mirror"),
        ({"merge": "given"}, "merge: is not for a mirror"),
    ],
)
def test_settings_that_documents_contradict_are_refused_where_the_dag_is_parsed(
    config: dict[str, Any], problem: str
) -> None:
    config = {"topic": "t", "table": "lake.t", "consumer_group": "g", "envelope": "maxwell"} | config
    with pytest.raises(InvalidArgument, match=re.escape(problem)):
        MirrorConfig(**config)
    with pytest.raises(InvalidArgument, match=re.escape(problem)):
        KafkaMirrorOperator(task_id="t", **config)


def test_commands_that_need_events_of_debezium_refuse_documents_and_the_audit_knows_them(lake: GivenLake) -> None:
    lake.land([text(OF_MAXWELL)], envelope="maxwell", soft_delete=True)
    refused = "lake.events was made with envelope='maxwell', and this needs events of Debezium"
    with pytest.raises(InvalidArgument, match=f"table: {refused}"):
        ResnapshotTables(lake.catalog(), lake.name).design()
    note = json.loads(lake.iceberg().properties["lakestream.mirror"])
    with pytest.raises(InvalidArgument, match=refused):
        source_audit._source_of(lake.name, note, {})
    audit = MirrorAudit(audit=lake_of(lake.name).part("audit")(table=lake.name, consumer_group="g", full=True))
    config = audit.config("given", note)
    assert (config.program, config.soft_delete, config.mirror.key) == ("maxwell", True, None)
    tag: Any = MirrorTag(tables=[lake.name], name="day", kafka={}, landing={})
    with pytest.raises(InvalidArgument, match=r"lake\.events is no mirror of Debezium's events"):
        tag.run(lake.catalog())
