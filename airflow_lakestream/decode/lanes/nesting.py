"""Lists and maps of values that were read in another order than that of the records they belong to."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.types as t

from airflow_lakestream.decode.lanes.lanes import Integers


def merged(parts: list[pa.Array], order: Integers, kind: pa.DataType) -> pa.Array:
    """Return the values of all parts, put in order."""
    if not parts:
        return pa.nulls(0, kind)
    if len(parts) == 1:
        return parts[0]
    return pa.concat_arrays(parts).take(pa.array(order))


def offsets_of(lengths: Integers) -> Integers:
    """Return where each list of these lengths begins, and where the last one ends."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def list_array(values: pa.Array, lengths: Integers, kind: pa.DataType) -> pa.Array:
    """Return lists of these lengths over the values."""
    offsets = offsets_of(lengths)
    if t.is_large_list(kind):
        return pa.LargeListArray.from_arrays(pa.array(offsets), values, type=kind)
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values, type=kind)


def map_array(entries: pa.Array, lengths: Integers, kind: pa.DataType) -> pa.Array:
    """Return maps of these lengths over structs of key and value."""
    offsets = pa.array(offsets_of(lengths).astype(np.int32))
    return pa.MapArray.from_arrays(offsets, entries.field(0), entries.field(1), type=kind)


def last_of_each_key(entries: pa.Array, lengths: Integers) -> tuple[pa.Array, Integers]:
    """Return the entries without those whose key comes again in the same map, and the new lengths."""
    if not len(entries):
        return entries, lengths
    keys = entries.field(0).dictionary_encode()
    owners = np.repeat(np.arange(len(lengths)), lengths)
    places = owners * len(keys.dictionary) + keys.indices.to_numpy().astype(np.int64)
    # The first of each, seen from the end.
    _, found = np.unique(places[::-1], return_index=True)
    if len(found) == len(places):
        return entries, lengths
    kept = np.sort(len(places) - 1 - found)
    return entries.take(pa.array(kept)), np.bincount(owners[kept], minlength=len(lengths))


def with_uuids(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values of `leaves.plain(kind)` as values of `kind`.

    Arrow's own cast refuses a null struct around a required field.
    """
    if values.type == kind:
        return values
    if isinstance(kind, pa.UuidType):
        return pa.ExtensionArray.from_storage(kind, values)
    nulls = values.is_null() if values.null_count else None
    if t.is_struct(kind):
        children = [with_uuids(values.field(place), field.type) for place, field in enumerate(kind)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=nulls)
    if t.is_map(kind):
        keys, items = with_uuids(values.keys, kind.key_type), with_uuids(values.items, kind.item_type)
        return pa.MapArray.from_arrays(values.offsets, keys, items, type=kind, mask=nulls)
    maker = pa.LargeListArray if t.is_large_list(kind) else pa.ListArray
    return maker.from_arrays(values.offsets, with_uuids(values.values, kind.value_type), type=kind, mask=nulls)
