"""Fields with another name in the registry's newest schema, landed by Spark's executors."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import SparkSession

from dev.services.registry import Registry
from tests.integration.test_other_names import NEW, OLD, avro
from tests.support.broker import Producing
from tests.support.lake import Lake
from tests.support.lake_reading import one_partition
from tests.support.spark import SparkRun

pytestmark = pytest.mark.integration

name = one_partition


def test_executors_put_fields_with_other_names_into_the_column_that_is_there(
    lake: Lake, name: str, produce: Producing, registry: Registry, spark: SparkSession
) -> None:
    old, new = (registry.register(f"{name}-value", json.dumps(one)) for one in (OLD, NEW))
    given = {"format": "avro", "schema_registry": registry.url, "schema_evolution": "add"}
    run = SparkRun(lake, name, given | {"schema": "id bigint, name string"})
    produce(name, 0, avro(OLD, old, 0, 20))
    run.run(spark)
    produce(name, 0, [*avro(NEW, new, 20, 20), *avro(OLD, old, 40, 20)])
    SparkRun(lake, name, given).run(spark)
    assert lake.column("name") == [f"n{n}" for n in range(60)]
    assert "user_name" not in lake.columns().names
