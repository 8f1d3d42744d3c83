"""Which values of a column are among others, and whether deletions say something: as one looks at each value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_lakestream.cdc.columns import UNAVAILABLE
from airflow_lakestream.cdc.keys.identity import Among
from airflow_lakestream.cdc.keys.images import images, is_placeholder, say_something

SMALL, LARGE = st.integers(-5, 5), st.integers(-(2**63), 2**63 - 1)
COLUMNS = st.one_of(
    st.tuples(st.just(pa.int64()), st.lists(st.none() | SMALL | LARGE, max_size=30)),
    st.tuples(st.just(pa.int32()), st.lists(st.none() | SMALL, max_size=30)),
    st.tuples(st.just(pa.string()), st.lists(st.none() | st.sampled_from("abcde"), max_size=30)),
)


@given(COLUMNS, st.booleans(), st.sets(SMALL | LARGE | st.sampled_from("abc")), st.integers(1, 7))
@example((pa.int64(), [1, 1, 2, 2, 2, 4]), True, {1, 2, 3}, 2)
@example((pa.int64(), [2**63 - 1]), True, {2**63 - 1, -(2**63)}, 1)
def test_values_among_others_are_found_in_any_order_and_any_parts(
    column: tuple[pa.DataType, list[Any]], is_sorted: bool, others: set[Any], size: int
) -> None:
    kind, values = column
    fits = str if kind == pa.string() else int
    wanted = [one for one in others if type(one) is fits and (kind != pa.int32() or -5 <= one <= 5)]
    if is_sorted:
        values = sorted(one for one in values if one is not None)
    parts: Sequence[pa.Array] = [pa.array(values[at : at + size], kind) for at in range(0, len(values), size)]
    among = Among(pa.chunked_array([pa.array(wanted, kind)]))
    found = among(pa.chunked_array(parts, kind)).tolist()
    assert found == [at for at, one in enumerate(values) if one is not None and one in wanted]


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
