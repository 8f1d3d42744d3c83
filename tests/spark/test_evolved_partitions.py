"""Tables that are partitioned in ways that come by evolution: Spark finds by each filter what it finds without one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType

from tests.support.given_records import GivenLake
from tests.support.partitioning import VALUES, made_of_version_1, partition_by, transforms_of

pytestmark = pytest.mark.integration

# Spark knows no times of the day, and misses UUIDs in files whose least and greatest have different first bits.
KINDS = {f"c{at}": kind for at, kind in enumerate(VALUES) if kind not in ("time", "uuid")}


def record(at: int) -> bytes:
    return json.dumps({name: VALUES[kind][at % len(VALUES[kind])] for name, kind in KINDS.items()}).encode()


def test_spark_reads_tables_with_partition_fields_of_all_columns(tmp_path: Path, spark: SparkSession) -> None:
    lake = GivenLake(tmp_path)
    records = [record(at) for at in range(12)]
    lake.land(records[:1], schema=", ".join(f"{name} {kind}" for name, kind in KINDS.items()))
    schema = lake.iceberg().schema()
    terms = [(name, one) for name in KINDS for one in transforms_of(schema.find_field(name).field_type)]
    partition_by(lake.iceberg(), *terms)
    assert lake.land(records).counts.rejected == 0
    _assert_filters_equal_a_full_scan(lake, spark, list(KINDS), 12)


def test_spark_reads_a_table_that_was_made_of_version_1_and_whose_partitions_column_was_dropped(
    tmp_path: Path, spark: SparkSession
) -> None:
    lake = GivenLake(tmp_path)
    made_of_version_1(lake)
    for count in (3, 5):
        assert lake.land([json.dumps({"n": n}).encode() for n in range(count)]).counts.rejected == 0
    _assert_filters_equal_a_full_scan(lake, spark, ["n"], 5)


def _assert_filters_equal_a_full_scan(lake: GivenLake, spark: SparkSession, columns: list[str], count: int) -> None:
    read = spark.read.format("iceberg").load(lake.iceberg().metadata_location).cache()
    assert read.count() == count
    pruned = spark.read.format("iceberg").load(lake.iceberg().metadata_location)
    for name in columns:
        text = sf.col(name).cast(StringType())
        for value in {row[0] for row in read.select(text).collect()}:
            # Filtered by files, and by values that no file is pruned for.
            wanted = read.filter(text.eqNullSafe(sf.lit(value))).select("_kafka_offset").collect()
            one = sf.lit(value).cast(read.schema[name].dataType)
            found = pruned.filter(sf.col(name).eqNullSafe(one)).select("_kafka_offset").collect()
            assert sorted(found) == sorted(wanted), (name, value)
    read.unpersist()
