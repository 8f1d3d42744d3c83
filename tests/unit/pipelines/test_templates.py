"""A text that is a template: a task of Airflow renders it, or it is refused by name. Nothing takes it as it stands."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel
from typer.main import get_command

from airflow_lakestream.cli.app import FAILED, app, run
from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator
from airflow_lakestream.pipelines.check import check, refuse_rendered
from airflow_lakestream.pipelines.compiling import compile_document
from airflow_lakestream.pipelines.dags import make_dag
from airflow_lakestream.pipelines.model import Pipeline
from airflow_lakestream.pipelines.operator import calls_of
from airflow_lakestream.pipelines.yaml_file import PipelineError, read_document

TEMPLATE = "{{ ds }}"
SQL = "SELECT '{{ ds }}' AS day FROM {{ input }}"
PLAIN: dict[str, Any] = {
    "metadata": {"name": "plain"},
    "sources": {"orders": {"type": "kafka", "topic": "orders"}},
    "sinks": {"lake": {"type": "iceberg", "table": "lake.orders"}},
    "orchestration": {"schedule": "0 * * * *"},
}
ROWS = {"name": "rows", "type": "sql_transform", "input": "orders", "sql": "SELECT 1 AS one FROM {{ input }}"}
WITH_SQL = {**PLAIN, "transformations": [ROWS]}
MIRROR = {**PLAIN, "sinks": {"lake": {"type": "iceberg", "table": "lake.orders", "mode": "mirror", "key": ["id"]}}}
UPSERT = {**PLAIN, "sinks": {"lake": {"type": "iceberg", "table": "lake.orders", "mode": "upsert", "key": ["id"]}}}
REPLACING = {**PLAIN, "sinks": {"lake": {"type": "iceberg", "table": "lake.orders", "mode": "replace"}}}
MAINTAINED = {**PLAIN, "maintenance": {"budget": "10m"}}
DELTA = {**PLAIN, "sinks": {"lake": {"type": "delta", "table": "/lake/orders"}}}
COLUMNS = {**PLAIN, "sinks": {"lake": {"type": "iceberg", "table": "lake.orders", "schema": "id bigint"}}}
SENSORS: dict[str, dict[str, Any]] = {
    "lag": {"type": "lag", "of": "lake", "when": "beside", "max_lag_seconds": 60},
    "freshness": {"type": "freshness", "of": "lake", "when": "beside", "max_age": "1h"},
    "retention": {"type": "retention", "of": "lake", "when": "beside"},
}
FILES = [
    *((name, content) for name, content in globals().items() if isinstance(content, dict) and "sinks" in content),
    *((kind, {**PLAIN, "orchestration": {"sensors": {"s": sensor}}}) for kind, sensor in SENSORS.items()),
]
ENGINES = ("extract", "group", "spark", "flink", "connect")
# Documented: a file may say what another engine takes: where schemas are, the design of a table that it makes, and the
# place of checkpoints, of which a run that replaces has none.
LEFT_OUT = ("schema_registry", "schema", "partition_by", "sort_order", "properties", "checkpoint_location")


def keys(kind: Any, here: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the keys that a part of a file may have, with the type of each; members have the names in the file."""
    if get_origin(kind) in (dict, list):
        for name, one in here.items() if isinstance(here, dict) else enumerate(here or []):
            yield from keys(get_args(kind)[-1], one, (*path, name))
    elif isinstance(kind, type) and issubclass(kind, BaseModel):
        for name, field in kind.model_fields.items():
            key = field.alias or name
            found = list(keys(field.annotation, here.get(key) if isinstance(here, dict) else None, (*path, key)))
            yield from found or [((*path, key), field.annotation)]
    elif get_origin(kind) is not None:
        # A choice of several.
        for one in get_args(kind):
            yield from keys(one, here, path)


def with_template(content: dict[str, Any], path: tuple[Any, ...], kind: Any) -> dict[str, Any]:
    """Return a file whose value at the path is a template, of the kind that belongs there."""
    made = here = copy.deepcopy(content)
    for step in path[:-1]:
        here = here.setdefault(step, {}) if isinstance(here, dict) else here[step]
    text = SQL if path[-1] == "sql" and path[0] == "transformations" else TEMPLATE
    if path[-1] == "start_timestamp":
        here["start_offset"] = "timestamp"
    is_many = "dict" in str(kind) or "list" in str(kind)
    here[path[-1]] = text if not is_many else {"name": text} if "dict" in str(kind) else [text]
    return made


def holds(value: Any) -> bool:
    return "{{ ds }}" in json.dumps(value)


def with_engine(content: dict[str, Any], engine: str) -> dict[str, Any]:
    return {**content, "orchestration": {**content["orchestration"], "engine": engine}}


def is_right(content: dict[str, Any]) -> bool:
    try:
        compile_document(read_document("p.yaml", json.dumps(content), str))
    except PipelineError:
        return False
    return True


CASES = {
    f"{name} {engine}": (with_engine(content, engine), engine)
    for name, content in FILES
    for engine in ENGINES
    if is_right(with_engine(content, engine))
}


@pytest.mark.parametrize(("content", "engine"), CASES.values(), ids=CASES)
def test_each_key_is_rendered_by_its_operator_or_refused_by_name(content: dict[str, Any], engine: str) -> None:
    found = dict(keys(Pipeline, content))
    of_others = {("orchestration", other) for other in ENGINES if other != engine}
    wrong = [
        problem for path, kind in found.items() if path[:2] not in of_others for problem in tried(content, path, kind)
    ]
    assert wrong == []
    assert len(found) > 60


def tried(content: dict[str, Any], path: tuple[Any, ...], kind: Any) -> Iterator[str]:
    """Yield what is wrong with a template at a key."""
    document = read_document("p.yaml", json.dumps(with_template(content, path, kind), indent=1), str)
    line, _ = document.place(path)
    try:
        compiled = compile_document(document)
    except PipelineError as error:
        if not [one for one in error.problems if str(path[-1]) in one.text or one.line == line]:
            yield f"{path}: {error}"
        return
    calls = [call for one in compiled.dags for call in calls_of(one)]
    held = [(call, name) for call in calls for name, value in call.arguments.items() if holds(value)]
    if not held and path[-1] not in LEFT_OUT:
        yield f"{path}: it is lost"
    for call, name in held:
        known = getattr(import_module(call.module), call.name)
        if name not in getattr(known, "template_fields", KafkaExtractOperator.template_fields):
            yield f"{path}: {call.name} does not render {name}"
    # A run of Airflow's renders it; nothing else does.
    try:
        check(compiled)
    except PipelineError as error:
        if path[-1] != "start_timestamp":
            yield f"{path}: {error}"
    if any(holds(landing.arguments) for landing in compiled.landings):
        with pytest.raises(PipelineError, match=r"'\{\{ ds \}\}' is a template"):
            refuse_rendered(compiled, compiled.landings)


@pytest.mark.parametrize("engine", ENGINES[:4])
def test_a_statement_is_no_name_of_a_file_whatever_it_ends_with(engine: str) -> None:
    content = with_engine(copy.deepcopy(WITH_SQL), engine)
    content["transformations"][0]["sql"] = "SELECT value AS v FROM {{ input }} -- see notes.sql"
    dag = make_dag(compile_document(read_document("p.yaml", json.dumps(content), str)))
    # Of a group the one that plans: the others take what it returns.
    task = dag.tasks[0]
    task.render_template_fields({"dag": dag, "ds": "2026-01-01", "var": {"value": {}}})
    sql = getattr(task, "app_config", vars(task)).get("sql")
    assert sql == "SELECT value AS v FROM {{ input }} -- see notes.sql"


@pytest.mark.parametrize("command", ["run", "plan"])
def test_commands_that_land_refuse_by_file_and_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.yaml"
    content = {**WITH_SQL, "quality": {"checks": {"sql": f"SELECT * FROM landing WHERE day > '{TEMPLATE}'"}}}
    content["sinks"]["lake"]["properties"] = {"owner": TEMPLATE}
    content["transformations"][0]["sql"] = SQL
    file.write_text(json.dumps(content, indent=1))
    assert run(["pipeline", "validate", str(file)]) == 0
    capsys.readouterr()
    assert run(["pipeline", command, str(file)]) == FAILED
    said = capsys.readouterr().err
    for key in ("transformations.0.sql", "quality.checks", "sinks.lake.properties"):
        assert f"{key}: '{{{{ ds }}}}' is a template, and only a task of Airflow renders it." in said
    assert f"{file}:" in said


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, one in command.commands.items():
        yield from commands(one, (*path, name))


ALL = dict(commands(get_command(app)))


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_no_option_of_a_command_takes_a_template(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        one.opts[0] for one in ALL[path].params if one.opts[0].startswith("--") and not getattr(one, "is_flag", 0)
    ]
    for option in options:
        for written in (
            [option, "a {{ ds }} b"],
            [f"{option}=a {{{{ ds }}}} b"],
            [option, "{% if x %}"],
            [option, "{#"],
        ):
            assert run([*path, *written]) == FAILED
            assert f"lakestream: {option}: '{{" in capsys.readouterr().err, option
    assert run([*path, TEMPLATE]) == FAILED
    assert "is a template, and only a task of Airflow renders it" in capsys.readouterr().err


def test_the_input_of_a_statement_is_no_template(capsys: pytest.CaptureFixture[str]) -> None:
    run(["preview", "orders", "--sql", "SELECT value FROM {{ input }}", "--bootstrap-servers", "127.0.0.1:1"])
    assert "is a template" not in capsys.readouterr().err


OF_FILE = {path: command for path, command in ALL.items() if any(one.name == "pipeline" for one in command.params)}


@pytest.mark.parametrize("path", OF_FILE, ids=" ".join)
def test_no_command_takes_a_template_from_a_pipeline(
    path: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = dict(keys(Pipeline, WITH_SQL))
    refused = []
    for key, kind in found.items():
        if key[0] not in ("sources", "sinks", "transformations", "orchestration"):
            continue
        content = with_template(WITH_SQL, key, kind)
        if not is_right(content):
            continue
        file = tmp_path / "p.yaml"
        file.write_text(json.dumps(content, indent=1))
        arguments = ["--repair"] if path == ("audit",) else []
        assert run([*path, *arguments, "--pipeline", str(file)]) == FAILED
        said = capsys.readouterr().err
        # What the command has no use for is not looked at: it says that there are no connections.
        assert "'{{ ds }}' is a template" in said or "{{" not in said, key
        refused += [key[-1]] if "is a template" in said else []
    assert {"table", "connection"} <= set(refused) or path == ("preview",), refused
    assert "sql" in refused or path == ("plan",), refused
    assert len(refused) > 3, refused


def test_what_the_command_line_says_goes_before_a_template_of_the_pipeline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.yaml"
    content = copy.deepcopy(PLAIN)
    content["sources"]["orders"]["topic"] = TEMPLATE
    file.write_text(json.dumps(content, indent=1))
    for topic, is_refused in ([], True), (["--topic", "orders"], False):
        assert run(["plan", *topic, "--pipeline", str(file)]) == FAILED
        said = capsys.readouterr().err
        assert ("p.yaml:8:4: sources.orders.topic: '{{ ds }}' is a template" in said) is is_refused, said
