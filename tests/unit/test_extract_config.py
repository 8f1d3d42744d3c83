"""The one configuration of the extract path: what it takes, and that each refusal names its argument."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.config.settings import SettingField, written
from airflow_lakestream.core.landing.batch import RunLimits
from airflow_lakestream.core.landing.modes import IntervalMode, RangesMode, ResumeMode
from airflow_lakestream.core.names import RecordPart
from airflow_lakestream.core.policies import StartOffset, seconds
from airflow_lakestream.exceptions import InvalidArgument, Terminal
from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator
from airflow_lakestream.registry.config import RegistryConfig
from airflow_lakestream.run.job import ExtractConfig
from airflow_lakestream.tables.schema.types import schema_text


def config(**settings: Any) -> ExtractConfig:
    return ExtractConfig(**{"topic": "orders", "table": "lake.orders", "consumer_group": "g", **settings})


def test_the_defaults() -> None:
    assert config().limits == RunLimits(
        max_records=None, max_batch_bytes=256 * 2**20, checkpoint_interval=60, idle_timeout=0
    )
    assert config().start.offset is StartOffset.EARLIEST
    assert config().poll_timeout == 30
    assert config().design.metadata.names == ["_kafka_topic", "_kafka_partition", "_kafka_offset", "_kafka_timestamp"]


def test_a_value_is_parsed_once_and_a_copy_of_the_configuration_parses_its_own() -> None:
    asked: list[object] = []

    def parse(argument: str, value: object) -> float:
        asked.append(value)
        return seconds(argument, value)

    @dataclass(frozen=True)
    class Waiting:
        pause: SettingField[float] = SettingField("1s", parse, "work.")

    first = Waiting("5s")
    assert (first.pause, first.pause, written(first, "pause"), asked) == (5.0, 5.0, "5s", ["5s"])
    assert (replace(first, pause="1m").pause, Waiting().pause, asked) == (60.0, 1.0, ["5s", "1m", "1s"])
    with pytest.raises(InvalidArgument, match=r"^work\.pause: 'long'"):
        Waiting("long")


def test_parsed_values_go_with_a_configuration_to_another_process_and_change_nothing_of_it() -> None:
    given = config(poll_timeout="7s", start_offset="latest", allow_group_overlap="true", table_properties={"a": "1"})
    there = pickle.loads(pickle.dumps(given))
    assert there == given == replace(given)
    assert (there.poll_timeout, there.allow_group_overlap, there.table_properties) == (7.0, True, {"a": "1"})
    assert replace(there, start_offset="earliest").start.offset is StartOffset.EARLIEST


# A value of each setting that a configuration parses, other than the default, as templates render it.
AS_TEXTS = {
    "mode": "ranges",
    "ranges": "[[0, 5, 9], [1, 0, 2]]",
    "replace": "true",
    "max_batch_bytes": "1 MiB",
    "max_bytes_per_second": "64kb",
    "checkpoint_interval": "0.01ms",
    "poll_timeout": "5m",
    "schema_evolution": "add",
    "on_error": "skip",
    "max_rejected": "1%",
    "partition_by": "day(at)",
    "sort_order": "at",
    "maintain": "never",
    "new_tables": "create",
    "max_tables": "7",
    "allow_group_overlap": "true",
    "on_data_loss": "record",
    "checks": {"not_null": ["at"], "freshness": "1h"},
    "table_properties": {"a": 1},
}
OF_MIRRORS = {
    "envelope": None,
    "key": ["id", "user.name"],
    "sequence_by": "at",
    "within": "0.3 ms",
    "insert_only": "true",
    "merge_mode": "merge-on-read",
}


@pytest.mark.parametrize(
    "given",
    [
        ExtractConfig(topic="t", table="a.b", consumer_group="g", **AS_TEXTS),
        config(start_offset="timestamp", start_timestamp="2026-11-20T05:00:00.123Z", idle_timeout="5", max_records="3"),
        config(mode="interval", interval_start="2026-11-20 05:00", interval_end="1795154400000", parallelism="2"),
        MirrorConfig(topic="t", table="a.b", consumer_group="g", **OF_MIRRORS),
    ],
    ids=["limits", "resume", "interval", "mirror"],
)
def test_a_typed_value_is_its_own_so_that_a_copy_of_a_copy_is_the_same(given: ExtractConfig) -> None:
    copy = replace(replace(given), consumer_group="other")
    for one in fields(given):
        value = getattr(given, one.name)
        assert one.name == "consumer_group" or (getattr(copy, one.name), type(getattr(copy, one.name))) == (
            value,
            type(value),
        )
    assert copy.limits == given.limits
    assert copy.coverage == given.coverage


def test_numbers_as_templates_render_them() -> None:
    limits = config(max_records="100", max_batch_bytes="1MiB", checkpoint_interval="5m", idle_timeout="10").limits
    assert limits == RunLimits(max_records=100, max_batch_bytes=2**20, checkpoint_interval=300, idle_timeout=10)


@pytest.mark.parametrize("nothing", [None, "", "None"])
def test_a_limit_that_a_form_left_empty_is_none(nothing: object) -> None:
    assert config(max_records=nothing).limits.max_records is None


@pytest.mark.parametrize(
    ("argument", "value"),
    # More are in test_mistakes.py.
    [
        ("consumer_group", ""),
        ("schema_registry", "registry:8081"),
        ("writer_schemas", '"long"'),  # with JSON
        ("interval_start", "2026-11-20T05:00:00Z"),  # without mode="interval"
        ("ranges", [[0, 1, 2]]),  # without mode="ranges"
        ("start_timestamp", "2026-11-20T05:05:00Z"),  # without start_offset="timestamp"
        ("max_records", 0),
        ("max_records", -5),
        ("max_records", "many"),
        ("max_records", 1.5),
        ("max_records", True),
        ("max_batch_bytes", 0),
        ("checkpoint_interval", -1),
        ("poll_timeout", "nan"),
        ("idle_timeout", "1 week"),
        ("schema", "id no_such_type"),
        ("schema", 7),
        ("metadata_columns", ["offset", "offset"]),
        ("partition_by", 5),
        ("sort_order", 5),
        ("table_properties", "a=b"),
        ("table_properties", {"format-version": "1"}),
        ("table_properties", {"format-version": 3}),
        ("table_properties", {"write.format.default": "orc"}),
        ("table_properties", {"lakestream.snapshots.keep": "few"}),
    ],
)
def test_what_can_never_work_is_refused_by_name_before_anything_connects(argument: str, value: object) -> None:
    with pytest.raises(InvalidArgument, match=f"^{argument}: ") as caught:
        config(**{argument: value})
    assert caught.value.argument == argument
    assert isinstance(caught.value, Terminal)


@pytest.mark.parametrize(
    "value",
    [1_763_640_000_000, "1763640000000", "2025-11-20T12:00:00Z", "2025-11-20T13:00:00+01:00", "2025-11-20 12:00"],
)
def test_times_to_begin_at(value: object) -> None:
    assert config(start_offset="timestamp", start_timestamp=value).start.timestamp_ms == 1_763_640_000_000


def test_a_datetime_to_begin_at_needs_its_zone() -> None:
    noon = datetime(2025, 11, 20, 12, tzinfo=UTC)
    assert config(start_offset="timestamp", start_timestamp=noon).start.timestamp_ms == 1_763_640_000_000
    with pytest.raises(InvalidArgument, match="no time zone"):
        config(start_offset="timestamp", start_timestamp=noon.replace(tzinfo=None))


@pytest.mark.parametrize("value", [None, "", "noon", "2025-13-01", "P1D"])
def test_what_is_no_time_to_begin_at(value: object) -> None:
    with pytest.raises(InvalidArgument, match=r"^start_timestamp: "):
        config(start_offset="timestamp", start_timestamp=value)


@pytest.mark.parametrize("nothing", [None, "", "None"])
def test_a_layout_that_a_form_left_empty_asks_for_nothing(nothing: object) -> None:
    design = config(partition_by=nothing, sort_order=nothing, schema=nothing).design
    assert (design.partition_by, design.sort_order, design.schema) == (None, None, None)


def test_an_operator_without_table_properties_has_none() -> None:
    assert (
        config(
            table_properties=KafkaExtractOperator(task_id="t", topic="t", table="a.b").table_properties
        ).design.properties
        == {}
    )


def test_one_column_may_be_written_without_a_list() -> None:
    assert config(partition_by="day(at)", sort_order="at").design.partition_by == ("day(at)",)


@pytest.mark.parametrize(
    ("argument", "given"),
    [
        ("interval_start", {"mode": "interval", "interval_end": "2026-11-20T06:00:00Z"}),
        ("interval_end", {"mode": "interval", "interval_start": "2026-11-20T06:00:00Z"}),
        ("interval_end", {"mode": "interval", "interval_start": 2000, "interval_end": 2000}),
        ("idle_timeout", {"mode": "interval", "interval_start": 1, "interval_end": 2, "idle_timeout": 5}),
        ("ranges", {"mode": "ranges"}),
        ("ranges", {"mode": "ranges", "ranges": "[[0, 5"}),
        ("ranges", {"mode": "ranges", "ranges": "7"}),
        ("ranges", {"mode": "ranges", "ranges": []}),
        ("ranges", {"mode": "ranges", "ranges": [[0, 5]]}),
        ("ranges", {"mode": "ranges", "ranges": [[0, 5, 5]]}),
        ("ranges", {"mode": "ranges", "ranges": [[0, -1, 5]]}),
        ("ranges", {"mode": "ranges", "ranges": [[0, "a", 5]]}),
        ("start_offset", {"mode": "ranges", "ranges": [[0, 1, 5]], "start_offset": "latest"}),
    ],
)
def test_a_mode_needs_what_says_its_offsets(argument: str, given: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match=f"^{argument}: "):
        config(**given)


def test_the_modes() -> None:
    assert config(start_offset="latest").coverage == ResumeMode(start_moves=True)
    times = {"interval_start": "2026-11-20T05:00:00+01:00", "interval_end": 1_763_614_800_000 + 365 * 86_400_000}
    assert config(mode="interval", **times).coverage == IntervalMode(1_795_147_200_000, 1_795_150_800_000)
    assert config(mode="ranges", ranges="[[0, 5, 9], [1, 0, 2]]").coverage == RangesMode(((0, 5, 9), (1, 0, 2)))


@pytest.mark.parametrize(
    ("argument", "given"),
    [
        ("schema_evolution", {"table": "lake.{type}", "schema_evolution": "add"}),
        ("unknown_fields", {"table": "lake.{type}", "unknown_fields": "rescue"}),
        ("schema_evolution", {"table": "lake.{type}", "schema_evolution": "widen", "unknown_fields": "evolve"}),
        ("unknown_fields", {"format": "raw", "unknown_fields": "rescue"}),
        ("unknown_fields", {"envelope": "debezium", "unknown_fields": "rescue"}),
        ("unknown_fields", {"key_format": "string", "schema_evolution": "add", "unknown_fields": "evolve"}),
        ("schema", {"schema": "id int, _rescued int", "unknown_fields": "rescue"}),
        ("unknown_fields", {"sql": "SELECT key FROM {{ input }}", "unknown_fields": "rescue"}),
    ],
)
def test_what_changes_of_the_schema_do_not_go_with(argument: str, given: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match=f"^{argument}: "):
        config(**given)


def test_columns_for_fields_without_one_need_leave_to_change_the_table() -> None:
    with pytest.raises(InvalidArgument, match=r'schema_evolution is "none"\. Set schema_evolution="add"'):
        config(unknown_fields="evolve")
    assert config(unknown_fields="evolve", schema_evolution="add").design.grows


def test_the_column_for_what_has_none_is_part_of_a_given_schema() -> None:
    schema = config(schema="id int", unknown_fields="rescue").design.schema
    assert schema is not None
    assert schema_text(schema) == "id int, _rescued string"
    assert config(schema="_rescued string, id int", unknown_fields="rescue").design.schema is not None


def test_formats_and_their_registry() -> None:
    payload = config(
        format="avro", schema_registry='{"url": "http://registry", "timeout": "5"}', key_format="None"
    ).payload
    assert (payload.format, payload.key_format, payload.registry) == (
        "avro", None, RegistryConfig("http://registry", timeout=5.0),
    )  # fmt: skip
    single = config(format="avro", writer_schemas='{"type": "record", "name": "R", "fields": []}')
    assert len(single.payload.writer_schemas) == 1
    with pytest.raises(InvalidArgument, match="schema_registry: format='avro' needs one"):
        config(format="avro")
    with pytest.raises(InvalidArgument, match="key_format: there is no column _key"):
        config(key_format="string", schema="id bigint")
    assert config(key_format="string", schema="id bigint, _key string").payload.parts == {RecordPart.KEY}
    with_a_secret = "http://me:word-4711@registry"
    with pytest.raises(InvalidArgument, match="schema_registry") as caught:
        config(format="avro", schema_registry=with_a_secret)
    assert "4711" not in str(caught.value)


SQL = "SELECT json_value(value, '$.n')::INT AS n, upper(key) AS k FROM {{ input }}"


def test_the_table_has_the_columns_of_the_statement() -> None:
    schema = config(sql=SQL).design.schema
    assert schema is not None
    assert [(f.name, str(f.field_type), f.required) for f in schema.fields] == [
        ("n", "int", False),
        ("k", "string", False),
    ]


def test_a_given_schema_may_be_wider_and_says_what_is_required() -> None:
    schema = config(sql=SQL, schema="n bigint not null, k string").design.schema
    assert schema is not None
    assert [(f.name, str(f.field_type), f.required) for f in schema.fields] == [
        ("n", "long", True),
        ("k", "string", False),
    ]


@pytest.mark.parametrize(
    ("settings", "argument", "message"),
    [
        ({"sql": SQL, "schema": "n int, kk string"}, "schema", "the statement makes 'k' .* does not make 'kk'"),
        ({"sql": SQL, "schema": "n string, k string"}, "schema", "'n' is made as int and is string in the schema"),
        ({"sql": SQL, "format": "json_schema"}, "format", "is not text"),
        ({"sql": SQL, "key_format": "string"}, "key_format", "nothing is decoded before sql"),
        ({"sql": SQL, "unknown_fields": "fail"}, "unknown_fields", "no field is unknown"),
        ({"sql": SQL, "unknown_fields": "rescue"}, "unknown_fields", "no field is unknown"),
        ({"sql": "SELECT n FROM {{ input }}"}, "sql", "The columns are: key, value, event_timestamp, headers"),
        ({"sql": "SELECT _kafka_offset FROM {{ input }}"}, "sql", "nothing but metadata columns"),
        ({"sql": "SELECT _kafka_key, 1 AS x FROM {{ input }}"}, "sql", "Ask for it in metadata_columns"),
        ({"sql_input": "decoded"}, "sql_input", "sql is not set"),
        ({"sql": SQL, "sql_input": "decoded"}, "schema", "it has the columns that the statement reads"),
        ({"sql": SQL, "sql_input": "decoded", "schema": "n int"}, "sql", "The columns are: n, _kafka_topic"),
        ({"sql": SQL, "sql_input": "cooked"}, "sql_input", "'cooked' is not one of"),
    ],
)
def test_a_statement_that_fits_nothing_names_the_argument(
    settings: dict[str, Any], argument: str, message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message) as caught:
        config(**settings)
    assert caught.value.argument == argument
