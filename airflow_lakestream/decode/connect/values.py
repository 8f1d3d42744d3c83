"""Values of logical types in Connect's JSON, from numbers and base64 to the columns' types.

JSON is first decoded with the written types; the written values are then converted to the columns, exactly.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.types as t

from airflow_lakestream.core.policies import OutOfRange, TimestampsFiner
from airflow_lakestream.decode.connect import texts as connect_texts
from airflow_lakestream.decode.connect.schema import NUMBER, VARIABLE_DECIMAL, ConnectType, LogicalType
from airflow_lakestream.decode.connect.texts import replaced, settled
from airflow_lakestream.decode.lanes import leaves
from airflow_lakestream.decode.lanes.lanes import ByteLanes, Integers, list_array, map_array
from airflow_lakestream.tables.schema.value_ranges import is_time_out_of_range

# The lanes here only collect failures: the values are numbers already, and no bytes are read.
_NO_BYTES = np.zeros(64, np.uint8)
_SINGLE = ("float", "float32")


class BatchRows:
    """Rows of a batch: `reasons` of the bad rows, the numbers of `all` rows, and the policies for times."""

    def __init__(self, count: int, out_of_range: OutOfRange, finer: TimestampsFiner) -> None:
        self.out_of_range, self.finer = out_of_range, finer
        self.reasons: dict[int, str] = {}
        self.all = np.arange(count)


def written(shape: ConnectType | None, kind: pa.DataType) -> pa.DataType:
    """Return the type for decoding JSON, for a column of type `kind`; values of this type go into `fitted`.

    The type is `kind` itself if JSON has the column's values in the usual form.

    :param shape: type of the values in the schema; None if unknown.
    """
    if shape is None:
        return kind
    if (logical := shape.logical) is not None:
        return _written_as(logical, kind)
    if shape.kind == NUMBER and t.is_string(kind):
        # A type other than the column's, since digits may be written with an exponent.
        return pa.large_string()
    if shape.kind in _SINGLE and t.is_float64(kind):
        # The shortest digits of a float are another number as a double: the float's value counts.
        return pa.float32()
    if shape.name == VARIABLE_DECIMAL and not t.is_struct(kind):
        return connect_texts.VARIABLE
    if shape.kind == "struct" and t.is_struct(kind):
        return pa.struct([written_field(shape.fields.get(field.name), field) for field in kind])
    if shape.kind == "array" and (t.is_list(kind) or t.is_large_list(kind)):
        make = pa.large_list if t.is_large_list(kind) else pa.list_
        return make(written_field(shape.items, kind.value_field))
    if shape.kind == "map" and t.is_map(kind):
        return pa.map_(kind.key_type, written_field(shape.items, kind.item_field))
    return kind


def written_field(shape: ConnectType | None, field: pa.Field) -> pa.Field:
    """Return the field for decoding JSON; see `written`."""
    return field.with_type(written(shape, field.type))


def _written_as(logical: LogicalType, kind: pa.DataType) -> pa.DataType:
    # Returns the type for base64 or for numbers; or `kind`, if the column is of another type than the values' meaning.
    if logical.meaning == "decimal" and (t.is_decimal128(kind) or t.is_string(kind)):
        return pa.binary()
    if t.is_string(kind):
        return pa.int64()
    meant = {"date": t.is_date32, "time": t.is_time64, "timestamp": t.is_timestamp}.get(logical.meaning)
    return pa.int64() if meant is not None and meant(kind) else kind


def fitted(
    values: pa.Array, shape: ConnectType | None, kind: pa.DataType, path: str, owners: Integers, rows: BatchRows
) -> pa.Array:
    """Return values of the type `written(shape, kind)` as values of `kind`.

    A value that does not fit makes its row bad, unless the policy for values out of range replaces the value.

    :param path: the field's path, for the reasons.
    :param owners: the row of each value.
    :param rows: the policies; the reasons of bad rows are added.

    Raises Unfit if no value can fit.
    """
    if shape is None or values.type == kind:
        return values
    if shape.kind == NUMBER:
        return connect_texts.plain(values, kind, path, owners, rows.reasons)
    if t.is_string(kind) or shape.name == VARIABLE_DECIMAL:
        return connect_texts.fitted(values, shape, kind, path, owners, rows.reasons)
    if t.is_struct(kind):
        # Values below a NULL are not converted: any value may be there.
        children = [
            fitted(child, shape.fields.get(field.name), field.type, f"{path}.{field.name}", owners, rows)
            for child, field in zip(values.flatten(), kind, strict=True)
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=values.is_null())
    if t.is_list(kind) or t.is_large_list(kind) or t.is_map(kind):
        return _fitted_items(values, shape, kind, path, owners, rows)
    return _fitted_leaf(values, shape, kind, path, owners, rows)


def _fitted_items(
    values: pa.Array, shape: ConnectType, kind: pa.DataType, path: str, owners: Integers, rows: BatchRows
) -> pa.Array:
    # Only arrays and maps that are not null have items; `inside` has the row of each item.
    there = values.is_valid().to_numpy(zero_copy_only=False)
    dense = values.filter(pa.array(there))
    lengths = np.diff(dense.offsets.to_numpy().astype(np.int64))
    first, last = dense.offsets[0].as_py(), dense.offsets[-1].as_py()
    inside = np.repeat(owners[there], lengths)
    if t.is_map(kind):
        items = fitted(dense.items[first:last], shape.items, kind.item_type, f"{path}{{}}", inside, rows)
        pairs = pa.StructArray.from_arrays([dense.keys[first:last], items], names=["key", "value"])
        made = map_array(pairs, lengths, kind)
    else:
        items = fitted(dense.values[first:last], shape.items, kind.value_type, f"{path}[]", inside, rows)
        made = list_array(items, lengths, kind)
    return _spread(made, there)


def _fitted_leaf(
    values: pa.Array, shape: ConnectType, kind: pa.DataType, path: str, owners: Integers, rows: BatchRows
) -> pa.Array:
    # Unless the policy is to reject, numbers out of range are moved into the range before the fit.
    if (logical := shape.logical) is None:
        return values.cast(kind)
    there = values.is_valid().to_numpy(zero_copy_only=False)
    dense, places = values.filter(pa.array(there)), owners[there]
    count = len(dense)
    lanes = ByteLanes(_NO_BYTES, np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count, np.int64), [""])
    fit = _fit(logical, shape, kind, path, rows.finer)
    if logical.meaning == "decimal":
        made = fit(lanes, dense)
    else:
        numbers = dense.to_numpy()
        in_range = settled(numbers, logical, rows.out_of_range)
        made = replaced(fit(lanes, in_range), numbers, in_range, logical, rows.out_of_range)
    for lane in np.flatnonzero(lanes.failure).tolist():
        reason = lanes.reasons[lanes.failure[lane]]
        if is_time_out_of_range(reason):
            reason = f"{reason}: {connect_texts.times(dense.slice(lane, 1), logical)[0]}"
        rows.reasons.setdefault(int(places[lane]), reason)
    return _spread(made, there)


def _fit(logical: LogicalType, shape: ConnectType, kind: pa.DataType, path: str, finer: TimestampsFiner) -> leaves.Fit:
    if logical.meaning == "decimal":
        return leaves.decimals(kind, path, shape.scale)
    if logical.meaning == "date":
        return leaves.dates(kind, path)
    if logical.meaning == "time":
        return leaves.times(kind, path, logical.nanos, finer=finer)
    return leaves.timestamps(kind, path, logical.nanos, zoned=logical.zoned, finer=finer)


def _spread(dense: pa.Array, there: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pa.Array:
    """Return the values of `dense` at the positions of the mask, and null elsewhere."""
    if there.all():
        return dense
    return dense.take(pa.array(np.cumsum(there) - 1, mask=~there))
