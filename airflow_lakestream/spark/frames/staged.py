"""Staged rows read by Spark's own reader of Parquet, and not through Python.

Only types that Spark surely reads unchanged, in a file system that Spark reaches. Everything else goes through
Python.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import types as arrow

from airflow_lakestream.spark.causes import cause_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

# Unchanged: no calendar from before 1582, and no file left out that a session may leave out.
_READING = {"datetimeRebaseMode": "CORRECTED", "ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}
# Spark takes other characters of a path for a pattern, and leaves out files whose names begin with _ or a dot.
_PLAIN_PATH, _PLAIN_FILE = re.compile(r"[^*?\[\]{}\\%]+"), re.compile(r"[^_.][^/]*")
_PLAIN_TYPES = (
    *(arrow.is_boolean, arrow.is_int32, arrow.is_int64, arrow.is_float32, arrow.is_float64, arrow.is_date32),
    *(arrow.is_string, arrow.is_large_string, arrow.is_binary, arrow.is_large_binary, arrow.is_decimal128),
)


def read_by_spark(spark: SparkSession, columns: pa.Schema, schema: Any, paths: Sequence[str]) -> DataFrame | None:
    """Return the rows of files written by Python with these columns; None if Spark might misread the files.

    :param schema: the columns as Spark's.
    """
    if not paths or not _are_plain(list(columns)):
        return None
    known = [_as_hadoop(path) for path in paths]
    places = {urlsplit(path)[:2]: path for path in known}.values()
    if not all(map(_is_plain_path, known)) or not all(_reaches(spark, path) for path in places):
        return None
    return spark.read.options(**_READING).schema(schema).parquet(*known)


def _as_hadoop(path: str) -> str:
    # The scheme of Hadoop's client for S3.
    return re.sub("^s3:", "s3a:", path)


def _are_plain(fields: Sequence[pa.Field]) -> bool:
    names = [field.name.lower() for field in fields]
    # Spark compares names without regard to case, unless a session is configured otherwise.
    return (
        len(set(names)) == len(names)
        and all(re.fullmatch(r"\w+", name) for name in names)
        and all(map(_is_plain_type, (field.type for field in fields)))
    )


def _is_plain_type(kind: pa.DataType) -> bool:
    if arrow.is_timestamp(kind):
        return bool(kind.unit == "us")
    if arrow.is_struct(kind):
        return _are_plain(list(kind))
    if arrow.is_list(kind) or arrow.is_large_list(kind):
        return _is_plain_type(kind.value_type)
    if arrow.is_map(kind):
        return _is_plain_type(kind.key_type) and _is_plain_type(kind.item_type)
    return any(is_one(kind) for is_one in _PLAIN_TYPES)


def _is_plain_path(path: str) -> bool:
    return bool(_PLAIN_PATH.fullmatch(path) and _PLAIN_FILE.fullmatch(path.rpartition("/")[2]))


def _reaches(spark: SparkSession, path: str) -> bool:
    from py4j.protocol import Py4JJavaError

    jvm = spark.sparkContext._jvm
    assert jvm is not None, "the session runs"
    try:
        place = jvm.org.apache.hadoop.fs.Path(path)
        return bool(place.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()).exists(place))
    except Py4JJavaError as e:
        log.info("Spark does not reach %s, so staged rows come through Python: %s", path, cause_of(e))
        return False
