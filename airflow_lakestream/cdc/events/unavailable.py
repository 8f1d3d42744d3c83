"""Values that change events leave out: the placeholders that Debezium writes instead, by type.

PostgreSQL keeps large values apart (TOAST), and does not send those that an update did not touch.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from airflow_lakestream.cdc.columns import UNAVAILABLE
from airflow_lakestream.tables.no_rows import one_array

Mask = npt.NDArray[np.bool_]

_BYTES = UNAVAILABLE.encode()
# As Java's UUID.nameUUIDFromBytes makes it.
_UUID = uuid.UUID(bytes=hashlib.md5(_BYTES, usedforsecurity=False).digest(), version=3)
# The placeholder itself; in an hstore; of bytes as text (binary.handling.mode); as only element of a UUID array.
_TEXTS = (
    UNAVAILABLE,
    json.dumps({UNAVAILABLE: UNAVAILABLE}, separators=(",", ":")),
    base64.b64encode(_BYTES).decode(),
    base64.urlsafe_b64encode(_BYTES).decode(),
    base64.urlsafe_b64encode(_BYTES).decode().rstrip("="),
    _BYTES.hex(),
    str(_UUID),
)


def may_be_left_out(kind: pa.DataType) -> bool:
    """Tell whether a left-out value of this type can be told from NULL."""
    if t.is_list(kind) or t.is_large_list(kind):
        return _is_whole(kind.value_type) or may_be_left_out(kind.value_type)
    return t.is_map(kind) or _is_text(kind) or _is_bytes(kind) or _is_uuid(kind)


def left_out(column: pa.Array | pa.ChunkedArray) -> Mask:
    """Tell which values of a column are left out."""
    whole = one_array(column) if isinstance(column, pa.ChunkedArray) else column
    kind = whole.type
    if isinstance(kind, pa.BaseExtensionType):
        return left_out(whole.storage)
    if t.is_list(kind) or t.is_large_list(kind) or t.is_map(kind):
        return _left_out_of_many(whole)
    if _is_text(kind):
        return _is_in(whole, pa.array(_TEXTS, kind))
    if _is_bytes(kind):
        return _is_in(whole, pa.array([_BYTES], kind))
    if _is_uuid(kind):
        return _is_in(whole, pa.array([_UUID.bytes], kind))
    return np.zeros(len(whole), np.bool_)


def _left_out_of_many(column: pa.Array) -> Mask:
    """Tell which arrays or maps are left out: their one element is a placeholder, or they hold its single bytes."""
    of_bytes = not t.is_map(column.type) and _is_whole(column.type.value_type)
    lengths = np.where(column.is_valid().to_numpy(zero_copy_only=False), np.diff(column.offsets.to_numpy()), 0)
    found = np.zeros(len(column), np.bool_)
    places = np.flatnonzero(lengths == (len(_BYTES) if of_bytes else 1))
    if not len(places):
        return found
    some = column.take(pa.array(places))
    if of_bytes:
        values = some.flatten()
        numbers = (values.cast(pa.int32()) if t.is_date32(values.type) else values).cast(pa.int64())
        rows = pc.fill_null(numbers, -1).to_numpy().reshape(len(places), len(_BYTES))
        found[places] = (rows == np.frombuffer(_BYTES, np.uint8)).all(axis=1)
    else:
        found[places] = left_out(some.keys if t.is_map(column.type) else some.flatten())
    return found


def _is_in(column: pa.Array, values: pa.Array) -> Mask:
    mask: Mask = pc.is_in(column, value_set=values).to_numpy(zero_copy_only=False)
    return mask


def _is_text(kind: pa.DataType) -> bool:
    return bool(t.is_string(kind) or t.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(t.is_binary(kind) or t.is_large_binary(kind))


def _is_uuid(kind: pa.DataType) -> bool:
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    return bool(t.is_fixed_size_binary(storage) and storage.byte_width == len(_UUID.bytes))


def _is_whole(kind: pa.DataType) -> bool:
    return bool(t.is_int32(kind) or t.is_int64(kind) or t.is_date32(kind))
