"""The arguments of a landing: whoever takes some of them takes all that belong there, with the same defaults."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from typer.main import get_command
from typer.testing import CliRunner

from airflow_lakestream.cli.app import app
from airflow_lakestream.cli.arguments import one_of
from airflow_lakestream.config import arguments
from airflow_lakestream.config.decoding import DECODING
from airflow_lakestream.config.frames import FrameConfig
from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.config.setting import SettingTaker
from airflow_lakestream.config.settings import SETTINGS
from airflow_lakestream.core.policies import UnknownFields, ValueFormat
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.operators.audit import LakestreamAuditOperator
from airflow_lakestream.operators.flink_sql import FlinkSqlOperator
from airflow_lakestream.operators.kafka_connect import KafkaConnectOperator
from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator
from airflow_lakestream.operators.kafka_extract_group import kafka_extract_group
from airflow_lakestream.operators.kafka_mirror import KafkaMirrorOperator
from airflow_lakestream.operators.maintain import LakestreamMaintainOperator
from airflow_lakestream.operators.mirror_tag import LakestreamTagOperator
from airflow_lakestream.operators.replay import LakestreamReplayOperator
from airflow_lakestream.operators.spark_streaming_submit import SparkStreamingSubmitOperator
from airflow_lakestream.operators.table_contents import TableContentsOperator
from airflow_lakestream.run.repair import TableRepair
from airflow_lakestream.sensors.checkpoint_lag import CheckpointLagSensor
from airflow_lakestream.spark.app_config import AppConfig
from dev.docs_hooks import with_tables

DOCS = Path(__file__).parents[2] / "docs"
MADE_BY_THE_SITE = ("kafka_extract", "kafka_mirror", "audit", "replay", "spark_streaming_submit")
OPERATORS: list[tuple[Any, str]] = [
    (KafkaConnectOperator, "../connect.md"),
    (KafkaExtractOperator, "kafka_extract.md"),
    (KafkaMirrorOperator, "kafka_mirror.md"),
    (LakestreamAuditOperator, "audit.md"),
    (LakestreamMaintainOperator, "../maintenance.md"),
    (LakestreamReplayOperator, "replay.md"),
    (SparkStreamingSubmitOperator, "spark_streaming_submit.md"),
    (TableContentsOperator, "../page.md"),
]
# Operators with `deferrable`, which no task renders.
STREAMS = (KafkaConnectOperator, SparkStreamingSubmitOperator)
LANDING = {one.name: one.default for one in fields(ExtractConfig)}
# What an operator has of its own, which a landing is not told.
OF_THE_OPERATOR = {"kafka_conn_id", "iceberg_conn_id", "storage_conn_id", "on_empty", "topic_url", "table_url"}
# Defaults that only an operator has, or that a dataclass can't have as they are.
OTHERWISE = {"consumer_group": "{{ dag.dag_id }}", "table_properties": None}


def parameters(operator: Any) -> dict[str, inspect.Parameter]:
    """Return all arguments that the operator names."""
    found: dict[str, inspect.Parameter] = {}
    for kind in operator.__mro__:
        # A class without a constructor of its own has Airflow's.
        if kind.__module__.startswith("airflow_lakestream.") and "__init__" in vars(kind):
            given = inspect.signature(kind.__init__).parameters.values()
            found |= {one.name: one for one in given if one.kind is one.KEYWORD_ONLY}
    return found


def first_cells(page: str) -> set[str]:
    """Return the names in the first column of a page's tables."""
    rows = re.findall(r"^\|([^|]*)\|", with_tables((DOCS / page).read_text(), 1), re.MULTILINE)
    return {name for cell in rows for name in re.findall(r"`(\w+)`", cell)}


@pytest.mark.parametrize(
    "page",
    [f"{name}.md" for name in ("choose", "connect", "events", "maintenance", "page", "partitions", "sensors")]
    + [f"operators/{name}.md" for name in MADE_BY_THE_SITE],
)
def test_a_reader_of_the_repository_learns_where_a_table_is_and_the_site_has_the_table(page: str) -> None:
    text = (DOCS / page).read_text()
    sentence = "The table is in the built site: "
    comments = re.findall(r"^<!-- .* -->\n(.*)$", text, re.MULTILINE)
    assert comments
    assert all(line.startswith(sentence) for line in comments)
    made = with_tables(text, page.count("/"))
    assert sentence not in made
    assert "<!--" not in made
    assert made.count("|---|") > text.count("|---|")


def test_the_extract_operator_takes_what_a_landing_is_told_with_its_defaults() -> None:
    given = parameters(KafkaExtractOperator)
    assert set(given) - OF_THE_OPERATOR == set(LANDING)
    for name, default in LANDING.items():
        wanted = OTHERWISE.get(name, default)
        assert name in ("topic", "table") or given[name].default == wanted, name


def test_the_mirror_operator_takes_what_a_mirror_is_told_with_its_defaults_or_refuses_it_by_name() -> None:
    given = parameters(KafkaMirrorOperator)
    told = {one.name: one.default for one in fields(MirrorConfig)}
    assert set(given) - OF_THE_OPERATOR <= set(told)
    for name in sorted(set(told) - set(given)):
        with DAG("d", schedule=None), pytest.raises(InvalidArgument, match=rf"^{name}: is not for a mirror: .*\."):
            KafkaMirrorOperator(task_id="mirror", topic="t", table="lake.t", **{name: told[name]})
    for name in set(given) & set(told) - {"topic", "table"}:
        assert given[name].default == OTHERWISE.get(name, told[name]), name


@pytest.mark.parametrize(
    ("operator", "more"),
    [
        (LakestreamAuditOperator, ("tombstones", "on_data_loss")),
        (LakestreamReplayOperator, ("schema_evolution", "tombstones")),
    ],
)
def test_an_audit_and_a_replay_take_what_decides_about_a_record_with_the_defaults_of_a_landing(
    operator: Any, more: tuple[str, ...]
) -> None:
    given, names = parameters(operator), (*DECODING, *more)
    assert {name: given[name].default for name in names} == {name: LANDING[name] for name in names}
    assert set(DECODING) < {one.name for one in fields(TableRepair)}


@pytest.mark.parametrize(
    ("given", "schemas"),
    [
        (None, None),
        ("None", None),
        ('{"type": "int"}', ('{"type": "int"}',)),
        (["{}", '"int"'], ("{}", '"int"')),
        ('["{}", " {}"]', ("{}", " {}")),
        # A union of types, and a text that is no JSON.
        ('["null", "int"]', ('["null", "int"]',)),
        ('[{"type": "int"}]', ('[{"type": "int"}]',)),
        ("[", ("[",)),
        ("[]", ("[]",)),
    ],
    ids=str,
)
def test_writer_schemas_are_also_a_list_that_a_template_renders(given: Any, schemas: tuple[str, ...] | None) -> None:
    assert arguments.schemas("writer_schemas", given) == schemas


def test_arguments_of_the_audit_come_from_default_args_and_are_attributes() -> None:
    schemas = ['{"type": "record", "name": "R", "fields": []}']
    operator = LakestreamAuditOperator(
        task_id="audit", table="lake.t", default_args={"format": "avro"}, writer_schemas=schemas
    )
    assert (operator.format, operator.writer_schemas, operator.key_format) == ("avro", schemas, None)
    with pytest.raises(InvalidArgument, match="writer_schema: there is no such argument"):
        LakestreamAuditOperator(task_id="audit", table="lake.t", writer_schema="x")
    with pytest.raises(InvalidArgument, match="schema_registry"):
        LakestreamAuditOperator(task_id="audit", table="lake.t", schema_registry={"url": "http://me:secret@registry"})


@pytest.mark.parametrize(("operator", "page"), OPERATORS)
def test_the_page_of_an_operator_and_its_docstring_name_its_arguments(operator: Any, page: str) -> None:
    given = set(parameters(operator))
    assert given - first_cells(f"operators/{page}") == set()
    said = "".join(str(kind.__doc__) for kind in operator.__mro__ if kind.__module__.startswith("airflow_lakestream."))
    assert {name for name in given if f"`{name}`" not in said and f":param {name}:" not in said} == set()


@pytest.mark.parametrize("operator", [LakestreamTagOperator, *(one for one, _ in OPERATORS if one not in STREAMS)])
def test_all_arguments_are_templated(operator: Any) -> None:
    assert set(operator.template_fields) == set(parameters(operator))


def test_all_arguments_of_a_stream_of_its_own_are_templated() -> None:
    own = {"app", "app_config", "checkpoint_location", "trigger", "packages", "stall_timeout", "conf", "env_vars"}
    assert own < set(SparkStreamingSubmitOperator.template_fields)
    assert "deferrable" not in SparkStreamingSubmitOperator.template_fields


@pytest.mark.parametrize("command", [("audit",), ("rejects", "replay")])
def test_a_command_that_decodes_has_an_option_for_each_argument_that_says_how(command: tuple[str, ...]) -> None:
    found: Any = get_command(app)
    for name in command:
        found = found.commands[name]
    options = {option for one in found.params for option in one.opts}
    assert {f"--{name.replace('_', '-')}" for name in DECODING} - options == set()
    help_text = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "500"})
    assert help_text.exit_code == 0
    assert "as the operator" not in help_text.output
    for kind in (ValueFormat, UnknownFields):
        assert one_of(kind) in help_text.output


# Options that mean something else in a command than in a landing.
OTHER_OPTIONS = {"table", "topic", "key", "schema"}


@pytest.mark.parametrize(
    "command",
    [
        ("plan",),
        ("preview",),
        ("doctor",),
        ("audit",),
        ("rejects", "replay"),
        ("mirror", "resnapshot"),
        ("mirror", "tag"),
    ],
)
def test_the_help_of_an_option_is_the_documentation_of_its_setting(command: tuple[str, ...]) -> None:
    found: Any = get_command(app)
    for name in command:
        found = found.commands[name]
    rows = {one.name: SETTINGS[one.name] for one in found.params if one.name in SETTINGS}
    documented = {name: row for name, row in rows.items() if row.doc and name not in OTHER_OPTIONS}
    assert documented
    helps = {one.name: one.help for one in found.params}
    assert {name for name, row in documented.items() if row.summary[1:] not in helps[name]} == set()


def test_each_setting_came_with_a_version_of_the_changelog() -> None:
    changelog = (DOCS.parent / "CHANGELOG.md").read_text()
    versions = set(re.findall(r"^## (\d+\.\d+\.\d+)", changelog, re.MULTILINE))
    assert {one.since for one in SETTINGS.values()} <= versions


@pytest.mark.parametrize("taker", [SettingTaker.LANDING, SettingTaker.MIRROR])
def test_a_setting_of_a_later_version_shows_it_where_it_is_documented(
    taker: SettingTaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (DOCS / f"operators/kafka_{'extract' if taker is SettingTaker.LANDING else 'mirror'}.md").read_text()
    assert "All are there since 0.1.0, except where a row names a later version." in with_tables(page, 1)
    for name in ("on_error", "max_batch_bytes", "table"):
        assert "Since" not in SETTINGS[name].text(taker)
        monkeypatch.setitem(SETTINGS, name, replace(SETTINGS[name], since="0.3.0"))
        assert SETTINGS[name].text(taker).endswith(" Since 0.3.0.")
        rows = [line for line in with_tables(page, 1).splitlines() if line.startswith(f"| `{name}` ")]
        assert any(row.endswith(" Since 0.3.0. |") for row in rows)


@pytest.mark.parametrize("page", ["cli.md", "rejects.md"])
def test_the_pages_of_these_commands_name_the_options(page: str) -> None:
    text = (DOCS / page).read_text()
    assert [name for name in DECODING if f"`--{name.replace('_', '-')}`" not in text] == []


def test_the_page_of_dataframes_names_what_a_spark_app_takes_besides() -> None:
    more = {one.name for one in fields(FrameConfig)} - set(LANDING)
    assert more == {"transform", "stream_transform", "state_store", "output_mode"}
    assert more - first_cells("dataframes.md") == set()


def test_the_landing_of_a_spark_app_takes_the_same_arguments() -> None:
    landing = {"topic": "t", "table": "a.b", "consumer_group": "g"}
    kafka = {"bootstrap.servers": "b"}
    app_config = {"app": "kafka_to_iceberg", "kafka": kafka, "catalog": {}, "checkpoint_location": "/c"}
    for name in set(LANDING) - {one for one in LANDING if SETTINGS[one].refusal(SettingTaker.SPARK)} - set(landing):
        default = {} if name == "table_properties" else LANDING[name]
        assert AppConfig.parse({**app_config, "landing": {**landing, name: default}})
    with pytest.raises(InvalidArgument, match=r"landing\.no_such"):
        AppConfig.parse({**app_config, "landing": {**landing, "no_such": 1}})


@pytest.mark.parametrize(
    ("operator", "typo", "meant"),
    [
        *((operator, "retires", "retries") for operator, _ in OPERATORS),
        (KafkaExtractOperator, "partitioned_by", "partition_by"),
        (KafkaExtractOperator, "consumer_grop", "consumer_group"),
        (KafkaMirrorOperator, "soft_deletes", "soft_delete"),
        (KafkaConnectOperator, "publish_intervals", "publish_interval"),
        (SparkStreamingSubmitOperator, "checkpoint_locations", "checkpoint_location"),
        (TableContentsOperator, "sample", "samples"),
        (CheckpointLagSensor, "max_lag_second", "max_lag_seconds"),
        (FlinkSqlOperator, "publish_intervall", "publish_interval"),
    ],
)
def test_an_argument_that_there_is_not_gets_the_nearest_name(operator: Any, typo: str, meant: str) -> None:
    needed = {one.name: "a" for one in parameters(operator).values() if one.default is one.empty}
    said = f"{typo}: there is no such argument. Did you mean '{meant}'?"
    with DAG("d", schedule=None), pytest.raises(InvalidArgument, match=re.escape(said)):
        operator(task_id="t", **{typo: "x"}, **{name: value for name, value in needed.items() if name != meant})


def test_a_group_of_tasks_says_it_too_and_what_is_like_nothing_gets_the_list() -> None:
    with DAG("d", schedule=None), pytest.raises(InvalidArgument, match=r"^partitioned_by: .* 'partition_by'\?$"):
        kafka_extract_group("land", topic="t", table="lake.t", partitioned_by=[])
    with DAG("d", schedule=None), pytest.raises(InvalidArgument, match=r"^zzz: .* There are .*topic.*, and those of"):
        KafkaExtractOperator(task_id="t", topic="t", table="lake.t", zzz=1)
