"""Which values of a column are among others, and whether deletions say something: as one looks at each value."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from datetime import UTC
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_lakestream.cdc.columns import UNAVAILABLE
from airflow_lakestream.cdc.keys.identity import KeySearch, by_place, find_keys, in_order, keys_of
from airflow_lakestream.cdc.keys.images import has_sent_values, images, is_placeholder

LARGE = st.integers(-(2**63), 2**63 - 1)
# Of each kind few values, which a file may have had in a narrower type, and all that a batch may have.
FEW: Mapping[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-5, 5),
    pa.string(): st.sampled_from("abcde"),
    pa.decimal128(20, 2): st.sampled_from([Decimal("1.25"), Decimal("7.00")]),
}
ANY = FEW | {
    pa.int64(): FEW[pa.int64()] | LARGE,
    pa.decimal128(20, 2): FEW[pa.decimal128(20, 2)] | st.just(Decimal(10**15)),
}
NARROW: Mapping[pa.DataType, pa.DataType] = {pa.int64(): pa.int32(), pa.decimal128(20, 2): pa.decimal128(9, 2)}
Keys = list[tuple[Any, ...]]


@st.composite
def keyed(draw: st.DrawFn) -> tuple[pa.Schema, Keys, pa.Schema, Keys, int]:
    """Return a batch's columns and keys, each key once, a file's columns, which may be narrower, and its rows.

    Also how many rows are in a part.
    """
    kinds = draw(st.lists(st.sampled_from(list(FEW)), min_size=1, max_size=2))
    batch = draw(st.lists(st.tuples(*(ANY[kind] for kind in kinds)), max_size=20, unique=True))
    is_narrow, few = draw(st.booleans()), st.tuples(*(FEW[kind] for kind in kinds))
    held = [NARROW.get(kind, kind) if is_narrow else kind for kind in kinds]
    rows = draw(st.lists(few if is_narrow or not batch else few | st.sampled_from(batch), max_size=40))
    if draw(st.booleans()):
        rows.sort()
    elif draw(st.booleans()):
        rows = [(None, *row[1:]) if draw(st.booleans()) else row for row in rows]
    return _columns(kinds), batch, _columns(held), rows, draw(st.integers(1, 50))


def _columns(kinds: Sequence[pa.DataType]) -> pa.Schema:
    return pa.schema([(f"column {at}", kind) for at, kind in enumerate(kinds)])


ONE = _columns([pa.int64()])


@given(keyed())
@example((ONE, [(1,), (2,), (3,)], ONE, [(1,), (1,), (2,), (2,), (2,), (4,)], 2))
@example((ONE, [(2**63 - 1,), (-(2**63),)], ONE, [(2**63 - 1,)], 1))
@example((ONE, [(2**40,), (1,)], _columns([pa.int32()]), [(None,), (2,), (1,)], 9))
def test_rows_among_the_keys_of_a_batch_are_found_in_any_order_and_any_parts(
    given: tuple[pa.Schema, Keys, pa.Schema, Keys, int],
) -> None:
    columns, batch, held, rows, size = given
    parts = [_table(held, rows[at : at + size]) for at in range(0, len(rows), size)]
    among = pickle.loads(pickle.dumps(KeySearch(_table(columns, batch), columns.names)))
    numbers, places = among(pa.concat_tables([held.empty_table(), *parts]))
    expected = [(at, batch.index(row)) for at, row in enumerate(rows) if row in batch]
    assert list(zip(numbers.tolist(), places.tolist(), strict=True)) == expected
    assert sorted(set(among.rising)) == sorted({key[0] for key in batch})


SOME: Mapping[pa.DataType, st.SearchStrategy[Any]] = ANY | {
    pa.float64(): st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("-inf")]),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(UTC)),
    pa.bool_(): st.booleans(),
    pa.uuid(): st.uuids().map(lambda one: one.bytes),
}


@st.composite
def rows_by_key(draw: st.DrawFn) -> pa.Table:
    """Return rows of a key of one to three columns; some have the same key."""
    kinds = draw(st.lists(st.sampled_from(list(SOME)), min_size=1, max_size=3))
    some = draw(st.lists(st.tuples(*(SOME[kind] for kind in kinds)), min_size=1, max_size=5))
    rows = draw(st.lists(st.sampled_from(some), max_size=20))
    columns = [_array([row[at] for row in rows], kind) for at, kind in enumerate(kinds)]
    return pa.Table.from_arrays(columns, [f"column {at}" for at in range(len(kinds))])


@given(rows_by_key(), st.data())
def test_rows_with_some_keys_are_those_whose_key_is_one_of_them(rows: pa.Table, data: st.DataObject) -> None:
    keys = keys_of(rows, rows.column_names)
    wanted = data.draw(st.sets(st.sampled_from(keys))) if keys else set()
    expected = [(at, own) for at, own in enumerate(keys) if own in wanted]
    assert find_keys(rows, rows.column_names, wanted) == expected
    assert find_keys(rows.slice(0, 0), rows.column_names, wanted) == []


@given(rows_by_key())
def test_keys_are_put_in_the_order_of_their_columns(rows: pa.Table) -> None:
    keys = by_place(rows, rows.column_names)
    order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.column_names])
    assert keys.take(pa.array(in_order(keys))).equals(keys.take(order))


def _table(columns: pa.Schema, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    return pa.Table.from_arrays(
        [pa.array([row[at] for row in rows], one.type) for at, one in enumerate(columns)], schema=columns
    )


VALUES: Sequence[tuple[pa.DataType, Sequence[Any]]] = (
    (pa.int64(), (None, 0, 1)),
    (pa.float64(), (None, 0.0, -0.0, float("nan"), 1.5)),
    (pa.string(), (None, "", "0", "x", UNAVAILABLE)),
    (pa.binary(), (None, b"", b"\0\0", b"x")),
    (pa.bool_(), (None, False, True)),
    (pa.list_(pa.string()), (None, [], ["x"])),
    (pa.struct([("a", pa.int64())]), (None, {"a": 0}, {"a": 3})),
    (pa.uuid(), (None, bytes(16), b"x" * 16)),
    (pa.list_(pa.uuid()), (None, [], [b"x" * 16])),
    (pa.struct([("a", pa.list_(pa.uuid()))]), (None, {"a": None}, {"a": [bytes(16)]})),
    (pa.map_(pa.string(), pa.uuid()), (None, [], [("a", bytes(16))])),
)


@given(st.lists(st.tuples(st.booleans(), *(st.sampled_from(values) for _, values in VALUES)), max_size=4))
@example([])
@example([(False, *(values[-1] for _, values in VALUES))])
def test_deletions_say_something_where_one_of_their_images_does(rows: list[tuple[Any, ...]]) -> None:
    names = ["deleted", *(f"column {at}" for at in range(len(VALUES)))]
    columns = [_array([row[at] for row in rows], kind) for at, (kind, _) in enumerate(((pa.bool_(), ()), *VALUES))]
    # As events have them: where a filter keeps no row, no chunk is left.
    events = pa.table(columns, names=names)
    deletions = events.filter(events["deleted"]).drop_columns(["deleted"])
    names = deletions.column_names
    said = any(not is_placeholder(value) for image in images(deletions, names) for value in image.values())
    assert has_sent_values(deletions, names) == said


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return an array; Arrow makes none of UUIDs inside of other values."""
    return pa.array(values, _plain(kind)).cast(kind)


def _plain(kind: pa.DataType) -> pa.DataType:
    if kind == pa.uuid():
        return pa.binary(16)
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _plain(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    return pa.struct([(one.name, _plain(one.type)) for one in kind]) if pa.types.is_struct(kind) else kind
