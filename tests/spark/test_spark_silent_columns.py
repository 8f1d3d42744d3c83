"""Fields whose names are not quite those of columns, landed by Spark: refused, or named in the ledger's snapshot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_lakestream.core.column_use import NoFieldHasColumn
from airflow_lakestream.watching.streams.landings import IcebergStreams
from tests.support.broker import Producing
from tests.support.lake import GROUP, Lake
from tests.support.lake_reading import one_partition
from tests.support.spark import SparkRun

pytestmark = pytest.mark.integration

name = one_partition


@pytest.fixture(params=[None, "frame_columns:as_it_is"], ids=["rows", "DataFrames"])
def landing(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Give the arguments of a landing, by executors alone and through a function of DataFrames."""
    (tmp_path / "frame_columns.py").write_text("def as_it_is(rows, spark):\n    return rows\n")
    monkeypatch.syspath_prepend(tmp_path)
    function = {} if request.param is None else {"transform": request.param}
    return {"schema": "orderid bigint, name string", **function}


def test_executors_refuse_records_of_which_no_field_has_a_column(
    lake: Lake, name: str, produce: Producing, spark: SparkSession, landing: dict[str, Any]
) -> None:
    produce(name, 0, [json.dumps({"orderId": n}) for n in range(40)])
    with pytest.raises(NoFieldHasColumn, match="'orderid' is almost called as the field 'orderId'"):
        SparkRun(lake, name, landing).run(spark)
    assert lake.scan().num_rows == 0


def test_a_batch_on_executors_names_silent_columns_in_its_snapshot(
    lake: Lake, name: str, produce: Producing, spark: SparkSession, landing: dict[str, Any]
) -> None:
    produce(name, 0, [json.dumps({"orderId": n, "name": "x"}) for n in range(40)])
    SparkRun(lake, name, landing).run(spark)
    assert IcebergStreams(lake.table()).history(GROUP).silent == {"orderid": "orderId"}
