"""Several sources, sinks and sensors in one file: their tasks, their groups, and what is said of each mistake."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.pipelines.check import check
from airflow_lakestream.pipelines.folder import read_folder
from airflow_lakestream.pipelines.model import json_schema
from airflow_lakestream.pipelines.operator import calls_of, python_of
from tests.unit.pipelines.test_files import compiled, lookup, problems, problems_of

SHOP = """\
metadata:
  name: shop
sources:
  orders: {type: kafka, topic: orders, consumer_group: orders-lake}
  clicks:
    type: kafka
    topic: clicks
transformations:
  - name: parsed
    type: sql_transform
    input: clicks
    sql: "SELECT json_value(value, '$.id')::BIGINT AS id, event_timestamp AS seen FROM {{ input }}"
  - name: known
    type: sql_transform
    input: parsed
    sql: SELECT id, seen FROM {{ input }} WHERE id IS NOT NULL
sinks:
  orders_lake:
    type: iceberg
    table: lake.orders
  clicks_lake:
    type: iceberg
    table: lake.clicks
    input: known
  all-clicks:
    type: delta
    table: /lake/clicks
    input: parsed
    consumer_group: all-clicks
orchestration:
  engine: extract
  deferrable: true
  sensors:
    prices:
      type: freshness
      table: lake.prices
      max_age: ${BOUND}
      sinks: orders_lake
      timeout: 15m
    behind:
      type: lag
      of: orders_lake
      when: beside
      max_lag_records: 10
quality:
  freshness: 15m
"""


def line(text: str) -> int:
    return SHOP[: SHOP.index(text)].count("\n") + 1


def test_each_sink_is_a_task_with_its_own_statement_and_group(tmp_path: Path) -> None:
    found = compiled(tmp_path, SHOP)
    assert [str(one.consumer_group) for one in check(found)] == ["orders-lake", "shop", "all-clicks"]
    calls = {call.task_id: call for call in calls_of(found)}
    assert {name: (call.name, call.after) for name, call in calls.items()} == {
        "wait_prices": ("IcebergSnapshotFreshnessSensor", ()),
        "wait_behind": ("CheckpointLagSensor", ()),
        "land": ("KafkaExtractOperator", ("wait_prices",)),
        "land_clicks_lake": ("KafkaExtractOperator", ()),
        "land_all-clicks": ("KafkaExtractOperator", ()),
        "fresh": ("CheckpointLagSensor", ("land",)),
        "fresh_clicks_lake": ("CheckpointLagSensor", ("land_clicks_lake",)),
        "fresh_all-clicks": ("CheckpointLagSensor", ("land_all-clicks",)),
    }
    assert "sql" not in calls["land"].arguments
    assert calls["land_clicks_lake"].arguments["sql"].startswith('WITH "parsed" AS (')
    assert calls["land_all-clicks"].arguments["sql"].startswith("SELECT json_value")
    assert calls["wait_prices"].arguments == {
        "table": "lake.prices",
        "max_age": "1h",
        "timeout": 900.0,
        "deferrable": True,
    }
    assert calls["wait_behind"].arguments == {
        "table": "lake.orders",
        "table_format": "iceberg",
        "consumer_group": "orders-lake",
        "kafka_conn_id": "kafka_default",
        "max_lag_records": 10,
        "deferrable": True,
    }
    assert calls["fresh_all-clicks"].arguments == {
        "table": "/lake/clicks",
        "table_format": "delta",
        "consumer_group": "all-clicks",
        "kafka_conn_id": "kafka_default",
        "max_lag_seconds": "15m",
        "fail_when_behind": True,
        "deferrable": True,
    }


def test_names_of_a_sink_do_not_change_with_the_others(tmp_path: Path) -> None:
    alone = SHOP.replace(SHOP[SHOP.index("  all-clicks:") : SHOP.index("orchestration:")], "")

    def named(text: str, engine: str) -> dict[str, Any]:
        found = compiled(tmp_path, text, engine)
        return {call.task_id: call.arguments for call in calls_of(found)}

    for engine in ("extract", "group"):
        both = named(SHOP, engine)
        assert {**both, **named(alone, engine)} == both
    plain = "orchestration: {engine: extract, schedule: never}\n"
    streams = SHOP[: SHOP.index("orchestration:")] + plain
    places = {name: one["checkpoint_location"] for name, one in named(streams, "spark").items()}
    root = places["land"]
    assert root.endswith("/{{ dag.dag_id }}")
    assert places == {"land": root, "land_clicks_lake": f"{root}~clicks_lake", "land_all-clicks": f"{root}~all-clicks"}
    said = streams.replace("schedule: never", "spark: {checkpoint_location: s3://c/shop/}, schedule: never")
    assert named(said, "spark")["land_clicks_lake"]["checkpoint_location"] == "s3://c/shop~clicks_lake"


JSON_ONLY = """\
metadata: {name: two}
sources:
  orders: {type: kafka, topic: orders}
  clicks: {type: kafka, topic: clicks}
sinks:
  lake: {type: iceberg, table: lake.orders, schema: id bigint}
  clicks: {type: iceberg, table: lake.clicks, input: clicks, schema: id bigint}
orchestration:
  engine: connect
"""


def test_each_sink_is_a_stream_of_its_own_on_flink_and_connect(tmp_path: Path) -> None:
    connect = [call.arguments for call in calls_of(compiled(tmp_path, JSON_ONLY))]
    assert [(one["connector"], one["config"]["topics"], one["consumer_group"]) for one in connect] == [
        ("two", "orders", "two"),
        ("two-clicks", "clicks", "two"),
    ]
    flink = [call.arguments for call in calls_of(compiled(tmp_path, JSON_ONLY, "flink"))]
    assert [(one["topic"], one["checkpoint_location"].rpartition("/")[2]) for one in flink] == [
        ("orders", "{{ dag.dag_id }}"),
        ("clicks", "{{ dag.dag_id }}~clicks"),
    ]
    (tmp_path / "q.yaml").write_text(JSON_ONLY.replace("name: two", "name: two-clicks"))
    problems = problems_of(read_folder(tmp_path, lookup, tmp_path / "memory"))
    assert "q.yaml:6:3: sinks.lake: 'two-clicks' is the connector of p.yaml" in problems


@pytest.mark.parametrize("engine", ["extract", "group"])
def test_the_printed_dag_has_what_waits_for_what(tmp_path: Path, engine: str) -> None:
    found = compiled(tmp_path, SHOP, engine)
    printed = python_of(found)
    compile(printed, "printed", "exec")
    assert "from airflow_lakestream.sensors.checkpoint_lag import CheckpointLagSensor\n" in printed
    for waits in ("wait_prices >> land\n", "land >> fresh\n", "land_all_clicks >> fresh_all_clicks\n"):
        assert f"    {waits}" in printed
    assert "wait_behind =" not in printed


def test_what_a_folder_remembers_is_what_it_read(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(SHOP)
    first = read_folder(tmp_path, lookup, tmp_path / "memory")
    assert read_folder(tmp_path, lookup, tmp_path / "memory") == first


def test_a_sink_has_a_quality_of_its_own(tmp_path: Path) -> None:
    own = "    input: known\n    quality: {on_error: reject, checks: {not_null: id}}\n"
    found = compiled(tmp_path, SHOP.replace("    input: known\n", own))
    assert [one.arguments.get("on_error") for one in found.landings] == [None, "reject", None]
    assert [one.auditor is not None for one in check(found)] == [False, True, False]
    # Instead of the file's.
    assert [one.task_id for one in found.sensors if one.after] == ["fresh", "fresh_all-clicks"]
    wrong = own.replace("not_null: id", "freshness: soon")
    at = line("    input: known") + 1
    assert problems(tmp_path, SHOP.replace("    input: known\n", wrong))[0].startswith(
        f"{at}:42 sinks.clicks_lake.quality.checks.freshness: 'soon' is not a number of seconds"
    )


ORDERS, CLICKS, PRICES = line("  orders_lake:"), line("  clicks_lake:"), line("    prices:")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "    input: known\n",
            "    input: unknown\n",
            f"{CLICKS + 3}:5 sinks.clicks_lake.input: there is no 'unknown' to read from; there are",
        ),
        (
            "    input: known\n",
            "    input: parsed\n",
            f"{ORDERS}:3 sinks.orders_lake: input is missing: orders and known are read by nothing else.",
        ),
        (
            "    input: parsed\n    sql: SELECT",
            "    input: known\n    sql: SELECT",
            "13:5 transformations.1: known leads to no sink",
        ),
        ("    input: known\n", "", f"{CLICKS}:3 sinks.clicks_lake: input is missing. One sink of a file may"),
        (
            "    table: lake.orders\n",
            "    table: lake.orders\n    input: known\n",
            "4:3 sources.orders: orders is read by no sink.",
        ),
        (
            "  clicks:\n",
            "  other: {type: kafka, topic: o}\n  clicks:\n",
            f"{ORDERS + 1}:3 sinks.orders_lake: input is missing: orders and",
        ),
        (
            "  - name: known\n",
            "  - name: clicks\n",
            "13:5 transformations.1.name: clicks is the name of another step or of a source.",
        ),
        (
            "    table: lake.clicks\n",
            "    table: lake.orders\n",
            f"{CLICKS + 2}:5 sinks.clicks_lake.table: lake.orders is the table of orders_lake",
        ),
        (
            "    consumer_group: all-clicks\n",
            "",
            f"{CLICKS + 4}:3 sinks.all-clicks: clicks_lake reads clicks by the consumer group shop already.",
        ),
        (
            "topic: orders, consumer_group: orders-lake",
            "topic: ^cl.*",
            f"{CLICKS}:3 sinks.clicks_lake: orders_lake reads ^cl.* by the",
        ),
        (
            "  all-clicks:",
            "  all clicks:",
            f"{CLICKS + 4}:3 sinks.all clicks: 'all clicks' is in names of tasks: letters, digits, - and _",
        ),
        ("  engine: extract", "  engine: connect", "8:1 transformations: SQL is not for the engine connect."),
        ("  freshness: 15m", "  freshness: soon", "freshness: 'soon' is not a number of seconds"),
        ("  engine: extract", "  engine: spark", "freshness looks after a landing, and one of spark does not end."),
        ("    table: lake.orders\n", "    table: 'lake.{topic}'\n", "freshness: topics or records choose the table of"),
        (
            "    table: lake.orders\n",
            "    table: lake.orders\n    mode: replace\n",
            "freshness is not for mode: replace, which lands intervals only.",
        ),
        (
            "    prices:",
            "    our prices:",
            f"{PRICES}:5 orchestration.sensors.our prices: String should match pattern",
        ),
        ("    behind:", "    aside: 5\n    behind:", ":5 orchestration.sensors.aside: "),
        ("${BOUND}", "${NONE}", f"{PRICES + 3}:16 there is no Airflow variable NONE."),
        (
            "  clicks:\n    type: kafka\n",
            "  clicks:\n    type: kafka\n    format: avro\n    schema_registry: http://r\n",
            "7:5 sources.clicks.format: SQL reads columns of avro. Say with schema which ones",
        ),
    ],
)
def test_a_mistake_has_its_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in SHOP
    found = problems(tmp_path, SHOP.replace(old, new, 1))
    assert any(said in one for one in found), found


# By sensor, line below its key and column: what is written instead of what, and what is said of it.
IN_SENSORS = [
    ("prices 0:5", "      type: freshness\n", "", ": type is missing; there are 'lag', 'fr"),
    ("prices 1:7", "type: freshness", "tipe: freshness", ".tipe: there is no such key. Did you mean type? It is req"),
    ("prices 0:5", "type: freshness", "type: fresh", ": type: 'fresh' is not one of 'lag'"),
    ("prices 3:7", "      max_age:", "      max_aje:", ".max_aje: there is no such key. D"),
    ("behind 4:7", "max_lag_records", "max_age", ".max_age: there is no such key. Did you"),
    ("prices 0:5", "      max_age: ${BOUND}\n", "", ": max_age is missing, and so is complete_through."),
    ("prices 0:5", "      table: lake.prices\n", "", ": it looks at nothing: give table, or of, the name of a sink."),
    ("prices 3:7", "${BOUND}", "soon", ".max_age: 'soon' is not a number of seconds"),
    ("prices 5:7", "      timeout: 15m", "      timeout: never", ".timeout: 'never' is not a number of seconds"),
    ("prices 2:7", "lake.prices", "prices", ".table: 'prices' is not of the form"),
    ("prices 4:7", "sinks: orders_lake", "sinks: [lake]", ".sinks: there is no sink 'lake'; there are orders_lake"),
    ("prices 4:7", "sinks: orders_lake", "sinks: []", ".sinks: no sink waits for it. Name some"),
    ("behind 2:7", "      of: orders_lake", "      of: lake", ".of: there is no sink 'lake'; there are"),
    ("behind 2:7", "      when: beside\n", "", ".of: the landing in orders_lake would wait for its own rows."),
    ("behind 4:7", "when: beside", "when: beside\n      sinks: clicks_lake", ".sinks: no sink waits for"),
    ("behind 4:7", "when: beside", "when: beside\n      table: l.t", ".table: table is set by the sink ord"),
    (
        "behind 0:37",
        "    behind:\n      type: lag\n      of: orders_lake\n      when: beside\n      max_lag_records: 10",
        "    behind: {type: lag, table: a.b, group_id: g}",
        ".group_id: exactly one of",
    ),
    ("behind 4:7", "records: 10", "records: -1", ".max_lag_records: Input should be greater than or equal to 0"),
    (
        "behind 4:7",
        "of: orders_lake\n      when: beside\n      max_lag_records: 10",
        "of: all-clicks\n      when: beside\n      max_batch_age: x",
        ".max_batch_age: 'x' is not a number of seconds",
    ),
    (
        "behind 1:7",
        "type: lag\n      of: orders_lake\n      when: beside\n      max_lag_records: 10",
        "type: freshness\n      of: all-clicks\n      when: beside\n      max_age: 5m",
        ".type: freshness: '/lake/clicks' is the path of a Delta table; sensors of freshness are "
        "for Iceberg tables. CheckpointLagSensor, or type: lag in a pipeline",
    ),
]


@pytest.mark.parametrize(("place", "old", "new", "said"), IN_SENSORS)
def test_a_mistake_in_a_sensor_has_its_line(tmp_path: Path, place: str, old: str, new: str, said: str) -> None:
    sensor, below, column = re.split("[ :]", place)
    at = f"{line(f'    {sensor}:') + int(below)}:{column} orchestration.sensors.{sensor}"
    test_a_mistake_has_its_line(tmp_path, old, new, f"{at}{said}")


def test_what_sinks_share_is_said_once(tmp_path: Path) -> None:
    text = SHOP.replace("engine: extract", "engine: spark\n  schedule: '@hourly'\n  idle_timeout: 5")
    assert len([one for one in problems(tmp_path, text) if "idle_timeout is not for Spark" in one]) == 1


def test_the_json_schema_knows_sinks_and_sensors() -> None:
    import jsonschema
    import yaml

    validator = jsonschema.Draft202012Validator(json.loads(json.dumps(json_schema())))
    assert list(validator.iter_errors(yaml.safe_load(SHOP))) == []
    for old, new in (
        ("max_age:", "max_aje:"),
        ("max_lag_records: 10", "max_age: 1h"),
        ("type: lag", "type: late"),
        ("input: known", "inputs: known"),
    ):
        assert list(validator.iter_errors(yaml.safe_load(SHOP.replace(old, new)))), new
