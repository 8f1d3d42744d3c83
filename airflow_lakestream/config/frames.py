"""What a landing by Spark is told that puts a function of DataFrames between records and table."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
from pyiceberg import types as iceberg

from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.names import check_function
from airflow_lakestream.core.policies import SqlInput, UnknownFields, is_given
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.schema.columns import to_schema
from airflow_lakestream.tables.schema.types import arrow_schema, type_text

# Types that Spark's DataFrames have not.
_NOT_OF_SPARK = (iceberg.TimeType, iceberg.UUIDType, iceberg.FixedType)


@dataclass(frozen=True, kw_only=True)
class FrameConfig(ExtractConfig):
    """Arguments of `ExtractConfig`, and the function of an app that lands.

    With a function, `schema` names the columns that records are decoded into: those that the function reads. The
    table's columns are those of what it returns; `partition_by`, `sort_order` and `schema_evolution` are about these.

    :param transform: "module:function"; it takes a batch of decoded rows as a DataFrame, and the Spark session, and
        returns the rows of the table. None lands the decoded rows.
    """

    transform: str | None = None

    def __post_init__(self) -> None:
        if is_given(self.transform):
            self._check_transform(check_function(str(self.transform), "transform"))
        super().__post_init__()

    def _check_transform(self, function: str) -> None:
        if is_given(self.sql) or self.sql_input != SqlInput.RAW:
            raise InvalidArgument(
                "sql", f"does not go with transform={function!r}.", "Let the function do what the statement does."
            )
        if self.template.by_record:
            problem = f"{self.table!r}, a table that records choose, does not go with transform={function!r}."
            raise InvalidArgument("table", problem, "Name one table for each topic.")
        if self.unknown_fields == UnknownFields.EVOLVE:
            raise InvalidArgument(
                "unknown_fields",
                '"evolve" adds columns to the table, and with transform these are the function\'s to make.',
                f'Use "rescue": the function finds them in the column {"_rescued"!r}.',
            )
        for column in to_schema(self.decoded).fields:
            if (kind := _foreign(column.field_type)) is not None:
                problem = f"column {column.name!r} has a {type_text(kind)}, which DataFrames of Spark have not."
                raise InvalidArgument("schema", problem, "Make it a string; the function may cast it.")

    @property
    def decoded(self) -> pa.Schema | None:
        """The columns that the function reads, without metadata columns; None without a function."""
        if not is_given(self.transform):
            return None
        schema = super().design.schema
        if schema is not None:
            return arrow_schema(schema)
        if len(fixed := self.payload.row.fixed_columns) and not is_given(self.key_format):
            return fixed
        raise InvalidArgument(
            "schema", "is missing; with transform it names the columns that the function reads.", "Write them as DDL."
        )

    @property
    def design(self) -> TableDesign:
        """How decoded rows are written down; with a function they are not the table's."""
        design = super().design
        if not is_given(self.transform):
            return design
        return TableDesign(metadata=design.metadata)

    @property
    def table_design(self) -> TableDesign:
        """What the table itself is held to, but for its columns, which the function's result tells."""
        design = super().design
        if not is_given(self.transform):
            return design
        return replace(design, metadata=pa.schema([]), schema=None, rescues=False, incoming=None, argument="transform")


def _foreign(kind: iceberg.IcebergType) -> iceberg.IcebergType | None:
    """Return the first type within a type that Spark has not."""
    match kind:
        case iceberg.StructType():
            inside = [field.field_type for field in kind.fields]
        case iceberg.ListType():
            inside = [kind.element_type]
        case iceberg.MapType():
            inside = [kind.key_type, kind.value_type]
        case _:
            return kind if isinstance(kind, _NOT_OF_SPARK) else None
    return next((found for one in inside if (found := _foreign(one)) is not None), None)
