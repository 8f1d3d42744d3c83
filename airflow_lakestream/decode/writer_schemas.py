"""Writers' schemas of the records of a batch: inside the records, or named by an id."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.core.policies import ValueEnvelope
from airflow_lakestream.decode.connect.decoder import unwrapped
from airflow_lakestream.decode.known_formats import FORMATS
from airflow_lakestream.decode.lanes.confluent import HEADER
from airflow_lakestream.decode.lanes.lanes import Integers
from airflow_lakestream.decode.registered import SINGLE_OBJECT, SchemaFinder

# Number of bytes that name the schema in Avro's single-object encoding.
_SINGLE = 10
# Most bytes of the path of a Protobuf message.
_LONGEST_PATH = 64

# A schema's text in the record; or the first bytes of a value, which name a schema: see `SchemaFinder.by_head`.
Writer: TypeAlias = str | bytes


def writers(
    values: pa.Array, format_name: str, finder: SchemaFinder, prefixes: dict[bytes, str]
) -> Iterator[tuple[Writer, Integers]]:
    """Yield the schemas of values, with the positions of the records.

    In Connect's JSON, values without a schema are left out, and a schema may be yielded several times. In other
    formats, the first bytes of a value name the schema, known or not; null values are left out.

    :param finder: finder of the payload's schemas, for the schemas given by the user.
    :param prefixes: prefixes of earlier values with their schemas; new prefixes are added.
    """
    if ValueEnvelope.CONNECT in FORMATS[format_name].envelopes:
        for part in unwrapped(values, prefixes):
            if part.schema is not None:
                yield part.schema, part.places
        return
    heads = pc.binary_slice(values, 0, HEADER)
    if FORMATS[format_name].messages is not None:
        heads = _with_messages(values)
    if finder.writer_schemas:
        single = pc.starts_with(values, SINGLE_OBJECT)
        heads = pc.if_else(single, pc.binary_slice(values, 0, _SINGLE), heads)
    found = heads.dictionary_encode()
    numbers = pc.fill_null(found.indices, -1).to_numpy()
    counts = np.bincount(numbers + 1, minlength=len(found.dictionary) + 1)
    places = np.split(np.argsort(numbers, kind="stable"), np.cumsum(counts)[:-1])[1:]
    # The most frequent first: a registry answers only a limited number of requests for unknown ids.
    for number in np.argsort(-counts[1:], kind="stable").tolist():
        yield found.dictionary[number].as_py(), places[number]


def _with_messages(values: pa.Array) -> pa.Array:
    """Return the first bytes of Protobuf values: the schema's id, and the path of the message in the schema."""
    length = HEADER + 1
    heads = pc.binary_slice(values, 0, length)
    while length < HEADER + _LONGEST_PATH:
        found = heads.dictionary_encode()
        is_cut = [len(one) == length and not _has_whole_path(one) for one in found.dictionary.to_pylist()]
        if not any(is_cut):
            break
        length += 1
        longer = pa.array([*is_cut, False], pa.bool_()).take(pc.fill_null(found.indices, len(is_cut)))
        heads = pc.if_else(longer, pc.binary_slice(values, 0, length), heads)
    return heads


def _has_whole_path(head: bytes) -> bool:
    """Return whether a value's first bytes contain all numbers of the message's path."""
    numbers = [byte for byte in head[HEADER:] if byte < 0x80]
    # The first number is the count of the others, doubled by its zigzag form; longer counts are no path.
    return bool(numbers) and (head[HEADER] >= 0x80 or len(numbers) > numbers[0] >> 1)
