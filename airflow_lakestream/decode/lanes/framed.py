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

# Many enough that numpy's calls cost little by comparison, few enough that all data stays in the cache.
_ROWS = 12_500
_BYTES = 32 << 20

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
        # By topic and schema: the versions of a topic's schemas have other names of the fields.
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
        # `first` is the position of the chunk in the batch; the bad records are added to `bad`.
        lanes, rows = ByteLanes.over(values), np.arange(len(values))
        if values.null_count:
            there = values.is_valid().to_numpy(zero_copy_only=False)
            yield from self._tombstones(rows[~there], first, bad)
            lanes, rows = lanes.take(there), rows[there]
        # The schemas of many records are requested first: a registry answers only a limited number of vain requests.
        for key, schema_id, found in sorted(self._split(lanes), key=lambda part: -len(part[2])):
            yield from self._read(self._reader(topic, key), schema_id, lanes.take(found), rows[found], first, bad)
        bad.extend(
            BadRow(first + int(rows[lane]), lanes.reasons[lanes.failure[lane]])
            for lane in np.flatnonzero(lanes.failure)
        )

    def _tombstones(self, rows: Integers, first: int, bad: list[BadRow]) -> Iterator[tuple[pa.Table, Integers]]:
        # A record without a value is a row of nulls, and bad if a column is required.
        required = [field.name for field in self.schema if not field.nullable]
        if required:
            reason = f"{required[0]}: the value is null (a tombstone), and the column is required"
            bad.extend(BadRow(first + int(row), reason) for row in rows)
        else:
            yield self._table(self._nulls(len(rows))), rows

    def _read(
        self, read: Read | str, schema_id: int | None, lanes: ByteLanes, rows: Integers, first: int, bad: list[BadRow]
    ) -> Iterator[tuple[pa.Table, Integers]]:
        # Yields the rows of a schema's records, with their numbers in the chunk.
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
        """Return the reader for a topic's records of this schema, or else the reason why all of these are bad."""
        known = (topic, key)
        if known not in self._readers:
            try:
                self._readers[known] = self._compile(topic, key)
            except Unfit as unfit:
                self._readers[known] = str(unfit)
            except SchemaNotFound as error:
                # Not cached: the schema may be registered soon, and bytes that are not an id would fill the memory.
                return str(error)
        return self._readers[known]

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
        """Return a reader by the field names in the schema, or also by the names in its further versions.

        The registry is asked for further versions only if a column has no field and a field no column. If the further
        names do not fit, the reader by the schema alone stays. A field in a column of another name is logged once.

        :param compile_by: returns the reader for a naming.
        :param names: returns the other names by these versions, and by the schema itself.

        Raises Unfit if neither naming gives a reader.
        """
        naming, read, refused = FieldNaming(names([])), None, None
        try:
            read = compile_by(naming)
        except Unfit as unfit:
            refused = unfit
        if naming.may_lack_names and (versions := versions_of(self.registry, topic, self.kind)):
            wider = FieldNaming(names(versions))
            try:
                read, naming = compile_by(wider), wider
            except Unfit as unfit:
                refused = unfit
        if read is None:
            assert refused is not None, "it is compiled, or it is not"
            raise refused
        for field, column in naming.found.items():
            if field not in self._fields_warned:
                self._fields_warned.add(field)
                log.info("%s: the field %s goes into the column %s, another name of it.", topic, field, column)
        return read

    @abstractmethod
    def _split(self, lanes: ByteLanes) -> Iterator[tuple[Hashable, int | None, Integers]]:
        """Move the lanes behind the framing; yield each schema's key, registry id or None, and lane numbers.

        Lanes that fail by then are bad records; later failures are not visible in `lanes`.
        """

    @abstractmethod
    def _compile(self, topic: str, key: Hashable) -> Read:
        """Return the reader for a topic's records of this schema. Raises Unfit and the registry's errors."""


def chunks(values: pa.Array) -> Iterator[tuple[int, int]]:
    """Yield ranges [first, last) of pieces of the values, limited in number and bytes.

    A piece has at least one value, even if the value alone is above the limit of bytes.
    """
    first = 0
    while first < len(values):
        last = min(first + _ROWS, len(values))
        while last - first > 1 and _size(values, first, last) > _BYTES:
            last = first + (last - first) // 2
        yield first, last
        first = last


def _size(values: pa.Array, first: int, last: int) -> int:
    offsets = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, values.offset * 4)
    return int(offsets[last]) - int(offsets[first])


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
    found = values[rows]
    if (found == found[0]).all():
        yield int(found[0]), rows
        return
    for value in np.unique(found):
        yield int(value), rows[found == value]
