"""What goes with a function of DataFrames, and what a table says of one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from airflow_lakestream.config.frames import FrameConfig
from airflow_lakestream.core.names import FUNCTIONS
from airflow_lakestream.core.ports import CannotReplace
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.spark.app_config import AppConfig
from airflow_lakestream.tables.rejects.settlement import FORMER_NAMES
from airflow_lakestream.tables.transformed import (
    TransformNote,
    refuse_replacing,
    refuse_without_spark,
    transformed,
    without_positions,
)

GIVEN: dict[str, Any] = {"topic": "t", "table": "lake.t", "consumer_group": "g", "schema": "id bigint, at timestamp"}


def config(**more: Any) -> FrameConfig:
    return FrameConfig(**{**GIVEN, "transform": "sessions:by_user", **more})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"transform": "by_user"}, "transform: 'by_user' is not of the form module:function"),
        ({"sql": "SELECT 1 FROM {{ input }}"}, "sql: does not go with transform='sessions:by_user'"),
        ({"table": "lake.{kind}", "schema": "kind string"}, "table: 'lake.{kind}', a table that records choose"),
        ({"unknown_fields": "evolve", "schema_evolution": "add"}, 'unknown_fields: "evolve" adds columns'),
        ({"schema": None}, "schema: is missing; with transform it names the columns"),
        ({"schema": "a struct<b: array<time>>"}, "schema: column 'a' has a time, which DataFrames of Spark have not"),
        ({"schema": "u uuid"}, "schema: column 'u' has a uuid"),
    ],
)
def test_what_does_not_go_with_a_function_is_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        config(**more)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"stream_transform": "by_user"}, "stream_transform: 'by_user' is not of the form module:function"),
        ({"transform": "sessions:by_user"}, "transform: does not go with stream_transform='sessions:by_user'"),
        ({"sql": "SELECT 1 FROM {{ input }}"}, "sql: does not go with stream_transform="),
        ({"table": "lake.{kind}", "schema": "kind string"}, "table: 'lake.{kind}', a table that records choose"),
        ({"unknown_fields": "evolve", "schema_evolution": "add"}, 'unknown_fields: "evolve" adds columns'),
        ({"schema": None}, "schema: is missing; with stream_transform it names the columns"),
        ({"topic": "^t.*", "table": "lake.{topic}"}, "topic: '^t.*' is a regex"),
        ({"mode": "interval", "interval_start": 0, "interval_end": 9}, 'mode: "interval" does not go with'),
        ({"mode": "ranges", "ranges": [[0, 0, 9]], "replace": True}, 'mode: "ranges" does not go with'),
        ({"replace": True}, 'replace: goes with mode="interval" or "ranges"'),
        ({"on_data_loss": "record"}, 'on_data_loss: "record" does not go with'),
        ({"state_store": "redis"}, "state_store: 'redis'"),
        ({"output_mode": "update"}, "output_mode: 'update' brings rows again that have landed"),
    ],
)
def test_what_does_not_go_with_a_function_of_the_stream_is_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        FrameConfig(**{**GIVEN, "stream_transform": "sessions:by_user", **more})
    assert str(caught.value).startswith(said)


def test_a_function_of_the_stream_is_held_to_nothing_of_the_schema() -> None:
    given = FrameConfig(**GIVEN, stream_transform="sessions:by_user", state_store="rocksdb")
    assert (given.is_stateful, given.function, given.argument) == (True, "sessions:by_user", "stream_transform")
    assert given.decoded is not None
    assert given.table_design.schema is None
    with pytest.raises(InvalidArgument, match="state_store: goes with stream_transform"):
        config(state_store="rocksdb")


def test_records_are_decoded_by_the_schema_and_the_table_is_held_to_nothing_of_it() -> None:
    given = config(unknown_fields="rescue", partition_by=["days(start)"])
    assert given.decoded is not None
    assert given.decoded.names == ["id", "at", "_rescued"]
    assert (given.table_design.schema, len(given.table_design.metadata)) == (None, 0)
    assert given.table_design.partition_by == ("days(start)",)
    assert given.design.metadata.names[0] == "_kafka_topic"
    assert config(schema=None, format="raw").decoded == pa.schema([("key", pa.binary()), ("value", pa.binary())])


@pytest.mark.parametrize("empty", [None, "", "None"])
def test_without_a_function_a_landing_is_what_it_was(empty: str | None) -> None:
    given = config(transform=empty)
    assert given.decoded is None
    for design in (given.design, given.table_design):
        assert design.schema is not None
        assert design.metadata.names[0] == "_kafka_topic"


def test_apps_of_mirrors_take_no_function() -> None:
    app = {"kafka": {"bootstrap.servers": "b"}, "catalog": {}, "checkpoint_location": "/c"}
    for argument in FUNCTIONS:
        landing = {**GIVEN, argument: "sessions:by_user"}
        assert AppConfig.parse({"app": "kafka_to_iceberg", "landing": landing, **app})
        with pytest.raises(InvalidArgument, match=rf"landing\.{argument}: is not a setting of the app"):
            AppConfig.parse({"app": "cdc_to_iceberg", "landing": landing, **app})


def test_a_table_remembers_rows_without_positions_whatever_lands_later_and_by_all_names_of_the_group() -> None:
    rows, totals = TransformNote("f:rows", "1", positions=True), TransformNote("f:totals", "2", positions=False)
    first = rows.noted("g", None)
    refuse_replacing("lake.t", first, "g")
    with pytest.raises(CannotReplace, match=r"are made by f:rows, which a repair does not run"):
        refuse_without_spark("lake.t", first, "g", "a repair")
    later = rows.noted("g", transformed(totals.noted("g", transformed(first, "g")), "g"))
    with pytest.raises(CannotReplace, match=r"rows that f:rows made .* without topic, partition and offset"):
        refuse_replacing("lake.t", later, "g")
    with pytest.raises(CannotReplace, match="without topic"):
        refuse_replacing("lake.t", {**later, FORMER_NAMES + "renamed": '["g"]'}, "renamed")
    assert list(without_positions(later)) == ["g"]
    refuse_replacing("lake.t", later, "another")
    assert without_positions(first) == {}
