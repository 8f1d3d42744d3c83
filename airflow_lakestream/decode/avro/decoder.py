"""Decoder of Avro messages in Confluent's wire format or single-object encoding."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_lakestream.core.policies import TimestampsFiner, UnknownFields
from airflow_lakestream.decode.avro import schema as avro_schema
from airflow_lakestream.decode.avro.columns import AvroCompiler
from airflow_lakestream.decode.avro.schema import AvroUnion, Node, fingerprint
from airflow_lakestream.decode.lanes.framed import FramedDecoder, Read, groups, is_framed, schema_ids
from airflow_lakestream.decode.lanes.lanes import ByteLanes, Integers
from airflow_lakestream.decode.lanes.leaves import Unfit
from airflow_lakestream.decode.other_names import FieldNaming, avro_names
from airflow_lakestream.decode.values.outcome import SchemaRefused
from airflow_lakestream.registry.client import SchemaSource

# First bytes of single-object encoding; eight bytes with the schema's fingerprint follow, little-endian.
_SINGLE_OBJECT = 0x01C3
_SINGLE_HEADER = 10


class AvroDecoder(FramedDecoder):
    """Decoder of Avro values; each value begins with the id or the fingerprint of the writer's schema.

    :param registry: source of the schemas of Confluent's wire format.
    :param schemas: schemas of single-object encoding, as JSON text; a record names a schema by its fingerprint.
    :param to_end: `schema` has a single column, which takes the value as a whole; the value need not be a record.
    :param ignored: fields of the outer record that may lack a column even if `unknown_fields` is "fail".
    """

    kind = "AVRO"

    def __init__(
        self,
        schema: pa.Schema,
        unknown_fields: UnknownFields | str = UnknownFields.IGNORE,
        registry: SchemaSource | None = None,
        finer: TimestampsFiner = TimestampsFiner.REJECT,
        schemas: Sequence[str] = (),
        to_end: bool = False,
        ignored: Sequence[str] = (),
    ) -> None:
        super().__init__(schema, unknown_fields, registry, finer)
        self._to_end = to_end
        self._ignored = frozenset(ignored)
        self._schemas = tuple(schemas)
        self._by_fingerprint = {fingerprint(text): text for text in self._schemas}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (
            self.schema,
            str(self.unknown_fields),
            self.registry,
            self.finer,
            self._schemas,
            self._to_end,
            tuple(self._ignored),
        )

    def _split(self, lanes: ByteLanes) -> Iterator[tuple[Hashable, int | None, Integers]]:
        framed = is_framed(lanes)
        long_enough = lanes.end - lanes.pos >= _SINGLE_HEADER
        single = long_enough & (lanes.words[lanes.pos] & np.uint64(0xFFFF) == _SINGLE_OBJECT)
        problem = "begins neither as Confluent's wire format (a zero) nor as Avro's single-object encoding"
        lanes.fail(~framed & ~single, f"the value {problem}")
        if single.any():
            # Grouped as signed numbers; the fingerprints are unsigned, hence the modulo below.
            prints = lanes.words[lanes.pos + np.where(single, 2, 0)].view(np.int64)
            lanes.pos = lanes.pos + np.where(single, _SINGLE_HEADER, 0)
            for value, rows in groups(prints, single):
                yield ("fingerprint", value % 2**64), None, rows
        ids = schema_ids(lanes, framed)
        for schema_id, rows in groups(ids, framed & (lanes.failure == 0)):
            yield schema_id, schema_id, rows

    def _compile(self, topic: str, key: Hashable) -> Read:
        # Raises Unfit also for a schema that can't be parsed: every record of this schema is bad then.
        text, references = self._text(key)
        try:
            node = avro_schema.parse(text, references)
        except SchemaRefused as refused:
            raise Unfit(str(refused)) from None

        def columns_by(naming: FieldNaming) -> Read:
            ignore = self.unknown_fields is UnknownFields.IGNORE
            compiler = AvroCompiler(naming, ignore_unknown=ignore, finer=self.finer, ignored=self._ignored)
            return self._columns(compiler, node)

        # Other names come from the aliases in this schema, in `schemas`, and in further versions of the registry.
        given = [node, *avro_schema.parse_all(self._schemas)]
        read = self._by_names(topic, columns_by, lambda versions: avro_names(given, versions))

        def to_end(lanes: ByteLanes) -> list[pa.Array]:
            columns = read(lanes)
            lanes.fail(lanes.pos != lanes.end, "bytes are left over behind the value")
            return columns

        return to_end

    def _columns(self, compiler: AvroCompiler, node: Node) -> Read:
        if self._to_end:
            one = compiler.field(node, self.schema.field(0), self.schema.field(0).name)
            return lambda lanes: [one(lanes)]
        if isinstance(node, AvroUnion):
            return self._optional(compiler.value(node, pa.struct(list(self.schema)), ""))
        return compiler.record(node, list(self.schema))

    def _optional(self, read: Callable[[ByteLanes], pa.Array]) -> Read:
        """Return a reader of a record that may be null; null becomes a row of nulls, like a tombstone.

        If a column is required, null fails the lane.
        """
        required = [field.name for field in self.schema if not field.nullable]

        def columns(lanes: ByteLanes) -> list[pa.Array]:
            rows = read(lanes)
            if required and rows.null_count:
                absent = rows.is_null().to_numpy(zero_copy_only=False)
                lanes.fail(absent, f"{required[0]}: the value is null, and the column is required")
            flat: list[pa.Array] = rows.flatten()
            return flat

        return columns

    def _text(self, key: Hashable) -> tuple[str, list[str]]:
        # Returns the text of the schema, and the texts of its references, for a fingerprint or a schema id.
        if isinstance(key, tuple):
            found = self._by_fingerprint.get(key[1])
            if found is None:
                raise Unfit(f"no schema with the fingerprint {key[1]:016x} is given")
            return found, []
        assert isinstance(key, int)
        schema = self._registered(key)
        return schema.text, [needed.text for _, needed in schema.all_references()]
