"""Texts of arguments in a DAG that renders templates as native objects: what Python would read as literals, too."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG
from airflow.sdk.definitions.context import Context
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.operators.asset_partitions import AssetPartitionsOperator
from airflow_lakestream.operators.audit import LakestreamAuditOperator
from airflow_lakestream.operators.flink_script import FlinkScriptOperator
from airflow_lakestream.operators.flink_sql import FlinkSqlOperator
from airflow_lakestream.operators.kafka_connect import KafkaConnectOperator
from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator
from airflow_lakestream.operators.kafka_mirror import KafkaMirrorOperator
from airflow_lakestream.operators.maintain import LakestreamMaintainOperator
from airflow_lakestream.operators.mirror_tag import LakestreamTagOperator
from airflow_lakestream.operators.rendering import annotations_of
from airflow_lakestream.operators.replay import LakestreamReplayOperator
from airflow_lakestream.operators.spark_streaming_submit import SparkStreamingSubmitOperator
from airflow_lakestream.operators.table_contents import TableContentsOperator
from airflow_lakestream.sensors.checkpoint_lag import CheckpointLagSensor
from airflow_lakestream.sensors.iceberg_snapshot_freshness import IcebergSnapshotFreshnessSensor
from airflow_lakestream.sensors.retention_risk import RetentionRiskSensor

TABLE = {"table": "lake.t"}
MADE: list[Callable[..., Any]] = [
    lambda: KafkaExtractOperator(task_id="t", topic="t", **TABLE),
    lambda: KafkaMirrorOperator(task_id="t", topic="t", **TABLE),
    lambda: LakestreamAuditOperator(task_id="t", **TABLE),
    lambda: LakestreamReplayOperator(task_id="t", **TABLE),
    lambda: LakestreamMaintainOperator(task_id="t", tables=["lake.t"]),
    lambda: LakestreamTagOperator(task_id="t", tag="day", tables=["lake.t"], landing={}),
    lambda: TableContentsOperator(task_id="t", **TABLE),
    lambda: AssetPartitionsOperator(task_id="t", since="2026-01-01T00:00:00Z", **TABLE),
    lambda: KafkaConnectOperator(task_id="t", connector="{{ params.text }}", config={}),
    lambda: SparkStreamingSubmitOperator(task_id="t", app="kafka_to_iceberg", app_config={"topic": "t", **TABLE}),
    lambda: FlinkSqlOperator(task_id="t", topic="t", columns="id bigint", **TABLE),
    lambda: FlinkScriptOperator(task_id="t", jar="{{ params.text }}"),
    lambda: CheckpointLagSensor(task_id="t", **TABLE),
    lambda: IcebergSnapshotFreshnessSensor(task_id="t", max_age=60, **TABLE),
    lambda: RetentionRiskSensor(task_id="t", **TABLE),
]
LITERALS = [
    *("20240101", "1_000", "1", "-1", "0x1F", "1e5", "1.10", "True", "None", "...", " 5", "1\n", "a\r\nb"),
    *("'x'", '"x"', "b'x'", "[1]", "(1,)", "{'a': 1}", '{"type": "int"}', "{1}", "1 + 2j", "[1, 'a']"),
]
# No marks of Jinja's, and no name of a file.
TEXTS = st.one_of(st.sampled_from(LITERALS), st.text(min_size=1)).filter(
    lambda text: not any(mark in text for mark in ("{{", "{%", "{#")) and not text.endswith(".sql")
)


@pytest.fixture(params=MADE, ids=range(len(MADE)))
def operator(request: pytest.FixtureRequest) -> Any:
    with DAG("native", schedule=None, render_template_as_native_obj=True):
        return request.param()


def rendered(operator: Any, given: dict[str, Any], **params: Any) -> dict[str, Any]:
    """Return the arguments as a task has them that is given some, as in a DAG's file."""
    for name, value in given.items():
        setattr(operator, name, value)
    ti = SimpleNamespace(task_id="t")
    operator.render_template_fields(Context(dag=operator.dag, ti=ti, params=params))
    return {name: getattr(operator, name) for name in given}


def texts_of(operator: Any) -> list[str]:
    """Return the arguments that are texts, and may be templates."""
    own = annotations_of(type(operator))
    found = [name for name in operator.template_fields if set(own[name].split(" | ")) <= {"str", "None"}]
    assert {"table", "kafka_conn_id", "iceberg_conn_id", "checkpoint_location"} & set(found)
    return found


def test_every_operator_and_sensor_is_looked_at_with_all_its_fields(operator: Any) -> None:
    assert set(operator.template_fields) - set(annotations_of(type(operator))) == set()


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=10)
def test_a_text_stays_the_text_that_it_is(operator: Any, data: st.DataObject) -> None:
    wanted = {name: data.draw(TEXTS, name) for name in texts_of(operator)}
    assert rendered(operator, wanted) == wanted
    from_params = {name: "{{ params.texts['" + name + "'] }}" for name in wanted}
    assert rendered(operator, from_params, texts=wanted) == wanted
    in_parts = {name: text + "{% if 1 %}1{% endif %}" for name, text in from_params.items()}
    assert rendered(operator, in_parts, texts=wanted) == {name: f"{text}1" for name, text in wanted.items()}


@given(TEXTS, st.sampled_from(["{}", "{{{{ params.text }}}}"]))
def test_a_text_in_a_list_or_a_mapping_stays_so_too(text: str, form: str) -> None:
    with DAG("native", schedule=None, render_template_as_native_obj=True):
        extract = KafkaExtractOperator(task_id="a", topic="t", **TABLE)
        spark = SparkStreamingSubmitOperator(task_id="b", app="kafka_to_iceberg", app_config={"topic": "t", **TABLE})
        connect = KafkaConnectOperator(task_id="c", connector="{{ params.text }}", config={})
    told = text if form == "{}" else form.format()
    given_: dict[str, Any] = {"table_properties": {"comment": told}, "rename_columns": {"a": told}, "key": [told]}
    wanted = {"table_properties": {"comment": text}, "rename_columns": {"a": text}}
    assert rendered(extract, {name: given_[name] for name in wanted}, text=text) == wanted
    assert rendered(extract, {"partition_by": [told]}, text=text) == {"partition_by": [text]}
    app = {"topic": told, "writer_schemas": told, "csv_delimiter": told, "table_properties": {"comment": told}}
    wanted_app = {"topic": text, "writer_schemas": text, "csv_delimiter": text, "table_properties": {"comment": text}}
    assert rendered(spark, {"app_config": app, "conf": {"k": told}}, text=text) == {
        "app_config": wanted_app,
        "conf": {"k": text},
    }
    assert rendered(connect, {"config": {"topics": told}}, text=text) == {"config": {"topics": text}}


@pytest.mark.parametrize(
    ("template", "value", "wanted"),
    [
        # What one expression yields, and what Python reads as a list or a mapping.
        ("{{ params.value }}", ["a", "b"], ["a", "b"]),
        ("{{ params.value }}", None, None),
        ("['{{ params.value }}', 'b']", "a", ["a", "b"]),
        ("{{ params.value }}", "['a', 'b']", ["a", "b"]),
        ("['a']", None, ["a"]),
        ("[1]", None, "[1]"),
        ("{{ params.value }}", "1_000", "1_000"),
    ],
)
def test_an_argument_that_takes_a_list_is_given_one_as_before(template: str, value: Any, wanted: Any) -> None:
    with DAG("native", schedule=None, render_template_as_native_obj=True):
        extract = KafkaExtractOperator(task_id="a", topic="t", **TABLE)
        spark = SparkStreamingSubmitOperator(task_id="b", app="kafka_to_iceberg", app_config={"topic": "t", **TABLE})
    assert rendered(extract, {"partition_by": template}, value=value) == {"partition_by": wanted}
    app = {"partition_by": template}
    assert rendered(spark, {"app_config": app}, value=value) == {"app_config": {"partition_by": wanted}}


def test_numbers_times_and_flags_are_what_the_expressions_yield() -> None:
    with DAG("native", schedule=None, render_template_as_native_obj=True):
        extract = KafkaExtractOperator(task_id="a", topic="t", **TABLE)
    given_ = dict.fromkeys(("max_records", "replace", "interval_start", "max_rejected"), "{{ params.value }}")
    for value in (5, True, 0.5, None):
        assert rendered(extract, given_, value=value) == dict.fromkeys(given_, value)


def test_a_whole_number_for_a_text_is_its_digits() -> None:
    with DAG("native", schedule=None, render_template_as_native_obj=True):
        extract = KafkaExtractOperator(task_id="a", topic="t", **TABLE)
    assert rendered(extract, {"topic": "{{ params.day }}"}, day=20240101) == {"topic": "20240101"}


@pytest.mark.parametrize("value", [1.1, True, [1], {"a": 1}, None, b"x"], ids=str)
@pytest.mark.parametrize("native", [False, True])
def test_what_is_no_text_is_refused_by_name_and_not_tried_again(value: Any, native: bool) -> None:
    with DAG("native", schedule=None, render_template_as_native_obj=native):
        extract = KafkaExtractOperator(task_id="a", topic="t", **TABLE)
    ways = ["{{ params.value }}", SimpleNamespace(resolve=lambda context: value)] if native else [value]
    for way in ways:
        with pytest.raises(AirflowFailException, match=r"^topic: (.* not a text\.|is missing)"):
            rendered(extract, {"topic": way}, value=value)


def test_a_configuration_that_is_given_no_text_says_so() -> None:
    config = {"topic": "t", "table": "lake.t", "consumer_group": "g"}
    assert ExtractConfig(**{**config, "topic": 20240101, "consumer_group": 1000}).topic == "20240101"
    for name, value in (("csv_delimiter", 1.0), ("topic", None), ("table", ["a"]), ("format", True)):
        with pytest.raises(InvalidArgument, match=f"^{name}: "):
            ExtractConfig(**{**config, name: value})


@pytest.mark.parametrize("native", [False, True])
def test_a_sensor_whose_texts_the_triggerer_would_not_keep_begins_in_a_worker(native: bool) -> None:
    told: dict[str, Any] = {"table": "lake.t", "consumer_group": "1_000", "max_age": "1h", "start_from_trigger": True}
    with (
        DAG("native", schedule=None, render_template_as_native_obj=native),
        warnings.catch_warnings(record=True) as said,
    ):
        warnings.simplefilter("always")
        sensor = IcebergSnapshotFreshnessSensor(task_id="s", **told)
    assert (sensor.start_from_trigger, sensor.deferrable) == (not native, True)
    assert any("keeps no texts with render_template_as_native_obj" in str(one.message) for one in said) is native
