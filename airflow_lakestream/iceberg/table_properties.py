"""Table properties for writers: parsed in a single place, like Iceberg's Java, or refused by name.

All of them are checked before a record is read. Else PyIceberg or Arrow would raise in the middle of a commit, where
the error would look like an error of the catalog, or of the records.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from functools import partial

import pyarrow as pa
from pyiceberg.io.pyarrow import match_metrics_mode
from pyiceberg.table import TableProperties
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.name_mapping import parse_mapping_from_json

from airflow_lakestream.core.policies import MaintainMode
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.retention import RETENTION, RowRetention

log = logging.getLogger(__name__)

_GREATEST_INT, _GREATEST_LONG = 2**31 - 1, 2**63 - 1
# Keys are Java's names of the codecs, values are Arrow's names.
_CODECS = {
    **{name: name for name in ("snappy", "gzip", "brotli", "zstd", "lz4", "none")},
    "uncompressed": "none",
    "lz4_raw": "lz4",
}
# As in Java, only these codecs have a level; for other codecs it is ignored.
_WITH_LEVEL = ("gzip", "brotli", "zstd")
# PyIceberg compares the literal names. Its Snappy needs a package of its own.
_MANIFEST_CODECS = ("gzip", "zstd", "deflate", "zstandard", "bzip2", "null")
_PLACES = TableProperties.WRITE_PY_LOCATION_PROVIDER_IMPL
# Whether landings compact the table; see `run.maintenance.after_landing`.
MAINTAIN = "lakestream.maintain"
_ISOLATION_LEVELS = ("serializable", "snapshot")

# Refuses a property by name and text, with InvalidArgument; the result is ignored.
Check = Callable[[str, str], object]


def check(properties: Mapping[str, str]) -> None:
    """Refuse a property with an unsupported value, by name. Raises InvalidArgument."""
    for name, parse in _PROPERTIES.items():
        if name in properties:
            parse(name, str(properties[name]))
    codec_of(properties)
    if properties.get(_PLACES):
        try:
            load_location_provider("file:///table", dict(properties))
        except (ValueError, TypeError, AttributeError) as e:
            raise _refused(_PLACES, properties, f"can't be loaded: {e}") from e


def codec_of(properties: Mapping[str, str]) -> tuple[str, int | None]:
    """Return Arrow's codec of Parquet files, and the level or None for the usual level. Raises InvalidArgument."""
    name, level_name = TableProperties.PARQUET_COMPRESSION, TableProperties.PARQUET_COMPRESSION_LEVEL
    codec = _CODECS.get(str(properties.get(name, TableProperties.PARQUET_COMPRESSION_DEFAULT)).lower())
    if codec is None or (codec != "none" and not pa.Codec.is_available(codec)):
        raise _refused(name, properties, f"is not a codec that Arrow writes: {', '.join(sorted(_CODECS))}")
    if codec not in _WITH_LEVEL or level_name not in properties or not str(properties[level_name]):
        return codec, None
    least, most = pa.Codec.minimum_compression_level(codec), pa.Codec.maximum_compression_level(codec)
    return codec, _integer(level_name, str(properties[level_name]), least=least, most=most)


def with_known_modes(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties without unknown modes of metrics: as in Java, the usual mode applies."""
    return {name: value for name, value in properties.items() if not _is_mode(name) or _is_known_mode(name, value)}


def number(properties: Mapping[str, str], name: str, default: int) -> int:
    """Return the number in a checked property, or the default."""
    text = properties.get(name)
    return int(text) if text else default


def _is_mode(name: str) -> bool:
    return name == TableProperties.DEFAULT_WRITE_METRICS_MODE or name.startswith(
        TableProperties.METRICS_MODE_COLUMN_CONF_PREFIX
    )


def _is_known_mode(name: str, value: str) -> bool:
    try:
        match_metrics_mode(value)
    except ValueError as e:
        log.warning("%s is %r, and the usual mode applies: %s", name, value, e)
        return False
    return True


def _refused(name: str, properties: Mapping[str, str], reason: str) -> InvalidArgument:
    value = properties.get(name)
    return InvalidArgument("table_properties", f"{name} is {value!r}, which {reason}.", "Correct it, or leave it out.")


def _integer(name: str, text: str, *, least: int = -_GREATEST_LONG, most: int = _GREATEST_LONG) -> int | None:
    """Return a property as an integer, or None for an empty text. Raises InvalidArgument."""
    # PyIceberg takes an empty text for no value.
    if not text:
        return None
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise _refused(name, {name: text}, "is not a whole number: sizes are in bytes, times in milliseconds")
    if not least <= int(text) <= most:
        raise _refused(name, {name: text}, f"is not between {least} and {most}")
    return int(text)


def _flag(name: str, text: str) -> None:
    # Java reads all texts except "true" as false, PyIceberg reads "yes" and "1" as true.
    if text and text.lower() not in ("true", "false"):
        raise _refused(name, {name: text}, "is neither true nor false")


def _one_of(allowed: tuple[str, ...], name: str, text: str) -> None:
    if text not in allowed:
        raise _refused(name, {name: text}, f"is not one of {', '.join(allowed)}")


def _mapping(name: str, text: str) -> None:
    try:
        parse_mapping_from_json(text)
    except ValueError as e:
        raise _refused(name, {name: text}, f"is not a mapping of names: {e}") from e


def _retention(name: str, text: str) -> None:
    try:
        RowRetention.parse(text)
    except InvalidArgument as e:
        raise InvalidArgument("table_properties", str(e)) from e


_positive = partial(_integer, least=1, most=_GREATEST_INT)
_positive_long = partial(_integer, least=1)
_PROPERTIES: Mapping[str, Check] = {
    **dict.fromkeys(
        (
            TableProperties.PARQUET_ROW_GROUP_LIMIT,
            TableProperties.PARQUET_PAGE_SIZE_BYTES,
            TableProperties.PARQUET_PAGE_ROW_LIMIT,
            TableProperties.PARQUET_DICT_SIZE_BYTES,
        ),
        _positive,
    ),
    **dict.fromkeys(
        (TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, TableProperties.MANIFEST_TARGET_SIZE_BYTES), _positive_long
    ),
    **dict.fromkeys(
        (
            TableProperties.WRITE_PARTITION_SUMMARY_LIMIT,
            TableProperties.MANIFEST_MIN_MERGE_COUNT,
            TableProperties.METADATA_PREVIOUS_VERSIONS_MAX,
            TableProperties.MAX_SNAPSHOT_AGE_MS,
            TableProperties.MIN_SNAPSHOTS_TO_KEEP,
            TableProperties.COMMIT_NUM_RETRIES,
            TableProperties.COMMIT_MIN_RETRY_WAIT_MS,
            TableProperties.COMMIT_MAX_RETRY_WAIT_MS,
            TableProperties.COMMIT_TOTAL_RETRY_TIME_MS,
        ),
        partial(_integer, least=0),
    ),
    **dict.fromkeys(
        (
            "gc.enabled",
            TableProperties.MANIFEST_MERGE_ENABLED,
            TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED,
            TableProperties.OBJECT_STORE_ENABLED,
            TableProperties.WRITE_OBJECT_STORE_PARTITIONED_PATHS,
        ),
        _flag,
    ),
    TableProperties.WRITE_AVRO_COMPRESSION: partial(_one_of, _MANIFEST_CODECS),
    TableProperties.WRITE_DELETE_ISOLATION_LEVEL: partial(_one_of, _ISOLATION_LEVELS),
    TableProperties.WRITE_UPDATE_ISOLATION_LEVEL: partial(_one_of, _ISOLATION_LEVELS),
    TableProperties.DEFAULT_NAME_MAPPING: _mapping,
    MAINTAIN: partial(_one_of, tuple(MaintainMode)),
    RETENTION: _retention,
}
