"""The function of a landing: found by name, checked before anything is read, identified by its source, with columns."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.schema import Schema

from airflow_lakestream.core.names import METADATA_NAMES, TRANSFORM, check_function
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.decode.metadata import metadata_schema
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal, Transient
from airflow_lakestream.spark.causes import cause_of
from airflow_lakestream.tables.schema.columns import METADATA_PREFIX, to_schema
from airflow_lakestream.tables.schema.types import build_schema, fields_from_arrow, type_text
from airflow_lakestream.tables.takeout import shortly

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# Errors that a function raises before it handles any row, and raises again with each call.
_FINAL_ERRORS = (
    TypeError,
    ValueError,
    NameError,
    AttributeError,
    LookupError,
    ArithmeticError,
    ImportError,
    AssertionError,
)


class TransformFailed(LakestreamError, Transient):
    """Error of a landing's function, or of Spark with the function's result, for a batch.

    :param ranges: the batch's offsets.
    """

    def __init__(self, function: str, table: str, ranges: RangeSet, cause: str) -> None:
        self.function, self.table, self.ranges = function, table, ranges
        batch = f"{shortly(ranges)} for {table}" if ranges else f"no record for {table}"
        super().__init__(f"{function} failed on {batch}: {cause} Nothing of this batch was landed.")


class TransformRefused(TransformFailed, Terminal):
    """Error that each try repeats until the function is changed."""


@dataclass(frozen=True)
class FrameFunction:
    """A user's function of (batch: DataFrame, spark: SparkSession) that returns a DataFrame.

    :param name: module:function.
    :param fingerprint: fingerprint of the module's source.
    :param argument: the user's argument that names the function: `transform` for a function of batches, or
        `stream_transform` for a function of streaming DataFrames.
    """

    name: str
    call: Callable[[Any, Any], Any]
    fingerprint: str
    argument: str = TRANSFORM

    def of(self, batch: DataFrame, spark: SparkSession, table: str, ranges: RangeSet) -> DataFrame:
        """Return the function's result for a batch.

        Raises TransformFailed, or TransformRefused if each try would fail again.

        :param table: the landing's table, for errors.
        :param ranges: the batch's offsets, for errors.
        """
        from pyspark.errors import AnalysisException
        from pyspark.sql import DataFrame

        try:
            result = self.call(batch, spark)
        except KeyboardInterrupt:
            raise
        # Also SystemExit: within a query, Spark would wait for the batch without end.
        except BaseException as e:
            is_final = isinstance(e, (*_FINAL_ERRORS, AnalysisException, SystemExit))
            error_class = TransformRefused if is_final else TransformFailed
            raise error_class(self.name, table, ranges, _error_text(e)) from e
        if not isinstance(result, DataFrame):
            cause = f"it returned a {type(result).__name__} instead of a DataFrame."
            raise TransformRefused(self.name, table, ranges, cause)
        if result.isStreaming != batch.isStreaming:
            cause = "a streaming DataFrame for a batch" if result.isStreaming else "a DataFrame that is not a stream"
            raise TransformRefused(self.name, table, ranges, f"it returned {cause}.")
        return result


def load_function(name: str, argument: str = TRANSFORM) -> FrameFunction:
    """Import a function, and check that it takes two arguments. Raises InvalidArgument with the reason.

    :param name: `module:function`.
    :param argument: the user's argument that names the function, for errors.
    """
    module_name, _, attribute = check_function(name, argument).partition(":")
    try:
        module = importlib.import_module(module_name)
    # Any error of the module, also SystemExit, is the argument's fault; only Ctrl-C is not.
    except BaseException as e:
        if isinstance(e, KeyboardInterrupt):
            raise
        problem = f"{module_name} of {name!r} can't be imported ({_error_text(e).rstrip('.')})."
        remedy = "Put it next to the DAG, install it, or submit it by --py-files."
        raise InvalidArgument(argument, problem, remedy) from e
    call = getattr(module, attribute, None)
    path = getattr(module, "__file__", None) or module_name
    if call is None:
        raise InvalidArgument(argument, f"there is no {attribute} in {path}.", "Correct the name behind the colon.")
    if not callable(call):
        raise InvalidArgument(argument, f"{attribute} in {path} is a {type(call).__name__}, not a function.")
    try:
        inspect.signature(call).bind(None, None)
    except (TypeError, ValueError) as e:
        remedy = f"Write def {attribute}(batch: DataFrame, spark: SparkSession) -> DataFrame."
        raise InvalidArgument(argument, f"{name!r} can't be called with two arguments: {e}.", remedy) from None
    return FrameFunction(name, call, _fingerprint(module), argument)


def _fingerprint(module: Any) -> str:
    """Return a fingerprint of a module's source; a module without source has the fingerprint of an empty text."""
    # The loader is asked for the source, since a module in a zip has no file of its own.
    loader: Any = getattr(module.__spec__, "loader", None)
    source = loader.get_source(module.__name__) if hasattr(loader, "get_source") else None
    return hashlib.sha256((source or "").encode()).hexdigest()[:16]


def _error_text(error: BaseException) -> str:
    """Return an error's text with the root cause for an error of Spark, else with the file and line of Python code."""
    if type(error).__module__.startswith(("pyspark.", "py4j.")) and isinstance(error, Exception):
        return cause_of(error)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}."


def columns_of(result: DataFrame, argument: str) -> tuple[Schema, pa.Schema]:
    """Return the payload columns of a function's result, all optional, and the metadata columns of the result.

    Raises InvalidArgument for types that tables do not have, and for names that are kept for metadata columns.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        columns: pa.Schema = to_arrow_schema(result.schema)
    except Exception as e:  # the error's type differs between versions of Spark
        raise InvalidArgument(argument, f"it returned a type that tables have not: {e}.", "Cast it.") from e
    names = [name for name in METADATA_NAMES if metadata_schema([name]).names[0] in columns.names]
    metadata = metadata_schema(names)
    _check_metadata(columns, metadata, argument)
    payload = pa.schema([field for field in columns if field.name not in metadata.names])
    if not len(payload):
        raise InvalidArgument(argument, "it returned no columns but metadata columns.")
    schema = build_schema(fields_from_arrow(payload, argument), argument)
    return Schema(*(field.model_copy(update={"required": False}) for field in schema.fields)), metadata


def spark_schema(columns: pa.Schema) -> Any:
    """Return Spark's schema (a StructType) for the columns of decoded rows."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(columns, prefer_timestamp_ntz=True)


def _check_metadata(columns: pa.Schema, metadata: pa.Schema, argument: str) -> None:
    """Check names and types of a result's metadata columns. Raises InvalidArgument."""
    for name in columns.names:
        if name.startswith(METADATA_PREFIX) and name not in metadata.names:
            problem = f"it returned {name!r}: names that begin so are kept for metadata columns."
            raise InvalidArgument(argument, problem, "Rename it.")
    wanted = {field.name: field.field_type for field in to_schema(metadata).fields} if len(metadata) else {}
    for field in fields_from_arrow(pa.schema([column for column in columns if column.name in wanted]), argument):
        # Compared as text, since the ids of nested fields do not matter.
        returned_type, wanted_type = type_text(field.field_type), type_text(wanted[field.name])
        if returned_type != wanted_type:
            remedy = f"It is {wanted_type}: leave it as it is, drop it, or rename it."
            raise InvalidArgument(argument, f"it returned {field.name!r} as {returned_type}.", remedy)
