"""Keys that change, move, are there twice in a transaction, or are not sent; and rows of other tables."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_lakestream.cdc.columns import BEFORE, OLD, OP
from airflow_lakestream.cdc.events.provenance import OldKeyState, expanded
from airflow_lakestream.cdc.events.record_keys import names_in
from airflow_lakestream.cdc.keys.images import images
from airflow_lakestream.cdc.stops import MirrorStopped, StopReason
from airflow_lakestream.exceptions import InvalidArgument
from tests.support.keyed import Follower, Record, Row, Source, stopped
from tests.support.mirroring import HandDeltaMirror, HandMirror

KINDS = {"iceberg": HandMirror, "delta": HandDeltaMirror}


@pytest.fixture(params=["iceberg", "delta", "iceberg by executors", "delta by executors"])
def follower(request: pytest.FixtureRequest, tmp_path: Path) -> Follower:
    kind, *by = request.param.split(" by ")
    return Follower(KINDS[kind](tmp_path, executors=2 if by else 0))


def by_id(rows: list[Row], name: str = "id") -> list[Row]:
    return sorted(rows, key=lambda row: row[name])


def play(
    source: Source, rows: list[Row], random: Random, *, twice: bool = True, truncates: bool = False
) -> tuple[list[Record], bool]:
    """Make one transaction, in which a key may be there twice; return its events, none where it is rolled back.

    Also returns whether a row was updated while its key was there twice: which of the two it was, nothing tells.

    :param twice: whether rows are inserted with a key that is there.
    :param truncates: whether the table is truncated, too.
    """
    kinds = ["insert", "delete", "update", "move", "shift", "swap", *(["truncate"] if truncates else [])]
    kept, events, is_open = [dict(row) for row in rows], list[Record](), False
    source.begin()
    for _ in range(random.randint(1, 4)):
        kind = random.choice(kinds)
        value = random.choice("ab")
        if kind == "truncate":
            kept.clear()
            events.append(source.event("t", None, None))
        elif kind == "insert" or not kept:
            free = [key for key in range(5) if twice or key not in {row["id"] for row in kept}]
            if not free:
                continue
            kept.append({"id": random.choice(free), "v": value, "w": random.choice([7, 8])})
            events += source.change(None, kept[-1])
        elif kind == "delete":
            events += source.change(kept.pop(random.randrange(len(kept))), None)
        else:
            shift = random.choice([-1, 1])
            some = kept if kind in ("shift", "swap") else [random.choice(kept)]
            for row in list(some):
                new = {
                    "update": {"v": value},
                    "move": {"id": random.randint(0, 4)},
                    "shift": {"id": row["id"] + shift},
                    "swap": {"id": 4 - row["id"]},
                }[kind]
                old, is_twice = dict(row), [one["id"] for one in kept].count(row["id"]) > 1
                row |= new
                is_open |= is_twice and row["id"] == old["id"]
                events += source.change(old, row)
    if len({row["id"] for row in kept}) < len(kept):
        return [], False
    rows[:] = kept
    return events, is_open


@settings(max_examples=settings.get_profile(settings.get_current_profile_name()).max_examples // 4, deadline=None)
@given(st.integers(0, 2**32), st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.sampled_from([0, 2]))
# An update of the row from before, which is then deleted: a row that came in between stays.
@example(1442, False, False, False, False, 0)
# A deletion of the key zero that is sent again, after a row was inserted anew: the table marks deleted rows.
@example(230, True, False, False, False, 0)
def test_rows_of_one_key_within_a_transaction(
    seed: int, soft_delete: bool, is_keyless: bool, truncates: bool, cuts: bool, executors: int
) -> None:
    random, may_stop = Random(seed), cuts
    source, rows, sent = Source(key=() if is_keyless else ("id",)), list[Row](), list[list[Record]]()
    with tempfile.TemporaryDirectory() as folder:
        follower = Follower(HandMirror(Path(folder), executors=executors), {"key": ["id"], "soft_delete": soft_delete})
        for _ in range(random.randint(1, 4)):
            records: list[Record] = []
            for _ in range(random.randint(1, 3)):
                events, is_open = play(source, rows, random, twice=not cuts, truncates=truncates)
                sent.append(events)
                records += events
                may_stop |= is_open
            if random.random() < 0.4:
                # A connector that was restarted sends the end of what it had sent once more.
                records += [one for events in sent[-random.randint(1, 3) :] for one in events]
            at = random.randint(1, len(records) - 1) if cuts and len(records) > 1 else len(records)
            try:
                for part in (records[:at], records[at:]):
                    if part:
                        follower.land(part)
            except MirrorStopped as stop:
                # Half of a transaction may look like a deletion without its key, where the key is zero.
                if stop.reason not in (StopReason.ORDER_UNKNOWN, StopReason.KEY_NOT_SENT) or not may_stop:
                    raise
                return
            if any(sent):
                assert by_id(follower.rows()) == by_id(rows)


def test_a_key_that_is_there_twice_where_a_batch_ends_stops_the_mirror(follower: Follower) -> None:
    source = Source()
    follower.land(orders(source, 9))
    # Both rows are the transaction's own; the next batch deletes the first one.
    twice = [*orders(source, 3), *source.change(None, {"id": 3, "u": 99, "v": "other"})]
    stopped(follower, twice, StopReason.ORDER_UNKNOWN, r"orders\[0\] offset 2: .* several rows of one key")
    follower.land([*twice, *source.change({"id": 3, "u": 13, "v": "v3"}, None)])
    assert by_id(follower.rows()) == [{"id": 3, "u": 99, "v": "other"}, {"id": 9, "u": 19, "v": "v9"}]


def test_what_is_sent_again_in_part_brings_no_row_back(follower: Follower) -> None:
    source, a, b = Source(), {"id": 3, "u": 1, "v": "a"}, {"id": 3, "u": 2, "v": "b"}
    follower.land(orders(source, 9))
    source.begin()
    events = [one for row in (a, b) for one in (*source.change(None, row), *source.change(row, None))]
    # The batch ends behind the first event that is sent again: the deletion between the two rows is not in it.
    for part in (events[:2], [*events[2:], events[0]], events[1:]):
        follower.land(part)
        assert [row["id"] for row in follower.rows()] == [9]


def test_an_old_row_that_is_updated_behind_its_twin_and_moves_is_gone(follower: Follower) -> None:
    source, row = Source(key=()), {"id": 2, "u": 1, "v": "a"}
    follower.settings = {"key": ["id"]}
    source.begin()
    follower.land(source.change(None, row))
    source.begin()
    twin = [*source.change(None, row), *source.change(row, None)]
    follower.land([*twin, *source.change(row, row), *source.change(row, row | {"id": 0})])
    assert follower.rows() == [row | {"id": 0}]


def orders(source: Source, *ids: int) -> list[Record]:
    source.begin()
    return [one for n in ids for one in source.change(None, {"id": n, "u": 10 + n, "v": f"v{n}"})]


def test_a_key_that_changes_in_an_update_moves_its_row(follower: Follower) -> None:
    source = Source(key=())
    follower.settings = {"key": ["id"], "soft_delete": True}
    first = orders(source, 1, 2)
    source.begin()
    moved = source.change({"id": 1, "u": 11, "v": "v1"}, {"id": 3, "u": 11, "v": "v1"})
    assert len(moved) == 1
    follower.land([*first, *moved])
    expected = [{"id": 2, "u": 12, "v": "v2"}, {"id": 3, "u": 11, "v": "v1"}]
    assert by_id(follower.rows()) == expected
    # Sent twice, alone, and behind a truncation.
    follower.land(moved)
    assert by_id(follower.rows()) == expected
    source.begin()
    back = source.change({"id": 3, "u": 11, "v": "v1"}, {"id": 1, "u": 11, "v": "new"})
    follower.land([*back, *moved])
    assert by_id(follower.rows()) == [{"id": 1, "u": 11, "v": "new"}, {"id": 2, "u": 12, "v": "v2"}]
    follower.land([source.event("t", None, None), *back])
    assert follower.rows() == []


@pytest.mark.parametrize("ends", [1, 2, 3, 4])
def test_a_row_from_before_a_truncation_of_its_transaction_is_no_second_row_of_the_key(
    follower: Follower, ends: int
) -> None:
    source = Source()
    follower.settings = {"soft_delete": True}
    follower.land(orders(source, 2))
    one, other = ({"id": 1, "u": 11, "v": value} for value in ("a", "b"))
    source.begin()
    transaction = [
        *source.change(None, one),
        source.event("t", None, None),
        *source.change(None, other),
        *source.change(other, None),
    ]
    # The batch may end within the transaction.
    follower.land(transaction[:ends])
    assert by_id(follower.rows())[:1] == [[one], [], [other], []][ends - 1]
    follower.land(transaction[ends:])
    assert follower.rows() == []


def test_the_row_behind_a_truncation_of_its_transaction_stays_if_its_twin_is_deleted(follower: Follower) -> None:
    source = Source()
    follower.settings = {"soft_delete": True}
    follower.land(orders(source, 2))
    one, twin, other = ({"id": 1, "u": 11, "v": value} for value in ("a", "b", "c"))
    source.begin()
    cut = [*source.change(None, one), source.event("t", None, None)]
    follower.land([*cut, *source.change(None, twin), *source.change(None, other), *source.change(twin, None)])
    assert follower.rows() == [other]


@pytest.mark.parametrize("key", [None, ["id"]])
def test_other_columns_in_the_records_key_stop_the_mirror(key: list[str] | None, follower: Follower) -> None:
    source = Source()
    follower.settings = {"key": key}
    follower.land(orders(source, 1, 2))
    source.key = ("u",)
    match = r"orders\[0\] offset 2: the record's key has u;.* had id"
    stopped(follower, orders(source, 3), StopReason.KEY_CHANGED, match)
    source.key = ()
    stopped(follower, orders(source, 3), StopReason.KEY_CHANGED, "no columns")
    # A truncation comes without a key.
    source.begin()
    follower.land([source.event("t", None, None)])
    assert follower.rows() == []


def test_a_key_of_ones_own_that_becomes_the_databases_goes_on(follower: Follower) -> None:
    source = Source(key=())
    follower.settings = {"key": ["id"]}
    follower.land(orders(source, 1, 2))
    source.key = ("id",)
    follower.land(orders(source, 3))
    assert [row["id"] for row in by_id(follower.rows())] == [1, 2, 3]


def test_an_update_that_may_have_changed_the_key_stops_the_mirror(follower: Follower) -> None:
    source = Source()
    follower.settings = {"key": ["u"]}
    follower.land(orders(source, 1))
    source.begin()
    update = [source.event("u", None, {"id": 1, "u": 99, "v": "v1"})]
    stopped(follower, update, StopReason.KEY_NOT_SENT, "without the row before it")
    follower.land(source.change({"id": 1, "u": 11, "v": "v1"}, {"id": 1, "u": 99, "v": "v1"}))
    assert follower.rows() == [{"id": 1, "u": 99, "v": "v1"}]


@pytest.mark.parametrize("first", [(1, 2), (0, 1, 2)])
def test_a_deletion_with_another_rows_values_stops_the_mirror(first: tuple[int, ...], follower: Follower) -> None:
    source = Source()
    events = orders(source, *first)
    source.begin()
    deletion = source.event("d", {"id": 0, "u": 12, "v": None}, None)
    follower.land(events)
    stopped(follower, [deletion], StopReason.KEY_NOT_SENT, "REPLICA IDENTITY USING INDEX")


def test_a_deletion_without_its_key_stops_the_mirror_also_ahead_of_one_that_has_it(follower: Follower) -> None:
    source = Source()
    follower.land(orders(source, 1, 2))
    source.begin()
    by_index = source.event("d", {"id": 0, "u": 12, "v": None}, None)
    source.begin()
    with_key = source.event("d", {"id": 1, "u": None, "v": None}, None)
    stopped(follower, [by_index, with_key], StopReason.KEY_NOT_SENT, "REPLICA IDENTITY USING INDEX")


def test_a_row_whose_key_is_zero_is_deleted(follower: Follower) -> None:
    source = Source()
    follower.land(orders(source, 0, 1))
    source.begin()
    deletion = source.event("d", {"id": 0, "u": 10, "v": None}, None)
    follower.land([deletion])
    assert [row["id"] for row in follower.rows()] == [1]
    follower.land([deletion])
    follower.land([*orders(source, 0), source.event("d", {"id": 0, "u": 0, "v": None}, None)])
    assert [row["id"] for row in follower.rows()] == [1]


def test_events_of_another_table_stop_the_mirror(follower: Follower) -> None:
    follower.land(orders(Source(), 1))
    other = Source(table="people")
    match = "shop.public.people; the mirror is one of shop.public.orders"
    stopped(follower, orders(other, 2), StopReason.OTHER_TABLE, match)


def test_several_tables_where_they_are_named(follower: Follower) -> None:
    follower.settings = {"source_tables": r"shop\.public\.orders_\d+"}
    follower.land([*orders(Source(table="orders_1"), 1), *orders(Source(table="orders_2"), 2)])
    assert [row["id"] for row in by_id(follower.rows())] == [1, 2]
    cut = Source(table="orders_1")
    cut.begin()
    stopped(follower, [cut.event("t", None, None)], StopReason.OTHER_TABLE, "truncated")
    stopped(follower, orders(Source(table="people"), 3), StopReason.OTHER_TABLE, "does not match")
    follower.settings = {"source_tables": "("}
    with pytest.raises(InvalidArgument, match="source_tables"):
        follower.land(orders(Source(), 4))


def test_the_snapshot_of_one_of_several_tables_leaves_the_rows_of_the_others(follower: Follower) -> None:
    follower.settings = {"source_tables": r"shop\.public\.orders_\d+"}
    one = Source(table="orders_1")
    follower.land([*orders(Source(table="orders_2"), 2), *orders(one, 1)])
    one.place = 1_000
    one.begin()
    follower.land([one.event("r", None, {"id": 3, "u": 13}, snapshot="last")])
    assert [row["id"] for row in by_id(follower.rows())] == [1, 2, 3]


def test_a_row_without_a_key_stops_the_mirror(follower: Follower) -> None:
    follower.settings = {"key": ["id"]}
    source = Source(key=())
    follower.land(orders(source, 1))
    source.begin()
    deletion = [source.event("d", {"u": 11}, None)]
    stopped(follower, deletion, StopReason.KEY_NOT_SENT, r"orders\[0\] offset 1: .* has no value in id")


def test_names_in_keys_of_each_format() -> None:
    schema = {"type": "struct", "fields": [{"field": "id", "type": "int32"}], "optional": False}
    wrapped = json.dumps({"schema": schema, "payload": {"id": 1}}).encode()
    given = {
        b'{"id":1}': '["id"]',
        b'{"id": "a\\"b,{", "p": null}': '["id", "p"]',
        b'{"n":{"scale":0,"value":"AA=="},"id":-1.5}': '["n", "id"]',
        wrapped: '["id"]',
        b"plain": None,
        b"7": None,
        b'{"id":[1,{"x":2}]}': '["id"]',
        None: "[]",
    }
    many = [*given, *(f'{{"k{n}":1}}'.encode() for n in range(20))] * 2
    found = names_in(pa.array(many, pa.binary()), None, {}).to_pylist()
    assert found == [*given.values(), *(f'["k{n}"]' for n in range(20))] * 2


TEXTS = st.sampled_from(["", " ", "7", "{", "{}", "[1]", '"a"', "Struct{id=5}", '{"id":1}', ' {"id":1}', "\t{", "é"])
ENCODINGS = st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le"])


@given(st.lists(st.builds(str.encode, TEXTS, ENCODINGS) | st.binary(max_size=4), max_size=20))
def test_names_in_keys_of_any_bytes_are_those_that_each_key_has_alone(keys: list[bytes]) -> None:
    # A zero first is the frame of a schema registry.
    keys = [key for key in keys if not key.startswith(b"\x00")]
    assert names_in(pa.array(keys, pa.binary()), None, {}).to_pylist() == list(map(_names_alone, keys))


def _names_alone(key: bytes) -> str | None:
    try:
        document = json.loads(key)
    except ValueError:
        return None
    return json.dumps(list(document)) if isinstance(document, dict) else None


def test_a_deletion_that_says_the_key_only_takes_the_row_of_its_transaction(follower: Follower) -> None:
    source = Source()
    rows = [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": 3, "v": "c"}]
    source.begin()
    events = [one for row in rows for one in source.change(None, row)]
    # REPLICA IDENTITY FULL until here, the default from then on.
    for row in rows[:2]:
        source.begin()
        events += source.change(row, None)
    source.begin()
    events += source.change(None, {"id": 4, "v": "d"})
    events.append(source.event("d", {"id": 4, "v": None}, None))
    follower.land(events)
    assert follower.rows() == [rows[2]]


def test_floats_in_old_rows_are_compared_however_deep_they_stand() -> None:
    place = pa.struct([("x", pa.float64())])
    values = {
        "one": pa.array([float("nan")] * 2),
        "many": pa.array([[float("nan"), -0.0]] * 2, pa.list_(pa.float32())),
        "place": pa.array([{"x": float("nan")}] * 2, place),
        "map": pa.array([[("a", float("nan"))]] * 2, pa.map_(pa.string(), pa.float64())),
    }
    first, second = images(pa.table(values), list(values))
    assert first == second
    assert first != images(pa.table({**values, "many": pa.array([[float("nan"), 0.0]] * 2)}), list(values))[0]


@pytest.mark.parametrize("old_is_required", [False, True])
def test_columns_of_any_type_in_the_old_row(old_is_required: bool) -> None:
    def places(*, is_required: bool) -> pa.Array:
        x = pa.field("x", pa.float64(), nullable=not is_required)
        return pa.StructArray.from_arrays([pa.array([1.0, None])], fields=[x], mask=pa.array([False, True]))

    rows = pa.table({"id": [1, 2], "at": places(is_required=True), OP: ["u", "u"], OLD: [str(OldKeyState.OTHER)] * 2})
    old = {f"{BEFORE}id": pa.array([3, 4]), f"{BEFORE}at": places(is_required=old_is_required)}
    for name, column in old.items():
        rows = rows.append_column(name, column)
    found = expanded(rows)
    assert found["at"].to_pylist() == [{"x": 1.0}, None] * 2
    none = pa.table({"ids": pa.chunked_array([], pa.list_(pa.uuid()))})
    assert images(none, ["ids"]) == []
