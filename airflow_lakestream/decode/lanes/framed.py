"""Decoder of records with the id of the writer's schema: framing, a reader for each schema, and bad records."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from airflow_lakestream.core.policies import TimestampsFiner, UnknownFields
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.lanes import leaves
from airflow_lakestream.decode.lanes.lanes import ByteLanes, Integers, Mask, with_uuids
from airflow_lakestream.decode.lanes.leaves import Unfit
from airflow_lakestream.decode.other_names import FieldNaming, OtherNames
from airflow_lakestream.decode.values.outcome import BadRow, DecoderResult, SchemaDecoder
from airflow_lakestream.registry.client import RegisteredSchema, SchemaNotFound, SchemaSource, versions_of

log = logging.getLogger(__name__)

# The most values and bytes that are decoded at once: enough that numpy's calls cost little by comparison, and few
# enough for the processor's cache.
_MOST_ROWS = 12_500
_MOST_BYTES = 32 << 20

# Reads the records in the lanes, and returns the columns.
Read = Callable[[ByteLanes], list[pa.Array]]


class FramedDecoder(SchemaDecoder, ABC):
    """Decoder of binary records into tables of an Arrow schema; `nullable=False` makes a field required.

    Subclasses find the schema of each record, and compile a reader for each schema and topic; readers are kept. Threads
    may decode batches of several topics at the same time.

    :param schema: columns and their types.
    :param unknown_fields: "ignore" skips fields without a column, "fail" rejects the record.
    :param registry: source of the schemas; without a registry, a record that needs one is bad.
    :param finer: treatment of times finer than microseconds.
    """

    kind: ClassVar[str]

    def __init__(
        self,
        schema: pa.Schema,
        unknown_fields: UnknownFields | str = UnknownFields.IGNORE,
        registry: SchemaSource | None = None,
        finer: TimestampsFiner = TimestampsFiner.REJECT,
    ) -> None:
        super().__init__(schema, unknown_fields)
        self.registry, self.finer = registry, finer
        # By topic and schema: the reader, or the reason why all records are bad. The topic matters, since its schema's
        # versions have alternative names of fields.
        self._readers: dict[tuple[str, Hashable], Read | str] = {}
        # The fields already logged as having a column of another name.
        self._fields_warned: set[str] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.schema, str(self.unknown_fields), self.registry, self.finer)

    def decode(self, batch: RawBatch) -> DecoderResult:
        """Return the rows and the bad records of a batch. Raises the registry's errors, see `registry.client`."""
        tables: list[pa.Table] = []
        rows: list[Integers] = []
        bad: list[BadRow] = []
        for first, last in chunks(batch.values):
            for table, taken in self._chunk(batch.topic, batch.values.slice(first, last - first), first, bad):
                tables.append(table)
                rows.append(taken + first)
        table = pa.concat_tables(tables) if tables else self._table(self._nulls(0))
        order = np.concatenate(rows) if rows else np.zeros(0, np.int64)
        if len(order) + len(bad) != len(batch):
            raise AssertionError(f"{len(order)} rows and {len(bad)} bad records of {len(batch)}")
        if np.any(order[1:] < order[:-1]):
            table = table.take(pa.array(np.argsort(order)))
        return DecoderResult(table, sorted(bad, key=lambda row: row.index))

    def _chunk(
        self, topic: str, values: pa.Array, first: int, bad: list[BadRow]
    ) -> Iterator[tuple[pa.Table, Integers]]:
        """Yield tables of a chunk's good records, with positions in the chunk, which begins at `first` in the batch."""
        lanes, rows = ByteLanes.over(values), np.arange(len(values))
        if values.null_count:
            is_valid = values.is_valid().to_numpy(zero_copy_only=False)
            yield from self._tombstones(rows[~is_valid], first, bad)
            lanes, rows = lanes.take(is_valid), rows[is_valid]
        # The schemas of many records are requested first: requests for unknown ids are limited.
        for key, schema_id, numbers in sorted(self._split(lanes), key=lambda part: -len(part[2])):
            part, part_rows = lanes.take(numbers), rows[numbers]
            yield from self._read(self._reader(topic, key), schema_id, part, part_rows, first, bad)
        bad.extend(
            BadRow(first + int(rows[lane]), lanes.reasons[lanes.failure[lane]])
            for lane in np.flatnonzero(lanes.failure)
        )

    def _tombstones(self, rows: Integers, first: int, bad: list[BadRow]) -> Iterator[tuple[pa.Table, Integers]]:
        """Yield rows of nulls for records without a value, or add them to `bad` if a column is required."""
        required = [field.name for field in self.schema if not field.nullable]
        if required:
            reason = f"{required[0]}: the value is null (a tombstone), and the column is required"
            bad.extend(BadRow(first + int(row), reason) for row in rows)
        else:
            yield self._table(self._nulls(len(rows))), rows

    def _read(
        self, read: Read | str, schema_id: int | None, lanes: ByteLanes, rows: Integers, first: int, bad: list[BadRow]
    ) -> Iterator[tuple[pa.Table, Integers]]:
        """Yield the rows of a schema's records, with their positions in the chunk; add bad records to `bad`."""
        if isinstance(read, str):
            bad.extend(BadRow(first + row, read, schema_id) for row in rows.tolist())
            return
        columns = read(lanes)
        good = lanes.failure == 0
        for row in np.flatnonzero(~good):
            bad.append(BadRow(first + int(rows[row]), lanes.reasons[lanes.failure[row]], schema_id))
        if good.any():
            if not good.all():
                columns = [column.filter(pa.array(good)) for column in columns]
            yield self._table(columns), rows[good]

    def _nulls(self, count: int) -> list[pa.Array]:
        return [pa.nulls(count, leaves.plain(field.type)) for field in self.schema]

    def _table(self, columns: list[pa.Array]) -> pa.Table:
        fitting = [with_uuids(column, field.type) for column, field in zip(columns, self.schema, strict=True)]
        return pa.Table.from_arrays(fitting, schema=self.schema)

    def _reader(self, topic: str, key: Hashable) -> Read | str:
        """Return the reader for a topic's records of a schema, or the reason why all these records are bad."""
        reader_key = (topic, key)
        if reader_key not in self._readers:
            try:
                self._readers[reader_key] = self._compile(topic, key)
            except Unfit as unfit:
                self._readers[reader_key] = str(unfit)
            except SchemaNotFound as error:
                # Not kept: the schema may be registered soon, and bytes that are not an id would fill the memory.
                return str(error)
        return self._readers[reader_key]

    def _registered(self, schema_id: int) -> RegisteredSchema:
        """Return a schema of this decoder's kind from the registry. Raises Unfit for a schema of another kind."""
        if self.registry is None:
            raise Unfit("the record needs a schema registry, and none is given: set schema_registry")
        schema = self.registry.schema(schema_id)
        if schema.kind != self.kind:
            raise Unfit(f"schema {schema_id} is of type {schema.kind}, not {self.kind}")
        return schema

    def _by_names(
        self,
        topic: str,
        compile_by: Callable[[FieldNaming], Read],
        names: Callable[[Sequence[RegisteredSchema]], OtherNames],
    ) -> Read:
        """Return a reader by the field names in the schema, or by alternative names in its further versions.

        Further versions are requested only if a column has no field and a field has no column. If the alternative names
        are unfit, the reader by the schema alone is returned. A field in a column of another name is logged once.

        :param compile_by: returns the reader for a naming.
        :param names: returns the alternative names in these versions and in the schema itself.

        Raises Unfit if neither naming has a reader.
        """
        naming, read, error = FieldNaming(names([])), None, None
        try:
            read = compile_by(naming)
        except Unfit as unfit:
            error = unfit
        if naming.may_lack_names and (versions := versions_of(self.registry, topic, self.kind)):
            wider = FieldNaming(names(versions))
            try:
                read, naming = compile_by(wider), wider
            except Unfit as unfit:
                error = unfit
        if read is None:
            assert error is not None, "without a reader, a naming was unfit"
            raise error
        for field, column in naming.found.items():
            if field not in self._fields_warned:
                self._fields_warned.add(field)
                log.info("%s: the field %s goes into the column %s, another name of it.", topic, field, column)
        return read

    @abstractmethod
    def _split(self, lanes: ByteLanes) -> Iterator[tuple[Hashable, int | None, Integers]]:
        """Move the lanes behind the framing; yield each schema's key, id in the registry (or None), and lane numbers.

        The key identifies the schema in `_compile`. A lane that fails here is a bad record, and is not yielded.
        """

    @abstractmethod
    def _compile(self, topic: str, key: Hashable) -> Read:
        """Return the reader for a topic's records of the schema `key`. Raises Unfit and the registry's errors."""


def chunks(values: pa.Array) -> Iterator[tuple[int, int]]:
    """Yield ranges [first, last) of pieces of the values, limited in number and bytes.

    A piece has at least one value, even if the value alone is above the limit of bytes.
    """
    first = 0
    while first < len(values):
        last = min(first + _MOST_ROWS, len(values))
        while last - first > 1 and _size(values, first, last) > _MOST_BYTES:
            last = first + (last - first) // 2
        yield first, last
        first = last


def _size(values: pa.Array, first: int, last: int) -> int:
    offsets = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, values.offset * 4)
    return int(offsets[last]) - int(offsets[first])


# The bytes of Confluent's header: a zero, and four bytes of the schema's id.
HEADER = 5


def schema_ids(lanes: ByteLanes, framed: Mask) -> Integers:
    """Move the framed lanes behind the header, and return the schema ids in the headers.

    A framed lane that ends within the header fails. The ids of lanes outside `framed` have no meaning.
    """
    words = lanes.words[lanes.pos]
    ids = (words >> np.uint64(8)).astype(np.uint32).byteswap().astype(np.int64)
    lanes.fail(framed & (lanes.end - lanes.pos < HEADER), "the value ends within its first 5 bytes: no schema id")
    lanes.pos = lanes.pos + np.where(framed & (lanes.failure == 0), HEADER, 0)
    return ids


def is_framed(lanes: ByteLanes) -> Mask:
    """Return a mask of the lanes with Confluent's wire format: the first byte is a zero."""
    framed: Mask = (lanes.data[lanes.pos] == 0) & (lanes.end > lanes.pos)
    return framed


def groups(values: Integers, among: Mask) -> Iterator[tuple[int, Integers]]:
    """Yield each distinct value of the lanes in `among`, with the numbers of the value's lanes."""
    rows = np.flatnonzero(among)
    if not len(rows):
        return
    chosen = values[rows]
    if (chosen == chosen[0]).all():
        yield int(chosen[0]), rows
        return
    for value in np.unique(chosen):
        yield int(value), rows[chosen == value]
