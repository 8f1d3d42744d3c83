"""Columns given by a plain record, for `merge="given"`: absent fields keep the row's values, and null is a value."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from airflow_lakestream.core.policies import ValueFormat
from airflow_lakestream.decode.connect.unavailable import Mask
from airflow_lakestream.decode.json.document import parse_document
from airflow_lakestream.decode.lanes.framed import HEADER
from airflow_lakestream.tables.rising import Numbers
from airflow_lakestream.tables.row_buffer import one_array


def given_fields(
    rows: pa.Table,
    fields: Mapping[str, str],
    values: pa.Array,
    format_name: str,
    by_schema: Iterable[tuple[Sequence[str], Numbers]],
) -> pa.Array:
    """Return for each row the columns given by its record, as a list in JSON: those whose fields the record has.

    In Protobuf a field without a value is absent, in Avro a field that the record's schema lacks; in JSON a member that
    the document lacks.

    :param rows: the decoded rows, with null for absent fields.
    :param fields: the names of the rows' columns, by the names of the fields in records.
    :param values: the value of each row; null for a tombstone.
    :param by_schema: the fields of each schema, with the numbers of the rows; only for Avro.
    """
    names = list(fields.values())
    is_given = np.zeros((len(rows), len(names)), np.bool_)
    for number, name in enumerate(names):
        is_given[:, number] = rows[name].is_valid().to_numpy()
    place_of = {field: number for number, field in enumerate(fields)}
    if format_name in (ValueFormat.JSON, ValueFormat.JSON_SCHEMA):
        framed = format_name == ValueFormat.JSON_SCHEMA
        for row in np.flatnonzero(~is_given.all(axis=1)).tolist():
            value = values[row].as_py()
            document = None if value is None else parse_document(value[HEADER:] if framed else value)
            if isinstance(document, dict):
                is_given[row, [place_of[field] for field in document if field in place_of]] = True
    for names_in_schema, numbers in by_schema:
        for field in names_in_schema:
            if field in place_of:
                is_given[numbers, place_of[field]] = True
    patterns, of_rows = np.unique(is_given, axis=0, return_inverse=True)
    texts = [
        json.dumps([name for name, is_there in zip(names, pattern, strict=True) if is_there])
        for pattern in patterns.tolist()
    ]
    return pa.array(texts, pa.string()).take(pa.array(of_rows.reshape(-1)))


def given_mask(given: pa.ChunkedArray, name: str) -> Mask:
    """Return a mask of the records that give a column.

    :param given: the columns of each record, from `given_fields`.
    """
    encoded = one_array(given).dictionary_encode()
    gives_column = np.array([name in json.loads(text) for text in encoded.dictionary.to_pylist()], np.bool_)
    numbers = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    mask = np.zeros(len(numbers), np.bool_)
    valid = np.flatnonzero(numbers >= 0)
    mask[valid] = gives_column[numbers[valid]]
    return mask
