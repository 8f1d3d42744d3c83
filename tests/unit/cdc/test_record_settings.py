"""Settings of tables by key: refusals by name, and what a table by key is to other commands."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.ledger import Landing, TopicEntry
from airflow_lakestream.core.routing import IsMirror
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator
from airflow_lakestream.operators.kafka_mirror import KafkaMirrorOperator
from airflow_lakestream.run.resnapshot import ResnapshotTables
from tests.support import keyed
from tests.support.given_records import FORMATS, GivenLake, Record
from tests.support.keyed import Follower
from tests.support.mirroring import IDENTITY, HandMirror

UPSERT = {"envelope": None, "key": ["id"]}

NAMES = {"topic": "t", "table": "lake.t", "consumer_group": "g"}


def record(value: Any) -> Record:
    return Record(json.dumps(value).encode())


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"key": None}, "key: is missing: plain records do not show which columns identify a row"),
        ({"key": ["user."]}, "key: 'user.' is no path of a nested field"),
        ({"key": ["user.id", "user_id"]}, "key: the column user_id is there twice"),
        ({"format": "raw"}, "format: 'raw' has no fields"),
        ({"format": "csv"}, "schema: is missing: fields of CSV have no names"),
        ({"source_tables": "a.*"}, "source_tables: is not for a table by key: it is for Debezium's events"),
        ({"out_of_range": "clamp"}, "out_of_range: is not for a table by key"),
        ({"unavailable_placeholder": "hex:x"}, "unavailable_placeholder: "),
        ({"unavailable_values": "null"}, "unavailable_values: is not for a table by key"),
        ({"unknown_fields": "rescue"}, "unknown_fields: is not for a table by key: each field"),
        ({"schema_evolution": "add"}, "schema_evolution: is not for a table by key"),
        ({"envelope": "debezium", "sql": "SELECT 1"}, "sql: is not for a mirror: a mirror has the rows"),
        ({"sql": "SELECT 1 AS _op FROM {{ input }}"}, "sql: it makes a column '_op': the mirror keeps the name"),
        ({"sql": "SELECT 1 AS id FROM {{ input }}", "merge": "given"}, "merge: does not go with sql="),
        ({"sql_input": "decoded"}, "sql_input: goes with sql"),
        ({"mode": "interval"}, "mode: is not for a table by key"),
        ({"replace": True}, "replace: is not for a table by key"),
        ({"tombstones": "keep"}, "tombstones: 'keep' makes a row of NULLs"),
        ({"tombstones": "lose"}, "tombstones: 'lose'"),
        ({"sequence_by": ["a", "b", "c"]}, "sequence_by: a, b, c: one or two columns"),
        ({"sequence_by": ["a", "a"]}, "sequence_by: a, a: one or two columns"),
        ({"delete_when": "SELECT true"}, "delete_when: 'SELECT true' is not a condition"),
        ({"delete_when": "{{ input }}"}, "delete_when: .* is not a condition"),
        ({"insert_only": True, "sequence_by": "at"}, "insert_only: does not go with sequence_by='at': the record"),
        ({"insert_only": "true", "delete_when": "gone"}, "insert_only: does not go with delete_when='gone': no row"),
        ({"insert_only": True, "tombstones": "delete"}, "insert_only: does not go with tombstones='delete'"),
        ({"insert_only": True, "soft_delete": True}, "insert_only: does not go with soft_delete=True"),
        ({"history": True}, "history: needs sequence_by: a version is valid from the time of its record on"),
        ({"history": True, "sequence_by": "at", "soft_delete": True}, "history: does not go with soft_delete=True"),
        ({"envelope": "debezium", "history": True, "soft_delete": True}, "history: does not go with soft_delete=True"),
        ({"history_columns": ["name"]}, "history_columns: is for a history of rows"),
        ({"envelope": "flattened", "sequence_by": "at"}, "envelope: does not go with sequence_by='at': events are"),
        ({"envelope": "flattened", "merge": "given"}, "envelope: does not go with merge='given'"),
        ({"envelope": "flattened", "source_tables": "a"}, "source_tables: is not for a table by key"),
        ({"merge": "some"}, "merge: 'some'"),
        ({"merge": "given", "insert_only": True}, "insert_only: does not go with merge='given': no row is changed"),
        ({"envelope": "debezium", "merge": "given"}, "merge: is not for a mirror: an event has the whole row"),
        ({"within": "7 days"}, "within: '7 days' is for messages sent twice, by the column of their time"),
        ({"within": "7 days", "insert_only": True}, "within: '7 days' is for messages sent twice"),
        ({"within": "soon", "insert_only": True, "sequence_by": "at"}, "within: 'soon' is not a number of seconds"),
        ({"within": 0, "insert_only": True, "sequence_by": "at"}, "within: has to be above 0"),
        ({"within": 9, "insert_only": True, "sequence_by": ["at", "b"]}, "sequence_by: at, b: within goes by one"),
        ({"envelope": "debezium", "within": "7 days"}, "within: is not for a mirror"),
        ({"sequence_by": "id"}, "sequence_by: id is part of the key"),
        ({"schema": "id bigint, at timestamp from unix millis"}, "schema: "),
        ({"key_format": "avro"}, "schema_registry: key_format='avro' needs one"),
        ({"rename_columns": {"a": "_op"}}, "rename_columns: 'a' can't become '_op'"),
        ({"envelope": "connect"}, "envelope: 'connect' is not for a mirror"),
        ({"envelope": "debezium", "sequence_by": "at"}, "sequence_by: is not for a mirror: events have their order"),
        (
            {"envelope": "debezium", "key_format": "json"},
            "key_format: is not for a mirror: keys are taken",
        ),
        ({"envelope": "debezium", "insert_only": True}, "insert_only: is not for a mirror: a mirror follows"),
        ({"envelope": "debezium", "delete_when": "a"}, "delete_when: is not for a mirror: the database's deletions"),
        ({"envelope": "debezium", "tombstones": "delete"}, "tombstones: is not for a mirror"),
        ({"envelope": "debezium", "csv_delimiter": ";"}, "csv_delimiter: is not for a mirror"),
    ],
    ids=lambda one: str(one)[:60],
)
def test_settings_that_contradict_the_records_are_refused_by_name(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        MirrorConfig(**NAMES | UPSERT | config)


def test_the_operator_refuses_them_where_the_dag_is_parsed_and_leaves_templates_to_the_run() -> None:
    def make(**config: Any) -> None:
        with DAG("d", schedule=None):
            KafkaMirrorOperator(task_id="t", topic="t", table="lake.t", **config)

    make(
        **UPSERT, sequence_by="at", tombstones="skip", key_format="string", csv_delimiter=";", delete_when="is_deleted"
    )
    make(**UPSERT, insert_only="{{ params.once }}", sequence_by="{{ params.by }}")
    make(**UPSERT, insert_only=True, tombstones="reject")
    make(**UPSERT, insert_only=True, sequence_by="at", within=timedelta(days=7))
    make(envelope="flattened", key=["id"], tombstones="skip")
    make(envelope="{{ params.envelope }}", sequence_by="at", source_tables="a")
    for config, problem in (
        ({"envelope": None}, "key: is missing"),
        (UPSERT | {"source_tables": "a"}, "source_tables: is not for a table by key"),
        (UPSERT | {"out_of_range": "null"}, "out_of_range: is not for a table by key"),
        ({"sequence_by": "at"}, "sequence_by: is not for a mirror"),
        (UPSERT | {"insert_only": True, "sequence_by": "at"}, "insert_only: does not go with sequence_by"),
        (UPSERT | {"within": "7 days", "sequence_by": "at"}, "within: '7 days' is for messages sent twice"),
        (UPSERT | {"delete_when": "where op = 'D'"}, "delete_when: .* is not a condition"),
        (UPSERT | {"sql": "select 1"}, "sql: it does not read from"),
        ({"sql": "SELECT 1"}, "sql: is not for a mirror: a mirror has the rows"),
        (UPSERT | {"merge": "some"}, "merge: 'some'"),
        (UPSERT | {"merge": "given", "format": "csv"}, "merge: does not go with format='csv'"),
    ):
        with pytest.raises((InvalidArgument, TypeError), match=problem):
            make(**config)
    with DAG("d", schedule=None), pytest.raises(InvalidArgument, match="tombstones: 'delete' is for a table by key"):
        KafkaExtractOperator(task_id="t", topic="t", table="lake.t", tombstones="delete")
    with pytest.raises(InvalidArgument, match="tombstones: 'delete' is for a table by key"):
        ExtractConfig(**NAMES, tombstones="delete")


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_table_by_key_is_no_mirror_to_be_read_again_and_no_table_of_records(
    tmp_path: Path, table_format: str
) -> None:
    lake = GivenLake(tmp_path, table_format, kind=MirrorConfig)
    lake.land([record({"id": 1})], **UPSERT)
    opened: Any = lake.catalog() if table_format == "iceberg" else DeltaStorage()
    with pytest.raises(InvalidArgument, match="a table by key of plain records, which no database can send again"):
        ResnapshotTables(opened, lake.name).design()
    with pytest.raises(IsMirror, match="is a table by key: one row is the result of many records"):
        replace(lake, kind=ExtractConfig).land([record({"id": 1})])


def test_another_topic_has_no_order_with_the_first_one(tmp_path: Path) -> None:
    mirror = HandMirror(tmp_path)
    Follower(mirror, UPSERT).land([keyed.Record(None, b'{"id": 7}')])
    sink = mirror.sink()
    sink.load("run")
    other = replace(IDENTITY, topic_id="recreated")
    with pytest.raises(InvalidArgument, match=r"topic: .* has records of another topic .* in a table of its own"):
        sink.commit(Landing("l", "run", {other: TopicEntry()}, {}))


def test_entries_of_deleted_rows_never_expire_if_a_sequence_orders_the_records(tmp_path: Path) -> None:
    for by, kept in ((None, {0: 9}), ("at", {})):
        mirror = HandMirror(tmp_path / str(by))
        config = UPSERT | ({} if by is None else {"sequence_by": by})
        Follower(mirror, config).land([keyed.Record(None, b'{"id": 7, "at": 1}')])
        sink = mirror.sink()
        sink.load("run")
        seen: list[Any] = []
        sink.table.merge = lambda batch, design, landing, seen=seen: seen.append(landing.lows) or 0
        sink.commit(Landing("l", "run", {IDENTITY: TopicEntry()}, {}, lows={0: 9}))
        assert seen == [kept]
