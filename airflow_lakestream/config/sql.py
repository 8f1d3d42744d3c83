"""The statement of a landing: input, output, and the arguments fit for a statement.

Input and output are known before the first record, so a statement that does not fit fails before anything is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.schema import Schema

from airflow_lakestream.core.policies import SqlInput, TimestampsFiner, UnknownFields, ValueFormat, choose, is_given
from airflow_lakestream.decode.known_formats import FORMATS
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.rejects.settlement import names_of
from airflow_lakestream.tables.schema.columns import METADATA_PREFIX, check_made, payload_schema, to_schema

if TYPE_CHECKING:
    from airflow_lakestream.transform import SqlTransform

# A table property: the group lands through SQL, from this input. Needed for decoding its records again.
PROPERTY_PREFIX = "lakestream.sql."

_DECODING = ("key_format", "envelope", "schema_registry", "writer_schemas")


@dataclass(frozen=True)
class SqlStatement:
    """A statement over raw records or over decoded columns.

    :param given: the user's schema: of the table that the statement makes, or of the decoded columns.
    :param metadata: the metadata columns, which each row has anyway.
    """

    text: str
    input: SqlInput
    given: Schema | None
    metadata: pa.Schema

    @classmethod
    def parse(cls, arguments: Mapping[str, object], given: Schema | None, metadata: pa.Schema) -> SqlStatement | None:
        """Return the statement in a landing's arguments, or None without a statement.

        Raises InvalidArgument for arguments that do not go with the statement.

        :param arguments: all arguments of the landing, by name.
        :param given: the user's schema, or None.
        :param metadata: the metadata columns.
        """
        named = choose(SqlInput, "sql_input", arguments["sql_input"])
        if not is_given(arguments["sql"]):
            if named is not SqlInput.RAW:
                raise InvalidArgument("sql_input", "goes with sql, but sql is not set.")
            return None
        if named is SqlInput.RAW:
            _refuse_decoding(arguments)
        elif given is None:
            raise InvalidArgument(
                "schema",
                'is missing; sql_input="decoded" needs it: it has the columns that the statement reads.',
                "The table's own are those that the statement makes.",
            )
        if str(arguments["unknown_fields"]) not in (UnknownFields.IGNORE, UnknownFields.FAIL):
            raise InvalidArgument(
                "unknown_fields",
                f"{str(arguments['unknown_fields'])!r} does not go with sql, whose SELECT names the columns.",
                'Leave it out, or fail on such records with "fail".',
            )
        return cls(str(arguments["sql"]), named, given, metadata)

    @property
    def takes_given_schema(self) -> bool:
        """Whether the table gets the schema given by the user."""
        return self.input is SqlInput.RAW and self.given is not None

    @property
    def transform(self) -> SqlTransform:
        """The statement, checked and bound. Raises InvalidArgument."""
        if self.input is SqlInput.RAW:
            return _transform(self.text, None)
        assert self.given is not None, "it was asked for"
        return _transform(self.text, pa.schema([*payload_schema(self.given, ()), *self.metadata]))

    @property
    def schema(self) -> Schema:
        """The payload's columns of the table, made by the statement.

        Raises InvalidArgument if the given schema is different, or if the statement selects metadata columns, or only
        these.
        """
        made = pa.schema([field for field in self.transform.schema if field.name not in self.metadata.names])
        for name in made.names:
            if name.startswith(METADATA_PREFIX):
                raise InvalidArgument(
                    "sql", f"it selects {name}, a metadata column.", "Ask for it in metadata_columns, or rename it: AS."
                )
        if not made.names:
            raise InvalidArgument("sql", "it selects nothing but metadata columns, which each row has anyway.")
        if self.takes_given_schema:
            assert self.given is not None, "it was asked for"
            check_made(made, self.given)
            return self.given
        return to_schema(made, "sql")

    def properties(self, consumer_group: str) -> Mapping[str, str]:
        """Return the table property with the statement's input, for a consumer group."""
        return {PROPERTY_PREFIX + consumer_group: str(self.input)}


def landed_through(properties: Mapping[str, str], consumer_group: str) -> str | None:
    """Return the input of a group's statement by the table's properties, or None for a landing without SQL."""
    names = (PROPERTY_PREFIX + name for name in names_of(properties, consumer_group))
    return next((properties[name] for name in names if name in properties), None)


def _refuse_decoding(arguments: Mapping[str, object]) -> None:
    # Only for raw records: then the decoding arguments have no effect.
    remedy = 'Leave it out, or let the statement read decoded columns: sql_input="decoded", and schema for these.'
    if not FORMATS[choose(ValueFormat, "format", arguments["format"])].is_text:
        problem = f"{arguments['format']!r} is not text, but sql reads keys and values as text."
        raise InvalidArgument("format", problem, remedy)
    for name in _DECODING:
        if is_given(arguments[name]) and arguments[name] != []:
            raise InvalidArgument(name, "nothing is decoded before sql, which reads keys and values as text.", remedy)
    if arguments["timestamps_finer"] != TimestampsFiner.REJECT:
        problem = "nothing is decoded before sql, which reads times as text: it cuts them itself."
        raise InvalidArgument("timestamps_finer", problem, remedy)
    if arguments["unknown_fields"] != UnknownFields.IGNORE:
        problem = "nothing is decoded before sql, so no field is unknown."
        raise InvalidArgument("unknown_fields", problem, remedy)


# A transform takes a tenth of a second to make; each topic of a regex, and each copy of a configuration, uses the same.
@lru_cache(maxsize=4)
def _transform(text: str, columns: pa.Schema | None) -> SqlTransform:
    # Imported here: DuckDB takes a tenth of a second to import, also in a task without a statement.
    from airflow_lakestream.transform import SqlTransform

    return SqlTransform(text, input_schema=columns)
