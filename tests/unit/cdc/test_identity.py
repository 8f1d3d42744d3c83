"""Which values of a column are among others, and whether deletions say something: as one looks at each value."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_lakestream.cdc.columns import UNAVAILABLE
from airflow_lakestream.cdc.keys.identity import Among
from airflow_lakestream.cdc.keys.images import images, is_placeholder, say_something

SMALL, LARGE = st.integers(-5, 5), st.integers(-(2**63), 2**63 - 1)
KINDS: Mapping[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): SMALL | LARGE,
    pa.int32(): SMALL,
    pa.string(): st.sampled_from("abcde"),
}


@st.composite
def keyed(draw: st.DrawFn) -> tuple[pa.Schema, list[tuple[Any, ...]], list[tuple[Any, ...]], int]:
    """Return columns of a key, keys of a batch, each once, and rows, in parts of so many."""
    kinds = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=2))
    one = st.tuples(*(KINDS[kind] for kind in kinds))
    batch = draw(st.lists(one, max_size=20, unique=True))
    rows = draw(st.lists(one | st.sampled_from(batch) if batch else one, max_size=40))
    if draw(st.booleans()):
        rows.sort()
    elif draw(st.booleans()):
        rows = [(None, *row[1:]) if draw(st.booleans()) else row for row in rows]
    columns = pa.schema([(f"column {at}", kind) for at, kind in enumerate(kinds)])
    return columns, batch, rows, draw(st.integers(1, 50))


@given(keyed())
@example((pa.schema([("column 0", pa.int64())]), [(1,), (2,), (3,)], [(1,), (1,), (2,), (2,), (2,), (4,)], 2))
@example((pa.schema([("column 0", pa.int64())]), [(2**63 - 1,), (-(2**63),)], [(2**63 - 1,)], 1))
def test_rows_among_the_keys_of_a_batch_are_found_in_any_order_and_any_parts(
    given: tuple[pa.Schema, list[tuple[Any, ...]], list[tuple[Any, ...]], int],
) -> None:
    columns, batch, rows, size = given
    parts = [_table(columns, rows[at : at + size]) for at in range(0, len(rows), size)]
    among = pickle.loads(pickle.dumps(Among(_table(columns, batch), columns.names)))
    numbers, places = among(pa.concat_tables([columns.empty_table(), *parts]))
    expected = [(at, batch.index(row)) for at, row in enumerate(rows) if row in batch]
    assert list(zip(numbers.tolist(), places.tolist(), strict=True)) == expected
    assert list(among.rising) == sorted({key[0] for key in batch}) or not pa.types.is_integer(columns[0].type)


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
    assert say_something(deletions, names) == said


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
