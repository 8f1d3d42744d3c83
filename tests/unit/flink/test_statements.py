"""The statements of a landing: names and texts are quoted, and each setting has its counterpart."""

from __future__ import annotations

import pytest

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.flink import statements
from airflow_lakestream.flink.formats.reading import json_reading, quoted, raw_reading, type_of
from airflow_lakestream.flink.rest import causes_in
from airflow_lakestream.tables.schema.ddl import parse_schema

KAFKA = {"bootstrap.servers": "b:9092", "security.protocol": "sasl_ssl", "sasl.mechanism": "PLAIN"} | {
    "sasl.username": "o'neil",
    "sasl.password": "p'w",
}


def test_the_source_reads_from_where_the_ledger_ends() -> None:
    reading = json_reading(parse_schema("id bigint, `odd name` string"))
    (text,) = statements.create_source("t", reading, {"bootstrap.servers": "b:9092"}, "g", {1: 7, 0: 5})
    assert "'scan.startup.specific-offsets' = 'partition:0,offset:5;partition:1,offset:7'" in text
    assert "(`id` BIGINT, `odd name` STRING, `_kafka_topic` STRING METADATA FROM 'topic' VIRTUAL" in text
    assert "'properties.isolation.level' = 'read_committed'" in text
    assert "'json.ignore-parse-errors' = 'false'" in text


def test_texts_are_quoted() -> None:
    (text,) = statements.create_source("t", json_reading(parse_schema("id bigint")), KAFKA, "g", {})
    assert "username=\"o''neil\" password=\"p''w\";" in text
    assert quoted("a`b") == "`a``b`"


def test_classes_of_kafkas_client_are_where_flinks_jar_keeps_them() -> None:
    shaded = "org.apache.flink.kafka.shaded.org.apache.kafka.common.security"
    told = statements.client_options(KAFKA)
    assert told["properties.sasl.jaas.config"].startswith(f"{shaded}.plain.PlainLoginModule required ")
    assert "properties.sasl.login.callback.handler.class" not in told
    endpoint = {"sasl.oauthbearer.client.id": "me", "sasl.oauthbearer.client.secret": "s"} | {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": "https://id/token",
    }
    told = statements.client_options({"bootstrap.servers": "b:9092", "sasl.mechanism": "OAUTHBEARER", **endpoint})
    assert told["properties.sasl.jaas.config"].startswith(f"{shaded}.oauthbearer.OAuthBearerLoginModule required ")
    handler = f"{shaded}.oauthbearer.OAuthBearerLoginCallbackHandler"
    assert told["properties.sasl.login.callback.handler.class"] == handler


@pytest.mark.parametrize(
    ("ddl", "flink"),
    [
        ("decimal(12, 2)", "DECIMAL(12, 2)"),
        ("array<struct<a: int, b: timestamp>>", "ARRAY<ROW<`a` INT, `b` TIMESTAMP_LTZ(6)>>"),
        ("map<string, double>", "MAP<STRING, DOUBLE>"),
        ("timestamp_ntz", "TIMESTAMP(6)"),
        ("binary", "BYTES"),
        ("boolean", "BOOLEAN"),
    ],
)
def test_each_type_has_its_name(ddl: str, flink: str) -> None:
    field = parse_schema(f"c {ddl}").fields[0]
    assert type_of(field.field_type, "c") == flink


def test_raw_records_are_read_as_they_are() -> None:
    both = raw_reading(parse_schema("value binary, key string"))
    assert both.fields == {"value": "BYTES", "key": "STRING"}
    assert both.options["key.fields"] == "key"
    assert raw_reading(parse_schema("value string")).options == {"value.format": "raw"}
    for wrong, why in (("value int", "no value of type int"), ("id string", "no id"), ("key binary", "lack value")):
        with pytest.raises(InvalidArgument, match=why):
            raw_reading(parse_schema(wrong))


def test_a_type_that_json_can_not_fill_is_refused() -> None:
    field = parse_schema("c uuid").fields[0]
    with pytest.raises(InvalidArgument, match="'c' is of type uuid"):
        type_of(field.field_type, "c")


def test_a_catalog_is_opened_as_pyiceberg_opens_it() -> None:
    text = statements.create_catalog("lake", {"type": "rest", "uri": "http://c:8181", "token": "x", "warehouse": "w"})
    assert text.startswith("CREATE CATALOG `lake` WITH ('type' = 'iceberg', ")
    assert "'catalog-type' = 'rest'" in text
    sql = statements.create_catalog(
        "lake", {"type": "sql", "uri": "postgresql+psycopg2://u:p@h/d", "warehouse": "s3://b"}
    )
    assert "'catalog-impl' = 'org.apache.iceberg.jdbc.JdbcCatalog'" in sql
    assert "'io-impl' = 'org.apache.iceberg.aws.s3.S3FileIO'" in sql
    with pytest.raises(InvalidArgument, match=r"catalog\.properties\.odd: has no equivalent in Flink's catalog"):
        statements.create_catalog("lake", {"type": "rest", "uri": "http://c", "odd": "1"})


def test_tables_in_s3_are_written_by_the_connection_s_keys_and_by_those_that_a_rest_catalog_gives() -> None:
    keys = {"s3.access-key-id": "i", "s3.secret-access-key": "it's", "s3.session-token": "t"}
    place = {"s3.endpoint": "http://s3:9000", "s3.region": "eu-central-1", "s3.connect-timeout": "5"}
    text = statements.create_catalog("lake", {"type": "hive", "uri": "thrift://m:9083", **keys, **place})
    for told in (
        "'catalog-type' = 'hive'",
        "'io-impl' = 'org.apache.iceberg.aws.s3.S3FileIO'",
        "'s3.secret-access-key' = 'it''s'",
        "'s3.session-token' = 't'",
        "'s3.path-style-access' = 'true'",
        "'client.region' = 'eu-central-1'",
    ):
        assert told in text
    assert "connect-timeout" not in text
    virtual = statements.create_catalog("lake", {"type": "glue", **place, "s3.force-virtual-addressing": "true"})
    assert "'s3.path-style-access' = 'false'" in virtual
    for_checkpoints = statements.create_catalog("lake", {"type": "hive", "warehouse": "hdfs://n/w", **keys})
    assert "'io-impl' = 'org.apache.iceberg.io.ResolvingFileIO'" in for_checkpoints
    rest = {"type": "rest", "uri": "http://c"}
    assert "'header.X-Iceberg-Access-Delegation' = 'vended-credentials'" in statements.create_catalog("lake", rest)
    assert "io-impl" not in statements.create_catalog("lake", rest)
    signed = statements.create_catalog("lake", {**rest, "header.X-Iceberg-Access-Delegation": "remote-signing"})
    assert "vended" not in signed


def test_the_rows_go_into_the_branch() -> None:
    text = statements.insert_rows("lake", "db.t", "flink-g", ["id", "_kafka_offset"])
    assert text == (
        "INSERT INTO `lake`.`db`.`t` /*+ OPTIONS('branch' = 'flink-g') */ (`id`, `_kafka_offset`) "
        "SELECT `id`, `_kafka_offset` FROM landed"
    )


def test_the_innermost_causes_of_a_trace_are_told() -> None:
    trace = (
        "org.apache.flink.table.gateway.service.utils.SqlExecutionException: Failed to execute.\n\tat a.b(C.java:1)\n"
        "Caused by: org.apache.flink.table.api.ValidationException: SQL validation failed.\n"
        "Caused by: org.apache.calcite.sql.validate.SqlValidatorException: Column 'nope' not found in any table\n"
    )
    assert causes_in(trace)[-1].endswith("Column 'nope' not found in any table")
    assert causes_in("no trace at all") == ()


def test_a_table_below_several_namespaces_is_in_a_database_of_the_last() -> None:
    made = statements.create_catalog("lake", {"type": "rest", "uri": "http://c"}, "analytics.web.clicks")
    assert "'base-namespace' = 'analytics', 'default-database' = 'web'" in made
    assert "base-namespace" not in statements.create_catalog("lake", {"type": "rest", "uri": "http://c"}, "web.clicks")
    assert "INSERT INTO `lake`.`web`.`clicks` " in statements.insert_rows("lake", "analytics.web.clicks", "b", ["id"])
