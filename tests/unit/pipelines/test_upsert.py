"""Pipelines with mode: upsert: the arguments of each engine, and what a file may not combine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.cdc.events.documents import DocumentPayload
from airflow_lakestream.cdc.events.records import RecordPayload
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.policies import Tombstones
from airflow_lakestream.pipelines.check import check
from airflow_lakestream.pipelines.operator import python_of
from airflow_lakestream.spark.app_config import landing_of
from tests.unit.pipelines.test_files import compiled, operator_of, problems

UPSERT = """
metadata: {name: customers}
sources:
  customers: {type: kafka, topic: customers, key_format: string, tombstones: delete}
sinks:
  lake: {type: iceberg, table: lake.customers, mode: upsert, key: [id], schema: "id string"}
orchestration: {engine: extract}
"""

ROWS = "{name: rows, type: sql_transform, input: customers, sql: 'SELECT 1 AS id FROM {{ input }}'}"


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_the_extract_engine_keeps_a_table_by_key_with_the_mirror_operator(tmp_path: Path, kind: str) -> None:
    table = "lake.customers" if kind == "iceberg" else "/lake/customers"
    found = compiled(tmp_path, UPSERT.replace("iceberg", kind).replace("lake.customers", table))
    call = operator_of(found)
    assert call.name == "KafkaMirrorOperator"
    assert (call.arguments["envelope"], call.arguments["key"], call.arguments["key_format"]) == (None, ["id"], "string")
    assert "envelope=None" in python_of(found)
    flattened = compiled(tmp_path, UPSERT.replace("key_format: string,", "envelope: flattened,"))
    assert operator_of(flattened).arguments["envelope"] == "flattened"
    [config] = check(found)
    assert isinstance(config, MirrorConfig)
    assert isinstance(config.payload, RecordPayload)
    assert config.tombstone_policy is Tombstones.DELETE


@pytest.mark.parametrize("envelope", ["maxwell", "canal"])
def test_a_mirror_follows_documents_of_another_program_in_the_worker_and_on_spark(
    tmp_path: Path, envelope: str
) -> None:
    text = (
        UPSERT.replace("key_format: string", f"envelope: {envelope}")
        .replace(", tombstones: delete", "")
        .replace("mode: upsert", "mode: mirror")
    )
    found = compiled(tmp_path, text)
    assert operator_of(found).arguments["envelope"] == envelope
    [config] = check(found)
    assert isinstance(config, MirrorConfig)
    assert isinstance(config.payload, DocumentPayload)
    call: dict[str, Any] = dict(
        operator_of(compiled(tmp_path, text.replace("engine: extract", "engine: spark"))).arguments
    )
    by_spark = landing_of(call["app"], {"consumer_group": "g", **call["app_config"]})
    assert isinstance(by_spark, MirrorConfig)
    assert by_spark.program == envelope
    (problem,) = problems(tmp_path, text.replace("mode: mirror", "mode: upsert"))
    assert "mode: upsert takes plain records, or flattened ones" in problem


def test_transformations_are_the_statement_before_the_merge(tmp_path: Path) -> None:
    text = UPSERT.replace("sinks:", f"transformations: [{ROWS}]\nsinks:").replace(', schema: "id string"', "")
    found = compiled(tmp_path, text)
    assert operator_of(found).arguments["sql"] == "SELECT 1 AS id FROM {{ input }}"
    [config] = check(found)
    assert isinstance(config, MirrorConfig)
    assert isinstance(config.payload, RecordPayload)
    assert config.payload.statement is not None
    assert config.payload.statement.columns.names == ["id"]


def test_spark_keeps_the_same_table_with_its_app_of_mirrors(tmp_path: Path) -> None:
    text = UPSERT.replace("[id],", "[id], sequence_by: at, delete_when: is_deleted,")
    found = compiled(tmp_path, text.replace("engine: extract", "engine: spark"))
    call: dict[str, Any] = dict(operator_of(found).arguments)
    assert call["app"] == "cdc_to_iceberg"
    config = landing_of(call["app"], {"consumer_group": "g", **call["app_config"]})
    assert isinstance(config, MirrorConfig)
    assert config.is_of_records
    assert config.mirror.sequence_by == ("at",)
    assert isinstance(config.payload, RecordPayload)
    assert config.payload.delete_when == "is_deleted"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("key: [id], ", "", "key is missing: plain records do not show which columns identify a row"),
        ("mode: upsert", "mode: mirror", "key_format is not for a mirror: keys are taken from the row"),
        ("mode: upsert", "mode: append", "key is not for a landing of records"),
        ("key_format: string", "envelope: debezium", "mode: upsert takes plain records"),
        ("key: [id]", "key: [id], source_tables: a", "source_tables is not for a table by key"),
        ("key: [id]", "key: [id], delete_when: SELECT true", "delete_when: 'SELECT true' is not a condition"),
        ("key: [id]", "key: [id], insert_only: true", "insert_only: does not go with tombstones='delete'"),
        ("key: [id]", "key: [id], within: 7 days", "within: '7 days' is for messages sent twice"),
        ("mode: upsert, key: [id]", "delete_when: a", "delete_when is not for a landing of records"),
        ("key: [id]", "key: [id], merge: some", "merge: 'some'"),
        ("engine: extract", "engine: flink", "upsert is not for the engine flink"),
        ("engine: extract", "engine: group", "upsert is not for the engine group"),
        ("mode: upsert, key: [id]", "sequence_by: at", "sequence_by is not for a landing of records"),
    ],
    ids=lambda one: one[:40],
)  # fmt: skip
def test_what_contradicts_the_mode_is_named_with_its_key(tmp_path: Path, old: str, new: str, said: str) -> None:
    found = problems(tmp_path, UPSERT.replace(old, new))
    assert any(said in one for one in found), found


def test_the_envelope_of_flattened_events_is_refused_for_a_table_without_key(tmp_path: Path) -> None:
    text = UPSERT.replace("key_format: string", "envelope: flattened").replace("mode: upsert, key: [id], ", "")
    (found,) = problems(tmp_path, text)
    assert "envelope: 'flattened' is not one of 'connect', 'debezium'" in found
