"""What can't work is refused before anything is started, by the name of the argument."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_lakestream.config.settings import copied
from airflow_lakestream.core.bad_records import RejectLimit
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.flink.config import FlinkConfig

GIVEN: dict[str, Any] = {
    "catalog": {"name": "lake", "properties": {"type": "rest", "uri": "http://c"}},
    "kafka": {"bootstrap.servers": "b:9092", "sasl.password": "secret"},
    "gateway": {"url": "http://g:8083", "password": "secret"},
    "manager": {"url": "http://m:8081"},
    "topic": "t",
    "table": "lake.t",
    "consumer_group": "g",
    "columns": "id bigint",
    "checkpoint_location": "/shared/t",
}


def config(**changed: Any) -> FlinkConfig:
    return FlinkConfig(**(GIVEN | changed))


def test_it_goes_through_its_file_unchanged() -> None:
    checks = {"not_null": ["id"], "row_count": {"max": 5}}
    made = config(sql="SELECT * FROM source", schema="id bigint", parallelism=2, partition_by=["id"], checks=checks)
    assert FlinkConfig.parse(made.to_dict()) == made
    assert made.on_branch == "flink-g"


def test_a_copy_keeps_parsed_values_and_a_file_has_the_written_ones() -> None:
    given = {"start_offset": "timestamp", "start_timestamp": "2026-11-20T05:00:00Z", "partition_by": "id"}
    given |= {"on_error": "skip", "max_rejected": "1%", "prove": "all"}
    made = config(**given)
    copy = copied(copied(made, columns="id bigint, name string"), owner="me")
    assert (copy.prove, copy.max_rejected, copy.partition_by) == (1.0, RejectLimit(share=0.01), ("id",))
    assert copy.start == made.start
    assert {name: made.to_dict().get(name, "all") for name in given} == given
    assert FlinkConfig.parse(made.to_dict()).fingerprint == copied(made, owner="me").fingerprint == made.fingerprint
    assert replace(copy, owner="you").prove == 1.0


@pytest.mark.parametrize(
    ("changed", "argument"),
    [
        ({"topic": "a b"}, "topic"),
        ({"table": "nodots"}, "table"),
        ({"columns": "id nothing"}, "columns"),
        ({"columns": "id uuid"}, "columns"),
        ({"columns": ""}, "columns"),
        ({"sql_input": "decoded"}, "sql_input"),
        ({"max_rejected": 3}, "max_rejected"),
        ({"on_error": "reject", "sql": "SELECT * FROM source"}, "on_error"),
        ({"on_error": "ignore"}, "on_error"),
        ({"sql": "SELECT reverse(key) AS k FROM {{ input }}", "columns": ""}, "sql"),
        ({"sql": "SELECT nothing FROM {{ input }}", "columns": ""}, "sql"),
        ({"sql": "SELECT key FROM {{ input }}", "columns": "", "format": "avro"}, "schema_registry"),
        ({"sql": "SELECT id FROM {{ input }}", "columns": "", "sql_input": "decoded"}, "schema"),
        ({"sql": "SELECT key FROM {{ input }}", "columns": "", "prove": "off"}, "prove"),
        ({"on_error": "reject", "prove": 0.5}, "prove"),
        ({"schema": "id bigint"}, "schema"),
        ({"format": "avro"}, "schema_registry"),
        ({"format": "avro", "registry": {"url": "https://r", "cert_file": "/c.pem"}}, "schema_registry.cert_file"),
        ({"format": "avro", "registry": {"url": "https://r"}, "columns": "id uuid"}, "columns"),
        ({"format": "csv"}, "format"),
        ({"format": "avrò"}, "format"),
        ({"format": "raw"}, "columns"),
        *[({"branch": branch}, "branch") for branch in ("main", "MAIN", " main", "main\n", "own ", "refs/heads/main")],
        ({"start_offset": "timestamp"}, "start_timestamp"),
        ({"on_data_loss": "ignore"}, "on_data_loss"),
        ({"checks": {"sql": "DELETE FROM landing"}}, "checks.sql"),
        ({"checkpoint_location": "s3n://bucket/t"}, "checkpoint_location"),
        ({"catalog": {"properties": {"type": "rest", "s3.role-arn": "r"}}}, "catalog.properties.s3.role-arn"),
        ({"catalog": {"properties": {"type": "sql", "uri": "mysql://h/d"}}}, "catalog.uri"),
    ],
)
def test_what_can_not_work_is_named(changed: dict[str, Any], argument: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        config(**changed)
    assert caught.value.argument == argument


def test_a_changed_password_makes_no_other_stream() -> None:
    other = config(
        kafka={"bootstrap.servers": "b:9092", "sasl.password": "new"},
        gateway={"url": "http://g:8083", "password": "new"},
        owner="another try",
    )
    assert (other.fingerprint, other.program) == (config().fingerprint, config().program)
    assert "secret" not in config().fingerprint


def test_another_registry_is_another_stream_and_its_password_is_none() -> None:
    avro = {"format": "avro", "registry": {"url": "https://r", "username": "me", "password": "secret"}}
    made = config(**avro)
    assert FlinkConfig.parse(made.to_dict()) == made
    changed = config(format="avro", registry={"url": "https://r", "token": "secret"})
    assert (changed.fingerprint, changed.program) == (made.fingerprint, made.program)
    assert config(format="avro", registry={"url": "https://other"}).fingerprint != made.fingerprint


def test_another_interval_is_another_configuration_of_the_same_program() -> None:
    assert config(publish_interval="5s").fingerprint == config(publish_interval=5).fingerprint
    other = config(publish_interval=5.0)
    assert other.program == config().program
    assert other.fingerprint != config().fingerprint
    assert config(sql="SELECT * FROM source").program != config().program


def test_changed_checks_make_another_driver_and_the_same_job() -> None:
    other = config(checks={"not_null": "id"})
    assert other.fingerprint != config().fingerprint
    assert other.program == config().program


def test_a_statement_of_all_engines_makes_the_extract_s_table() -> None:
    sql = "SELECT json_value(value, '$.id')::BIGINT AS id, event_timestamp AS at FROM {{ input }}"
    made = config(sql=sql, columns="", partition_by="day(at)", max_rejected="0.9")
    assert FlinkConfig.parse(made.to_dict()) == made
    assert made.design.schema is not None
    assert [one.name for one in made.design.schema.fields] == ["id", "at"]
    assert (made.leaves_to_extract, made.read_as, made.extract.on_error) == (True, "sql", "reject")
    assert made.select is not None
    assert made.select.startswith("SELECT TRY_CAST(JSON_VALUE(`value`")
    # As its job would do something else.
    assert made.program != config(sql=sql.replace("BIGINT", "INTEGER"), columns="", partition_by="day(at)").program


def test_columns_that_nobody_tells_are_those_of_the_extract_s_table() -> None:
    made = config(columns="", on_error="reject")
    assert (made.finds_columns, made.extract.schema) == (True, None)
    assert not config(on_error="reject").finds_columns
