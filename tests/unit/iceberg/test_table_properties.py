"""Every property that says how a table is written, with odd values: followed as in Java, or refused by its name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg import table_properties
from tests.support.given_records import GivenLake

CODEC, LEVEL = "write.parquet.compression-codec", "write.parquet.compression-level"
POSITIVE = (
    "write.parquet.row-group-limit",
    "write.parquet.page-size-bytes",
    "write.parquet.page-row-limit",
    "write.parquet.dict-size-bytes",
    "write.target-file-size-bytes",
    "commit.manifest.target-size-bytes",
)
FROM_ZERO = (
    "write.summary.partition-limit",
    "write.metadata.previous-versions-max",
    "commit.manifest.min-count-to-merge",
    "commit.retry.num-retries",
    "commit.retry.min-wait-ms",
    "commit.retry.max-wait-ms",
    "commit.retry.total-timeout-ms",
    "history.expire.max-snapshot-age-ms",
    "history.expire.min-snapshots-to-keep",
)
FLAGS = (
    "gc.enabled",
    "commit.manifest-merge.enabled",
    "write.metadata.delete-after-commit.enabled",
    "write.object-storage.enabled",
    "write.object-storage.partitioned-paths",
)
MODES = ("write.metadata.metrics.default", "write.metadata.metrics.column.s")
# Each with what is followed, and with what is refused.
VALUES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    **dict.fromkeys(POSITIVE, (("1", "+7", "4096"), ("0", "-1", "1MB", "1_000", " 1", "1.5", "99999999999999999999"))),
    **dict.fromkeys(FROM_ZERO, (("0", "1", "100"), ("-1", "x", "5d", "1_000", "1.0"))),
    **dict.fromkeys(FLAGS, (("true", "false", "TRUE", "False"), ("yes", "1", "x"))),
    **dict.fromkeys(MODES, (("none", "Counts", "FULL", "truncate(3)", "truncate(0)", "truncate", "all", ""), ())),
    CODEC: (
        ("snappy", "SNAPPY", "gzip", "ZSTD", "uncompressed", "UNCOMPRESSED", "lz4", "LZ4_RAW", "brotli"),
        ("lzo", "LZO", "zstd(3)", "bzip2", ""),
    ),
    LEVEL: (("1", "3", "22"), ("high", "1.5", "23", "99")),
    "write.avro.compression-codec": (("gzip", "zstd"), ("uncompressed", "GZIP", "snappy", "lzma", "")),
    "write.delete.isolation-level": (("serializable", "snapshot"), ("none", "read", "")),
    "write.update.isolation-level": (("serializable", "snapshot"), ("none", "read", "")),
    "write.format.default": (("parquet", "PARQUET"), ("orc", "avro", "csv")),
    "schema.name-mapping.default": (("[]",), ("{", "x", '{"a": 1}')),
    "write.py-location-provider.impl": ((), ("x", "no.such.Provider", "builtins.str")),
    "lakestream.snapshots.keep": (("1", "all", ""), ("0", "x", "-1", "1.5")),
    # What nobody here reads is passed over, as in Java.
    "write.parquet.row-group-size-bytes": (("1MB", "x"), ()),
    "write.parquet.bloom-filter-max-bytes": (("x",), ()),
    "read.split.target-size": (("128MB",), ()),
    "no.such.property": (("x",), ()),
}


def followed() -> Iterator[dict[str, str]]:
    """Yield tables' properties: each has a value of each property, and together they have all."""
    most = max(len(good) for good, _ in VALUES.values())
    for number in range(most):
        yield {name: good[number % len(good)] for name, (good, _) in VALUES.items() if good and name != LEVEL}
    yield from ({LEVEL: value} for value in VALUES[LEVEL][0])


def refused() -> Iterator[tuple[str, str]]:
    return ((name, value) for name, (_, bad) in VALUES.items() for value in bad)


@pytest.mark.filterwarnings("ignore:Parquet files are written without")
@pytest.mark.parametrize("properties", followed())
def test_what_java_takes_or_shrugs_off_is_landed_with(tmp_path: Path, properties: dict[str, str]) -> None:
    lake = GivenLake(tmp_path)
    for number in (1, 2):
        lake.land([b'{"s": "a"}', b'{"s": "b"}'][:number], table_properties=properties, partition_by=["s"])
    assert [row["s"] for row in lake.rows()] == ["a", "b"]


@pytest.mark.parametrize(("name", "value"), refused())
def test_any_other_value_is_refused_by_the_propertys_name(tmp_path: Path, name: str, value: str) -> None:
    properties = {name: value, **({CODEC: "zstd"} if name == LEVEL else {})}
    with pytest.raises(InvalidArgument, match=rf"^table_properties: {name} "):
        GivenLake(tmp_path).land([b'{"s": "a"}'], table_properties=properties)


# PyIceberg itself commits no table with another provider of locations than one that can be loaded.
@pytest.mark.parametrize("name", [name for name, (_, bad) in VALUES.items() if bad and "location-provider" not in name])
def test_a_table_that_another_engine_gave_it_is_refused_before_reading(tmp_path: Path, name: str) -> None:
    lake = GivenLake(tmp_path)
    lake.land([b'{"s": "a"}'])
    with lake.iceberg().transaction() as transaction:
        transaction.set_properties({name: VALUES[name][1][0]})
    with pytest.raises(InvalidArgument, match=rf"^table_properties: {name} "):
        lake.land([b'{"s": "a"}', b'{"s": "b"}'])
    assert len(lake.iceberg().metadata.snapshots) == 1
    assert lake.rejected() == {}


@pytest.mark.parametrize(
    ("properties", "codec"),
    [
        ({CODEC: "UNCOMPRESSED"}, "UNCOMPRESSED"),
        ({CODEC: "Snappy", LEVEL: "high"}, "SNAPPY"),
        ({CODEC: "uncompressed", LEVEL: "9"}, "UNCOMPRESSED"),
        ({CODEC: "gzip", LEVEL: "9"}, "GZIP"),
        ({LEVEL: "-5"}, "ZSTD"),
    ],
    ids=str,
)
def test_a_level_goes_with_the_codecs_that_have_some(tmp_path: Path, properties: dict[str, str], codec: str) -> None:
    lake = GivenLake(tmp_path)
    lake.land([b'{"s": "a"}'], table_properties=properties)
    [path] = lake.files()
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == codec


def test_an_unknown_mode_of_metrics_is_that_of_the_table(tmp_path: Path) -> None:
    assert table_properties.with_known_modes({MODES[0]: "full", MODES[1]: "all", "x": "all"}) == {
        MODES[0]: "full",
        "x": "all",
    }
