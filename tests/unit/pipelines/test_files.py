"""Files of pipelines: what they come to, and what is said of each mistake, with its line."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_lakestream.cli.app import run
from airflow_lakestream.pipelines import folder as memories
from airflow_lakestream.pipelines.check import check
from airflow_lakestream.pipelines.folder import PipelineFolder, read_folder
from airflow_lakestream.pipelines.operator import OperatorCall, calls_of, python_of
from airflow_lakestream.pipelines.reading import looked_up, read_file
from airflow_lakestream.pipelines.yaml_file import PipelineError

EXAMPLE = """\
metadata:
  name: realtime-clickstream
  version: "1.0.0"
  owner: analytics-team
sources:
  clickstream:
    type: kafka
    connection: ${KAFKA_CONNECTION}
    topic: web.clickstream
    consumer_group: pipeline-clickstream-v1
    format: json
    schema_registry: ${SCHEMA_REGISTRY_URL}
    start_offset: latest
transformations:
  - name: parse_events
    type: sql_transform
    input: clickstream
    sql: |
      SELECT
        JSON_VALUE(value, '$.user_id') AS user_id,
        event_timestamp
      FROM {{ input }}
sinks:
  analytics_lake:
    type: iceberg
    table: analytics.web.clickstream_events
    mode: append
    partition_by: ["day(event_timestamp)"]
orchestration:
  engine: extract
  checkpoint_interval: 60s
  parallelism: 4
"""
PLAIN = """\
metadata: {name: plain}
sources: {orders: {type: kafka, topic: orders}}
sinks: {lake: {type: iceberg, table: lake.orders}}
"""
VARIABLES = {"KAFKA_CONNECTION": "my_kafka", "SCHEMA_REGISTRY_URL": "http://registry:8081", "N": "3", "BOUND": "1h"}
CONNECTION = {"host": "broker", "port": 9092, "password": "hidden", "extra": {"a": "b"}}
lookup = looked_up(VARIABLES.get, lambda name: CONNECTION if name == "c" else None)


def compiled(tmp_path: Path, text: str, engine: str | None = None) -> Any:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    return read_file(path, lookup, engine=engine)


def operator_of(found: Any) -> OperatorCall:
    """Return what makes the only task of a pipeline."""
    [call] = calls_of(found)
    return call


def landing_of(found: Any) -> Any:
    [landing] = found.landings
    return landing.arguments


def problems(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(PipelineError) as caught:
        check(compiled(tmp_path, text))
    return [f"{one.line}:{one.column} {one.text}" for one in caught.value.problems]


def problems_of(folder: PipelineFolder) -> str:
    """Return the problems of a folder's files, each in a line of its own."""
    return "\n".join(str(problem) for one in folder.wrong for problem in one.problems)


def test_the_example_is_an_operator_of_each_engine(tmp_path: Path) -> None:
    found = compiled(tmp_path, EXAMPLE)
    check(found)
    call = operator_of(found)
    assert (call.name, call.first, call.arguments["kafka_conn_id"]) == (
        "KafkaExtractOperator",
        {"task_id": "land"},
        "my_kafka",
    )
    # JSON names no schema, so that there is nothing to ask a registry.
    assert "schema_registry" not in call.arguments
    assert (call.arguments["parallelism"], call.arguments["checkpoint_interval"]) == (4, "60s")
    assert (found.cron, found.owner, found.tags) == ("*/5 * * * *", "analytics-team", ("v1.0.0",))
    group = operator_of(compiled(tmp_path, EXAMPLE, "group"))
    assert (group.name, group.arguments["tasks"]) == ("kafka_extract_group", 4)
    spark = operator_of(compiled(tmp_path, EXAMPLE, "spark"))
    assert (spark.arguments["app"], spark.arguments["trigger"]) == ("kafka_to_iceberg", "60 seconds")
    assert spark.arguments["total_executor_cores"] == 4
    landing = {name: value for name, value in call.arguments.items() if name in spark.arguments["app_config"]}
    assert spark.arguments["app_config"] == landing
    assert spark.arguments["app_config"]["consumer_group"] == "pipeline-clickstream-v1"


ALERTS = """\
  alerts:
    on_failure: [log, "team.chat:tell"]
    deadline: 2h
    on_deadline: "team.chat:late"
"""


def test_alerts_are_functions_and_a_deadline(tmp_path: Path) -> None:
    found = compiled(tmp_path, EXAMPLE + ALERTS)
    assert found.on_failure == ("airflow_lakestream.alerts:tell", "team.chat:tell")
    assert (found.deadline, found.on_deadline) == (7200, "team.chat:late")
    printed = python_of(found)
    compile(printed, "printed", "exec")
    assert "import airflow_lakestream.alerts\nimport team.chat\n" in printed
    assert "'on_failure_callback': [airflow_lakestream.alerts.tell, team.chat.tell]," in printed
    assert "interval=timedelta(seconds=7200), callback=AsyncCallback(team.chat.late))" in printed
    plain = compiled(tmp_path, PLAIN)
    assert (plain.on_failure, plain.deadline) == ((), None)
    assert "airflow_lakestream.alerts" not in python_of(plain)
    said = problems(tmp_path, EXAMPLE.replace("engine: extract", "engine: spark") + ALERTS)
    endless = "orchestration.alerts.deadline: a continuous run of spark never ends."
    assert said == [f"35:5 {endless} Leave deadline out, or give a cron schedule."]
    check(compiled(tmp_path, EXAMPLE.replace("engine: extract", "engine: spark\n  schedule: '@hourly'") + ALERTS))
    said = problems(tmp_path, EXAMPLE.replace("engine: extract", "engine: spark\n  schedule: '@continuous'") + ALERTS)
    assert said == [f"36:5 {endless} Leave deadline out, or give a cron schedule."]
    said = problems(tmp_path, EXAMPLE + ALERTS.replace("    deadline: 2h\n", ""))
    assert said == [
        "35:5 orchestration.alerts.on_deadline: on_deadline goes with deadline. Say how long a run may take."
    ]
    said = problems(tmp_path, EXAMPLE + ALERTS.replace("team.chat:tell", "import os").replace("2h", "soon"))
    assert [one.split(" ", 2)[:2] for one in said] == [["34:23", "orchestration.alerts.on_failure.1:"]]


@pytest.mark.parametrize("engine", ["extract", "spark"])
@pytest.mark.parametrize("mode", ["append", "replace"])
def test_the_printed_dag_is_python(tmp_path: Path, engine: str, mode: str) -> None:
    text = EXAMPLE.replace("mode: append", f"mode: {mode}") + "  schedule: '@hourly'\n"
    printed = python_of(compiled(tmp_path, text, engine))
    compile(printed, "printed", "exec")
    assert ("CronDataIntervalTimetable('@hourly'" in printed) is (mode == "replace")


def test_engines_that_write_a_branch(tmp_path: Path) -> None:
    text = PLAIN.replace("lake.orders}", 'lake.orders, schema: "id bigint"}') + (
        "orchestration:\n  engine: flink\n  checkpoint_interval: 30s\n  parallelism: 2\n"
        "  flink: {connection: f}\n  connect: {connector: c, config: {iceberg.catalog.type: rest}}\n"
    )
    flink = operator_of(compiled(tmp_path, text))
    assert (flink.name, flink.arguments["columns"], flink.arguments["flink_conn_id"]) == (
        "FlinkSqlOperator",
        "id bigint",
        "f",
    )
    assert (flink.arguments["publish_interval"], flink.arguments["parallelism"]) == ("30s", 2)
    avro = text.replace("topic: orders", "topic: orders, format: avro, schema_registry: registry")
    flink = operator_of(compiled(tmp_path, avro))
    assert (flink.arguments["format"], flink.arguments["schema_registry"]) == ("avro", "registry")
    (said,) = problems(tmp_path, text.replace("topic: orders", "topic: orders, format: csv"))
    assert "'csv' is not read by Flink's landing: Flink's decoder makes NULL of an empty text in quotes" in said
    (said,) = problems(tmp_path, avro.replace("engine: flink", "engine: connect"))
    assert "connect reads JSON here." in said
    connect = operator_of(compiled(tmp_path, text, "connect")).arguments
    assert (connect["connector"], connect["publish_interval"], connect["consumer_group"]) == ("c", "30s", "plain")
    assert connect["config"]["tasks.max"] == "2"
    assert (connect["config"]["topics"], connect["config"]["iceberg.tables"]) == ("orders", "lake.orders")
    assert connect["config"]["iceberg.catalog.type"] == "rest"
    for engine in ("extract", "group", "spark"):
        check(compiled(tmp_path, text, engine))
        # The registry's connection is looked up by the run.
        check(compiled(tmp_path, avro, engine))
    said = problems(tmp_path, EXAMPLE.replace("engine: extract", "engine: connect"))
    assert [one.split(" ", 1)[0] for one in said] == ["13:5", "14:1"]
    # The first records tell the columns.
    assert "columns" not in operator_of(compiled(tmp_path, text.replace(', schema: "id bigint"', ""))).arguments


CHECKED = """
quality:
  checks:
    sql: SELECT * FROM landing WHERE id < 0
    not_null: [id]
    row_count: {min: 1, max_of_week: 3}
    freshness: 2h
"""


@pytest.mark.parametrize("engine", ["extract", "group", "spark", "flink", "connect"])
def test_times_of_numbers_are_made_by_engines_that_decode_as_we_do(tmp_path: Path, engine: str) -> None:
    text = PLAIN.replace("table: lake.orders", 'table: lake.orders, schema: "id bigint, at timestamp from epoch_ms"', 1)
    text += f"orchestration: {{engine: {engine}}}"
    if engine in ("flink", "connect"):
        said = problems(tmp_path, text)
        assert any(f"'at': a time made from epoch_ms is not for the engine {engine}" in one for one in said), said
    else:
        [config] = check(compiled(tmp_path, text))
        assert [source.unit for _, source in config.payload.times] == ["epoch_ms"]


@pytest.mark.parametrize("engine", ["extract", "group", "spark", "flink", "connect"])
def test_checks_are_the_operators_argument(tmp_path: Path, engine: str) -> None:
    text = PLAIN.replace("table: lake.orders", 'table: lake.orders, schema: "id bigint"', 1)
    found = compiled(tmp_path, text + f"orchestration: {{engine: {engine}}}" + CHECKED)
    assert [one.auditor is not None for one in check(found)] == [True]
    arguments = operator_of(found).arguments
    assert arguments.get("app_config", arguments)["checks"] == {
        "sql": ["SELECT * FROM landing WHERE id < 0"],
        "not_null": ["id"],
        "row_count": {"min": 1, "max_of_week": 3},
        "freshness": "2h",
    }
    assert "'max_of_week': 3" in python_of(found)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("table: lake.orders", "table: lake.orders, mode: mirror", "freshness: is not for a mirror"),
        ("table: lake.orders", "table: lake.orders, schema_evolution: widen", "does not go with checks"),
    ],
)
def test_where_there_are_no_checks(tmp_path: Path, old: str, new: str, said: str) -> None:
    text = PLAIN + "orchestration: {engine: extract}" + CHECKED
    found = problems(tmp_path, text.replace(old, new, 1))
    assert any(said in one for one in found), found


def test_what_a_file_does_not_say_is_the_operators_default(tmp_path: Path) -> None:
    call = operator_of(compiled(tmp_path, PLAIN))
    assert call.arguments == {
        "topic": "orders",
        "table": "lake.orders",
        "consumer_group": "plain",
        "kafka_conn_id": "kafka_default",
    }


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("metadata:", "metadatas:", "1:1 metadatas: there is no such key. Did you mean metadata?"),
        ("  name: realtime", "  nam: realtime", "2:3 metadata.nam: there is no such key. Did you mean name?"),
        ("sinks:", "sinkz:", "23:1 sinkz: there is no such key. Did you mean sinks?"),
        (
            "    type: kafka",
            "    tipe: kafka",
            "7:5 sources.clickstream.tipe: there is no such key. Did you mean type?",
        ),
        ("    topic:", "    topik:", "9:5 sources.clickstream.topik: there is no such key. Did you mean topic?"),
        ("    sql: |", "    sqll: |", "18:5 transformations.0.sqll: there is no such key. Did you mean sql?"),
        ("    table:", "    tabel:", "26:5 sinks.analytics_lake.tabel: there is no such key. Did you mean table?"),
    ],
)
def test_a_misspelt_key_that_is_required_is_one_mistake(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in EXAMPLE
    assert problems(tmp_path, EXAMPLE.replace(old, new, 1)) == [f"{said} It is required."]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("    topic: web.clickstream\n", "", "6:3 sources.clickstream.topic: is missing."),
        ("engine: extract", "engine: flonk", "30:3 orchestration.engine: 'flonk' is not one of"),
        ("parallelism: 4", "parallelism: many", "32:3 orchestration.parallelism: many is not a number."),
        ("mode: append", "mode: merge", "27:5 sinks.analytics_lake.mode: 'merge' is not one of"),
        ("${KAFKA_CONNECTION}", "${KAFKA}", "8:17 there is no Airflow variable KAFKA. Set it:"),
        ("${KAFKA_CONNECTION}", "${KAFKA_PASSWORD}", "8:17 ${KAFKA_PASSWORD} has the name of a secret"),
        ("${KAFKA_CONNECTION}", "${connection:c.password}", "8:17 ${connection:c.password}: of a connection there are"),
        ("${KAFKA_CONNECTION}", "${connection:d.host}", "8:17 ${connection:d.host}: there is no connection d."),
        ("    input: clickstream", "    input: parse_events", "15:5 transformations.0: parse_events leads to no sink"),
        (
            "    input: clickstream",
            "    input: orders",
            "17:5 transformations.0.input: there is no 'orders' to read from; there are clickstream.",
        ),
        ("FROM {{ input }}", "FROM clickstream", "18:5 transformations.0.sql: it does not read from {{ input }}."),
        ("AS user_id", "AS user_id,,", "18:5 transformations.0.sql:"),
        ("start_offset: latest", "start_offset: newest", "13:5 sources.clickstream.start_offset: 'newest' is not one"),
        ("checkpoint_interval: 60s", "checkpoint_interval: 60 parsecs", "31:3 orchestration.checkpoint_interval:"),
        ("table: analytics.web", "table: .", "26:5 sinks.analytics_lake.table:"),
        ("    mode: append", "    mode: append\n    mode: append", "28:5 mode is there twice."),
        (
            "    mode: append",
            "    mode: mirror",
            "14:1 transformations: SQL is not for a mirror: it has the rows of the database's table.",
        ),
        (
            "    mode: append",
            "    mode: append\n    key: id",
            "28:5 sinks.analytics_lake.key: key is not for a landing of records: it goes with a mirror.",
        ),
        (
            "    mode: append",
            "    mode: replace",
            "29:1 orchestration.schedule: mode: replace lands a run's data interval again",
        ),
        (
            "  parallelism: 4",
            "  start_date: soon",
            "32:3 orchestration.start_date: it is not a date such as 2026-01-31.",
        ),
        (
            "  engine: extract",
            "  engine: spark\n  idle_timeout: 5",
            "31:3 orchestration.idle_timeout: idle_timeout is not for Spark",
        ),
        (
            "metadata:",
            "metadata: &a\n  name: x\nother: *a\nrest:",
            "aliases and deep nesting are not for pipelines",
        ),
        ("  owner: analytics-team", "  owner: [analytics", "invalid YAML:"),
        ("  owner: analytics-team", "  owner: !!python/name:os.system x", "4:10 the tag"),
        ("  name: realtime-clickstream", "  name: a b", "2:3 metadata.name: String should match pattern"),
        ("    connection: ${KAFKA_CONNECTION}\n", "    password: x\n", "8:5 sources.clickstream.password: there is no"),
    ],
)
def test_a_mistake_has_its_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in EXAMPLE
    found = problems(tmp_path, EXAMPLE.replace(old, new, 1))
    assert any(said in one for one in found), found


@pytest.mark.parametrize(
    ("checks", "said"),
    [
        (
            " [{not_null: user_id}]",
            "32:3 quality.checks: [{'not_null': 'user_id'}] is not a mapping of keys to values.",
        ),
        ("\n    not_nul: [user_id]", "33:5 quality.checks.not_nul: there is no such key. Did you mean not_null?"),
        ("\n    row_count: {min: few}", "33:17 quality.checks.row_count.min: few is not a number."),
        ("\n    unique: a\n    freshness: soon", "34:5 quality.checks.freshness: 'soon' is not a number of seconds"),
        ("\n    sql: SELEC 1", "33:5 quality.checks.sql: 'SELEC 1': DuckDB does not understand it"),
    ],
)
def test_a_mistake_in_checks_has_its_line(tmp_path: Path, checks: str, said: str) -> None:
    old = "  checkpoint_interval: 60s\n  parallelism: 4\n"
    test_a_mistake_has_its_line(tmp_path, old, f"quality:\n  checks:{checks}\n", said)


NO_PIPELINES = {
    "nothing": "",
    "a list": "- a",
    "text": "just text",
    "a number": "metadata: 5",
    "NUL": "\0",
    "a key twice": "sources: {}\n" * 2,
    "cut": "{" * 2000,
    # The composer of libyaml ended the process.
    "deep": "metadata: " + "[" * 200_000 + "]" * 200_000,
    "an alias in itself": "metadata: &a [*a]",
    "many aliases": "metadata: &a [1]\nsources: [" + "*a," * 10_000 + "1]",
    "two documents": PLAIN + "---\n" + PLAIN,
}


@pytest.mark.parametrize("text", NO_PIPELINES.values(), ids=NO_PIPELINES)
def test_what_is_no_pipeline_is_said(tmp_path: Path, text: str) -> None:
    assert problems(tmp_path, text)


def test_what_never_ends_is_no_pipeline() -> None:
    with pytest.raises(PipelineError, match="/dev/zero: it has more than a mebibyte"):
        read_file(Path("/dev/zero"), lookup)


def test_all_mistakes_are_said_at_once(tmp_path: Path) -> None:
    text = EXAMPLE.replace("topic:", "topik:").replace("append", "merge").replace("parallelism: 4", "parallelism: x")
    assert [one.split(" ")[0] for one in problems(tmp_path, text)] == ["9:5", "27:5", "32:3"]


def test_references_and_sql_are_checked_beside_wrong_keys_and_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "home"))
    for name, value in VARIABLES.items():
        monkeypatch.setenv(f"AIRFLOW_VAR_{name}", value)
    text = EXAMPLE.replace("topic:", "topik:").replace("append", "merge").replace("parallelism: 4", "parallelism: x")
    text = text.replace("input: clickstream", "input: clickstreem").replace("SELECT\n", "SELEC\n")
    (pipes := tmp_path / "pipes").mkdir()
    (pipes / "p.yaml").write_text(text)
    for path in (pipes, pipes / "p.yaml"):
        assert run(["pipeline", "validate", str(path)]) == 2
        printed = capsys.readouterr()
        *found, last = printed.err.splitlines()
        assert [one.split(" ")[1] for one in found] == [
            "sources.clickstream.topik:",
            "transformations.0.input:",
            "transformations.0.sql:",
            "sinks.analytics_lake.mode:",
            "orchestration.parallelism:",
        ]
        assert "DuckDB does not understand it" in found[2]
        assert last.startswith("Correct these first: ")
        assert last.endswith("p.yaml will then be checked further.")
        assert "0 right, 1 wrong (5 mistakes)." in printed.out
    # The rest of it in the second round, which is the last.
    (pipes / "p.yaml").write_text(EXAMPLE.replace("day(event_timestamp)", "day(at)"))
    assert run(["pipeline", "validate", str(pipes)]) == 2
    [found] = capsys.readouterr().err.splitlines()
    assert "sinks.analytics_lake.partition_by:" in found


def test_an_input_may_mean_a_transformation_without_a_name(tmp_path: Path) -> None:
    text = EXAMPLE.replace("  - name: parse_events\n    type", "  - type").replace(
        "    mode:", "    input: rows\n    mode:"
    )
    assert [one.split(" ")[1] for one in problems(tmp_path, text)] == ["transformations.0.name:"]


def test_wrong_literals_are_named_together_and_beside_contradictions(tmp_path: Path) -> None:
    text = PLAIN.replace("topic: orders}", "topic: orders, schema: 'id int'}")
    text = text.replace("lake.orders}", "orders}") + "orchestration: {checkpoint_interval: 60 parsecs}\n"
    found = problems(tmp_path, text)
    keys = ["sources.orders.schema:", "sinks.lake.table:", "orchestration.checkpoint_interval:"]
    assert [one.split(" ")[1] for one in found] == keys
    assert found[0].endswith(
        "no transformation reads this source. For the table's columns, move it to sinks.lake.schema."
    )


def test_a_chain_is_one_statement(tmp_path: Path) -> None:
    more = """\
  - name: known
    type: sql_transform
    input: parse_events
    sql: "SELECT user_id, event_timestamp AS at FROM {{input}} WHERE user_id IS NOT NULL;"
"""
    text = EXAMPLE.replace("sinks:", more + "sinks:").replace("FROM {{ input }}\n", "FROM {{ input }} -- all of it\n")
    found = compiled(tmp_path, text.replace("day(event_timestamp)", "day(at)"))
    [checked] = check(found)
    made = checked.design.schema
    assert made is not None
    assert [(field.name, str(field.field_type)) for field in made.fields] == [
        ("user_id", "string"),
        ("at", "timestamptz"),
    ]
    # Whatever the order in the file is.
    steps = text.split("transformations:\n")[1].split("sinks:")[0]
    first, second = steps.split("  - name: known\n")
    turned = text.replace(steps, "  - name: known\n" + second + first).replace("day(event_timestamp)", "day(at)")
    assert landing_of(compiled(tmp_path, turned))["sql"] == landing_of(found)["sql"]


def test_a_circle_is_said(tmp_path: Path) -> None:
    more = "".join(
        f"  - {{name: {name}, type: sql_transform, input: {source}, sql: 'SELECT 1 AS a FROM {{{{ input }}}}'}}\n"
        for name, source in (("b", "c"), ("c", "b"))
    )
    found = problems(tmp_path, EXAMPLE.replace("sinks:", more + "sinks:"))
    assert [one.split(" ", 1)[1] for one in found] == [
        f"transformations.{at}: {name} leads to no sink: it reads from itself, through other steps."
        for at, name in ((1, "b"), (2, "c"))
    ]


def test_sql_over_decoded_columns(tmp_path: Path) -> None:
    text = EXAMPLE.replace("format: json", 'format: avro\n    schema: "user_id string, event_timestamp timestamptz"')
    text = text.replace("JSON_VALUE(value, '$.user_id') AS user_id", "upper(user_id) AS user_id")
    found = compiled(tmp_path, text)
    assert (landing_of(found)["sql_input"], landing_of(found)["schema_registry"]) == ("decoded", "http://registry:8081")
    assert problems(tmp_path, text.replace("    mode: append", '    schema: "a int"')) == [
        "28:5 sinks.analytics_lake.schema: the table's columns are those that the transformations make."
    ]


def test_variables_are_looked_up_once_and_numbers_may_be_variables(tmp_path: Path) -> None:
    asked: list[str] = []

    def look(name: str) -> str:
        asked.append(name)
        return lookup(name)

    from functools import cache

    for name in "ab":
        (tmp_path / f"{name}.yaml").write_text(
            PLAIN.replace("plain", name) + "orchestration: {parallelism: '${N}', pool: '$$never'}\n"
        )
    found = read_folder(tmp_path, cache(look), tmp_path / "memory").right
    assert ([landing_of(one)["parallelism"] for one in found], asked) == ([3, 3], ["N"])
    assert found[0].pool == "$never"


def test_a_folder_is_remembered_by_content_and_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipes, memory = tmp_path / "pipes", tmp_path / "m" / "memory.json"
    (pipes / "inner").mkdir(parents=True)
    (pipes / "a.yaml").write_text(PLAIN.replace("topic: orders", "topic: '${T}'"))
    (pipes / "inner" / "b.yml").write_text(PLAIN.replace("plain", "b"))
    (pipes / "notes.txt").write_text("nothing")
    variables = {"T": "one"}
    first = read_folder(pipes, looked_up(variables.get, lambda _: None), memory)
    read: list[str] = []
    real = memories.read_text
    monkeypatch.setattr(memories, "read_text", lambda text, name, look: (read.append(name), real(text, name, look))[1])
    assert read_folder(pipes, looked_up(variables.get, lambda _: None), memory) == first
    assert read == []
    variables["T"] = "two"
    (pipes / "inner" / "b.yml").write_text(PLAIN.replace("plain", "c"))
    second = read_folder(pipes, looked_up(variables.get, lambda _: None), memory)
    assert read == ["a.yaml", "inner/b.yml"]
    assert [(one.name, landing_of(one)["topic"]) for one in second.right] == [("plain", "two"), ("c", "orders")]
    # A memory that something has damaged is none, also where it is valid JSON behind its seal.
    sealed = memory.read_text()
    inside = [sealed.replace('"orders"', value) for value in ("5", "null", "[]", '"others"')]
    assert sealed not in inside
    for damage in ("", "{", "[]", '{"version": 1}', "\0", *inside, *(f"{sealed.split()[0]}\n{one}" for one in "5[")):
        memory.write_text(damage)
        assert read_folder(pipes, looked_up(variables.get, lambda _: None), memory) == second
    variables.clear()
    found = read_folder(pipes, looked_up(variables.get, lambda _: None), memory)
    assert re.search(r"a\.yaml:2:\d+: there is no Airflow variable T", problems_of(found))


def test_no_temporary_files_pile_up(tmp_path: Path) -> None:
    pipes, memory = tmp_path / "pipes", tmp_path / "m" / "memory.json"
    pipes.mkdir()
    (pipes / "a.yaml").write_text(PLAIN)
    # Something else is in its place: it can't be replaced.
    memory.mkdir(parents=True)
    for _ in range(3):
        assert len(read_folder(pipes, lookup, memory).right) == 1
    assert list(memory.parent.iterdir()) == [memory]
    memory.rmdir()
    # Of a process that was killed while it wrote, and of one that writes.
    old, new = memory.with_name(f"{memory.name}old"), memory.with_name(f"{memory.name}new")
    for one in (old, new):
        one.touch()
    os.utime(old, (0, 0))
    read_folder(pipes, lookup, memory)
    assert sorted(memory.parent.iterdir()) == [memory, new]


def test_a_statement_that_is_wrong_keeps_what_the_file_said_before(tmp_path: Path) -> None:
    pipes, memory = tmp_path / "pipes", tmp_path / "memory.json"
    pipes.mkdir()
    (pipes / "a.yaml").write_text(EXAMPLE)
    [before] = read_folder(pipes, lookup, memory).right
    (pipes / "a.yaml").write_text(EXAMPLE.replace("AS user_id", "AS user_id, nobody"))
    for _ in range(3):
        found = read_folder(pipes, lookup, memory, patience=3)
        assert found.right == ()
        [broken] = found.wrong
        assert broken.last == before
        assert "nobody" in broken.problems[0].text
    (pipes / "a.yaml").write_text(EXAMPLE)
    assert read_folder(pipes, lookup, memory, patience=3).right == (before,)


def test_a_file_that_is_wrong_leaves_the_others_and_keeps_its_name_and_what_it_said(tmp_path: Path) -> None:
    pipes, memory = tmp_path / "pipes", tmp_path / "memory.json"
    pipes.mkdir()
    for name in "abc":
        (pipes / f"{name}.yaml").write_text(PLAIN.replace("plain", f"the_{name}"))
    before = read_folder(pipes, lookup, memory).right
    wrong = {
        # YAML with a wrong key, and no YAML at all.
        "a.yaml": PLAIN.replace("plain", "the_a").replace("topic:", "topik:"),
        "c.yaml": "metadata: {name: the_c\n  :",
        # Nobody remembers this one.
        "new/d.yaml": "metadata:\n  # Whose?\n  owner: me\n\n  name: 'the_d' # It is.\nsources: 1\n",
        "new/e f.yaml": "\0",
    }
    (pipes / "new").mkdir()
    for name, text in wrong.items():
        (pipes / name).write_text(text)
    # Each parse is a new process, and remembers what the one before it did.
    for _ in range(3):
        found = read_folder(pipes, lookup, memory)
        assert found.right == before[1:2]
        assert [(one.file, one.name, one.last) for one in found.wrong] == [
            ("a.yaml", "the_a", before[0]),
            ("c.yaml", "the_c", before[2]),
            ("new/d.yaml", "the_d", None),
            ("new/e f.yaml", "new_e_f", None),
        ]
        assert [{one.file for one in broken.problems} for broken in found.wrong] == [{name} for name in wrong]


def test_of_two_pipelines_of_one_name_the_one_that_was_there_first_stays(tmp_path: Path) -> None:
    pipes, memory = tmp_path / "pipes", tmp_path / "memory.json"
    pipes.mkdir()
    (pipes / "b.yaml").write_text(PLAIN)
    read_folder(pipes, lookup, memory)
    for name in "ac":
        (pipes / f"{name}.yaml").write_text(PLAIN.replace("orders", "others"))
    for _ in range(2):
        found = read_folder(pipes, lookup, memory)
        assert [one.file for one in found.right] == ["b.yaml"]
        assert [(one.file, one.name) for one in found.wrong] == [("a.yaml", "a"), ("c.yaml", "c")]
        assert re.search(r"a\.yaml.*'plain' is the pipeline of b\.yaml already", problems_of(found))


def test_there_has_to_be_a_folder(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="no such folder"):
        read_folder(tmp_path / "none", lookup, tmp_path / "memory")


def test_the_json_schema_takes_the_example_and_refuses_a_wrong_key() -> None:
    import jsonschema
    import yaml

    from airflow_lakestream.pipelines.model import json_schema

    schema = json.loads(json.dumps(json_schema()))
    validator = jsonschema.Draft202012Validator(schema)
    good = yaml.safe_load(EXAMPLE.replace("parallelism: 4", "parallelism: ${N}"))
    assert list(validator.iter_errors(good)) == []
    wrong = yaml.safe_load(EXAMPLE.replace("topic:", "topik:").replace("engine: extract", "engine: flonk"))
    assert len(list(validator.iter_errors(wrong))) >= 2


# YAML takes no other characters as they are.
PRINTABLE = st.text(st.characters(categories=("L", "N", "P", "S", "Zs")))


@given(st.one_of(st.sampled_from(["20240101", "1_000", "1", "None", "[1]", "{'a': 1}", "~", "yes"]), PRINTABLE))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_text_in_quotes_is_that_text(tmp_path: Path, text: str) -> None:
    # JSON, and so YAML; without ASCII alone, whose pairs of escapes YAML does not know.
    properties = json.dumps({"comment": text.replace("$", "$$")}, ensure_ascii=False)
    (tmp_path / "plain.yaml").write_text(
        PLAIN.replace("table: lake.orders", f"table: lake.orders, properties: {properties}")
    )
    (call,) = calls_of(read_file(tmp_path / "plain.yaml", lookup))
    assert call.arguments["table_properties"] == {"comment": text}


@pytest.mark.parametrize(
    ("written", "is_text"), [("1_000", True), ("0x1F", True), ("20240101", False), ("true", False)]
)
def test_a_name_without_quotes_is_the_text_or_refused_by_its_line(tmp_path: Path, written: str, is_text: bool) -> None:
    (tmp_path / "plain.yaml").write_text(PLAIN.replace("topic: orders", f"topic: orders, consumer_group: {written}"))
    if is_text:
        (call,) = calls_of(read_file(tmp_path / "plain.yaml", lookup))
        assert call.arguments["consumer_group"] == written
    else:
        with pytest.raises(PipelineError, match=r"plain\.yaml:2:.*consumer_group"):
            read_file(tmp_path / "plain.yaml", lookup)


def test_hidden_files_and_folders_are_no_pipelines(tmp_path: Path) -> None:
    # As Kubernetes mounts a ConfigMap.
    version = tmp_path / "..2026_11_01_00_00_00.123456789"
    version.mkdir()
    (version / "plain.yaml").write_text(PLAIN)
    (tmp_path / "..data").symlink_to(version.name, target_is_directory=True)
    (tmp_path / "plain.yaml").symlink_to(Path("..data", "plain.yaml"))
    for hidden in (".ipynb_checkpoints/plain-checkpoint.yaml", "._plain.yaml", ".github/work.yml", "team/.x/a.yaml"):
        path = tmp_path / hidden
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("no: pipeline")
    found = read_folder(tmp_path, lookup, tmp_path / "memory")
    assert ([(one.name, one.file) for one in found.right], found.wrong) == ([("plain", "plain.yaml")], ())


LOGINS = ["https://user:secret@registry", "user:secret@broker", "postgresql://u:p@h/d", "https://h/?sig=abc"]


@pytest.mark.parametrize("host", LOGINS)
@pytest.mark.parametrize("field", ["host", "schema", "login"])
def test_a_field_with_a_secret_in_it_is_not_filled_in(tmp_path: Path, host: str, field: str) -> None:
    look = looked_up(lambda _: None, lambda _: {field: host})
    path = tmp_path / "p.yaml"
    path.write_text(PLAIN.replace("topic: orders", f"topic: '${{connection:c.{field}}}'"))
    with pytest.raises(PipelineError, match=f"connection's {field} has a secret in it") as caught:
        read_file(path, look)
    assert host not in str(caught.value)
    assert looked_up(lambda _: None, lambda _: {field: "https://registry:8081"})(f"connection:c.{field}")
