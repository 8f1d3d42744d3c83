"""Columns of DataFrames and of tables, as inputs and results of functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.schema import Schema

from airflow_lakestream.core.names import METADATA_NAMES
from airflow_lakestream.decode.metadata import metadata_schema
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.schema.columns import METADATA_PREFIX, to_schema
from airflow_lakestream.tables.schema.types import build_schema, fields_from_arrow, type_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def columns_of(result: DataFrame, argument: str) -> tuple[Schema, pa.Schema]:
    """Return the table's columns for a result, all optional, and the metadata columns of the result.

    Raises InvalidArgument for types that tables do not have, and for names that are kept for metadata columns.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        given: pa.Schema = to_arrow_schema(result.schema)
    except Exception as e:  # the type of Spark's error differs; its text is in ours
        raise InvalidArgument(argument, f"it returned a type that tables have not: {e}.", "Cast it.") from e
    names = [name for name in METADATA_NAMES if metadata_schema([name]).names[0] in given.names]
    metadata = metadata_schema(names)
    _check_metadata(given, metadata, argument)
    payload = pa.schema([field for field in given if field.name not in metadata.names])
    if not len(payload):
        raise InvalidArgument(argument, "it returned no columns but metadata columns.")
    schema = build_schema(fields_from_arrow(payload, argument), argument)
    return Schema(*(field.model_copy(update={"required": False}) for field in schema.fields)), metadata


def spark_schema(columns: pa.Schema) -> Any:
    """Return the columns of decoded rows as Spark's."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(columns, prefer_timestamp_ntz=True)


def _check_metadata(given: pa.Schema, metadata: pa.Schema, argument: str) -> None:
    for name in given.names:
        if name.startswith(METADATA_PREFIX) and name not in metadata.names:
            problem = f"it returned {name!r}: names that begin so are kept for metadata columns."
            raise InvalidArgument(argument, problem, "Rename it.")
    wanted = {field.name: field.field_type for field in to_schema(metadata).fields} if len(metadata) else {}
    for field in fields_from_arrow(pa.schema([one for one in given if one.name in wanted]), argument):
        # Ids within a type do not matter.
        if type_text(field.field_type) != type_text(wanted[field.name]):
            problem = f"it returned {field.name!r} as {type_text(field.field_type)}"
            remedy = f"It is {type_text(wanted[field.name])}: leave it as it is, drop it, or rename it."
            raise InvalidArgument(argument, f"{problem}.", remedy)
