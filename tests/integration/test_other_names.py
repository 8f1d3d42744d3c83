"""Fields that got another name in the registry's newest schema: no value is lost, on the real broker and registry."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import message_factory

from airflow_lakestream.decode.protobuf.schema import compile_proto
from dev.services.registry import Registry
from tests.support.avro_records import written
from tests.support.broker import Producing
from tests.support.delta_lake import EACH_FORMAT
from tests.support.lake import Lake
from tests.support.lake_reading import one_partition
from tests.support.parallel_run import ParallelRun
from tests.support.shared_run import SharedRun

pytestmark = pytest.mark.integration

name = one_partition

OLD = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]}
NEW: dict[str, Any] = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "id", "type": "long"}, {"name": "user_name", "type": "string", "aliases": ["name"]}],
}
MORE: dict[str, Any] = {**NEW, "fields": [*NEW["fields"], {"name": "note", "type": "string", "default": ""}]}
PROTOS = [f'syntax = "proto3"; message R {{int64 id = 1; string {name} = 2;}}' for name in ("name", "user_name")]


def avro(schema: dict[str, Any], schema_id: int, start: int, count: int) -> list[bytes]:
    rows = [{"id": n, "name": f"n{n}", "user_name": f"n{n}", "note": "x"} for n in range(start, start + count)]
    names = [one["name"] for one in schema["fields"]]
    return [written(schema, schema_id, {name: row[name] for name in names}) for row in rows]


def protobuf(text: str, schema_id: int, start: int, count: int) -> list[bytes]:
    descriptor = compile_proto(text).descriptor((0,))
    message = message_factory.GetMessageClass(descriptor)
    head = b"\0" + schema_id.to_bytes(4, "big") + b"\0"
    return [
        head + message(**{"id": n, descriptor.fields[1].name: f"n{n}"}).SerializeToString()
        for n in range(start, start + count)
    ]


# Delta's tables are not widened.
@pytest.mark.parametrize(
    ("lake", "evolution"),
    [*((lake, evolution) for lake in ("iceberg", "delta") for evolution in ("none", "add")), ("iceberg", "widen")],
    indirect=["lake"],
)
def test_a_field_with_an_alias_goes_into_the_column_that_is_there(
    lake: Lake, name: str, produce: Producing, registry: Registry, evolution: str
) -> None:
    given = {"format": "avro", "schema_registry": registry.url, "schema_evolution": evolution}
    produce(name, 0, avro(OLD, registry.register(f"{name}-value", json.dumps(OLD)), 0, 10))
    lake.land(name, **given)
    produce(name, 0, avro(MORE, registry.register(f"{name}-value", json.dumps(MORE)), 10, 10))
    report = lake.land(name, **given)
    assert report.counts.written == 10
    assert lake.column("name") == [f"n{n}" for n in range(20)]
    columns = [one for one in lake.columns().names if not one.startswith("_kafka_")]
    assert columns == (["id", "name"] if evolution == "none" else ["id", "name", "note"])


@EACH_FORMAT
def test_records_of_the_older_schema_go_into_the_newer_ones_column(
    lake: Lake, name: str, produce: Producing, registry: Registry
) -> None:
    old, new = (registry.register(f"{name}-value", json.dumps(one)) for one in (OLD, NEW))
    given = {"format": "avro", "schema_registry": registry.url}
    produce(name, 0, [*avro(OLD, old, 0, 20), *avro(NEW, new, 20, 20)])
    ParallelRun(lake, name, given).land()
    assert lake.column("user_name") == [f"n{n}" for n in range(40)]
    produce(name, 0, [*avro(NEW, new, 40, 20), *avro(OLD, old, 60, 20)])
    group = SharedRun(lake, name, given)
    plan = group.plan()
    group.commit(plan, group.read_all(plan))
    assert lake.column("user_name") == [f"n{n}" for n in range(80)]


@EACH_FORMAT
@pytest.mark.parametrize("evolution", ["none", "add"])
def test_protobufs_fields_are_known_by_the_numbers_in_the_registrys_versions(
    lake: Lake, name: str, produce: Producing, registry: Registry, evolution: str
) -> None:
    given = {"format": "protobuf", "schema_registry": registry.url, "schema_evolution": evolution}
    old = registry.register(f"{name}-value", PROTOS[0], "PROTOBUF")
    produce(name, 0, protobuf(PROTOS[0], old, 0, 10))
    lake.land(name, **given)
    new = registry.register(f"{name}-value", PROTOS[1], "PROTOBUF")
    produce(name, 0, [*protobuf(PROTOS[1], new, 10, 10), *protobuf(PROTOS[0], old, 20, 10)])
    lake.land(name, **given)
    assert lake.column("name") == [f"n{n}" for n in range(30)]
    assert "user_name" not in lake.columns().names
