"""Configuration of a landing by Spark with a function of DataFrames between records and table."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
from pyiceberg import types as iceberg

from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.config.settings import SettingField
from airflow_lakestream.core.names import STREAM_TRANSFORM, TRANSFORM, check_function
from airflow_lakestream.core.policies import ModeName, OnDataLoss, SqlInput, StateStore, UnknownFields, is_given
from airflow_lakestream.core.routing import is_pattern
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.schema.columns import to_schema
from airflow_lakestream.tables.schema.types import arrow_schema, type_text

# Types that Spark's DataFrames do not have.
_NOT_OF_SPARK = (iceberg.TimeType, iceberg.UUIDType, iceberg.FixedType)


@dataclass(frozen=True, kw_only=True)
class FrameConfig(ExtractConfig):
    """Arguments of `ExtractConfig`, and the app's function of DataFrames.

    With a function, `schema` names the columns of decoded records, which the function reads. The table gets the columns
    of the function's result; `partition_by`, `sort_order` and `schema_evolution` are about these columns.

    :param transform: "module:function"; it takes a batch of decoded rows as a DataFrame, and the Spark session, and
        returns the rows of the table. None lands the decoded rows.
    :param stream_transform: the same for the stream of all batches, a streaming DataFrame: Spark keeps the state.
    :param state_store: of `stream_transform`: "memory" or "rocksdb". None: by Spark's settings.
    :param output_mode: of `stream_transform`: "append".
    """

    transform: str | None = None
    stream_transform: str | None = None
    state_store: SettingField[StateStore | None] = SettingField(None)
    output_mode: SettingField[str] = SettingField("append")

    def __post_init__(self) -> None:
        if is_given(self.stream_transform):
            self._check_stream(f"stream_transform={self.stream_transform!r}")
        elif self.state_store is not None:
            raise InvalidArgument("state_store", "goes with stream_transform, whose state it keeps.", "Leave it out.")
        if self.function is not None:
            self._check_function(f"{self.argument}={check_function(self.function, self.argument)!r}")
        super().__post_init__()

    @property
    def is_stateful(self) -> bool:
        """Whether the function is for the stream of all batches."""
        return is_given(self.stream_transform)

    @property
    def argument(self) -> str:
        """Name of the function's argument."""
        return STREAM_TRANSFORM if self.is_stateful else TRANSFORM

    @property
    def function(self) -> str | None:
        """The function for the table's rows, as "module:function", or None."""
        given = getattr(self, self.argument)
        return str(given) if is_given(given) else None

    def _check_stream(self, given: str) -> None:
        if is_given(self.transform):
            raise InvalidArgument(
                "transform", f"does not go with {given}.", "Let the one function do what the other does."
            )
        if self.mode is not ModeName.RESUME:
            problem = f'"{self.mode}" does not go with {given}: a state knows no order but that of the stream.'
            raise InvalidArgument("mode", problem, "Leave it out.")
        if is_pattern(self.topic):
            problem = f"{self.topic!r} is a regex, which does not go with {given}: a checkpoint's state is one topic's."
            raise InvalidArgument("topic", problem, "Name one topic for each task.")
        if self.on_data_loss is not OnDataLoss.FAIL:
            problem = (
                f'"{self.on_data_loss}" does not go with {given}: it is unknown which records its state lacks then.'
            )
            raise InvalidArgument("on_data_loss", problem, "Leave it out; begin again with another table.")

    def _check_function(self, given: str) -> None:
        if is_given(self.sql) or self.sql_input != SqlInput.RAW:
            raise InvalidArgument("sql", f"does not go with {given}.", "Let the function do what the statement does.")
        if self.template.by_record:
            problem = f"{self.table!r}, a table that records choose, does not go with {given}."
            raise InvalidArgument("table", problem, "Name one table for each topic.")
        if self.unknown_fields == UnknownFields.EVOLVE:
            raise InvalidArgument(
                "unknown_fields",
                f'"evolve" adds columns to the table, and with {self.argument} only the function may make columns.',
                f'Use "rescue": the function finds them in the column {"_rescued"!r}.',
            )
        for column in to_schema(self.decoded).fields:
            if (kind := _foreign(column.field_type)) is not None:
                problem = f"column {column.name!r} has a {type_text(kind)}, which DataFrames of Spark have not."
                raise InvalidArgument("schema", problem, "Make it a string; the function may cast it.")

    @property
    def decoded(self) -> pa.Schema | None:
        """Columns of the function's input without metadata columns, or None without a function.

        Raises InvalidArgument if neither `schema` nor the format shows the columns.
        """
        if self.function is None:
            return None
        schema = super().design.schema
        if schema is not None:
            return arrow_schema(schema)
        if len(fixed := self.payload.format_row.fixed_columns) and not is_given(self.key_format):
            return fixed
        raise InvalidArgument(
            "schema",
            f"is missing; with {self.argument} it names the columns that the function reads.",
            "Write them as DDL.",
        )

    @property
    def design(self) -> TableDesign:
        """Design of decoded rows: without a function, the table's design.

        With a function, the decoded rows have no table, and the design has only the metadata columns.
        """
        design = super().design
        if self.function is None:
            return design
        return TableDesign(metadata=design.metadata)

    @property
    def table_design(self) -> TableDesign:
        """Design of the table itself; with a function, without any columns.

        The function's result has the columns, and is known only when the function has run. So the design has no part of
        the decoded records: no metadata columns, no schema, no column for unknown fields, and no columns from a
        registry. Errors about the columns name the argument of the function.
        """
        design = super().design
        if self.function is None:
            return design
        nothing = pa.schema([])
        return replace(design, metadata=nothing, schema=None, rescues=False, incoming=None, argument=self.argument)


def _foreign(kind: iceberg.IcebergType) -> iceberg.IcebergType | None:
    """Return the first type unknown to Spark, in a type or nested in the type; or None."""
    match kind:
        case iceberg.StructType():
            inside = [field.field_type for field in kind.fields]
        case iceberg.ListType():
            inside = [kind.element_type]
        case iceberg.MapType():
            inside = [kind.key_type, kind.value_type]
        case _:
            return kind if isinstance(kind, _NOT_OF_SPARK) else None
    return next((foreign for one in inside if (foreign := _foreign(one)) is not None), None)
