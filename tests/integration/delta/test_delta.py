"""What Delta's tables alone are and can't be; the stories of both formats are beside this folder."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_lakestream.audit.delta import DeltaAudit
from airflow_lakestream.audit.rows import NoPositions
from airflow_lakestream.cli.app import run
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.exceptions import InvalidArgument
from tests.support.airflow_home import Connections
from tests.support.broker import TopicOf
from tests.support.delta_lake import DeltaLake
from tests.support.delta_table import GROUP
from tests.support.lake import Lake

pytestmark = pytest.mark.integration

EACH = 40

MIXED = [
    '{"id":1,"at":"2026-01-02T03:04:05.678901Z","price":"12.50","tags":["a",null],"place":{"lat":1.5},"by":"x"}',
    '{"id":2,"at":"1969-12-31T23:59:59.999999+02:00","price":"-0.01","tags":[],"place":null,"by":null}',
    '{"id":null,"at":null,"price":null,"tags":null,"place":{"lat":null},"by":"ü\\u0000z"}',
    '{"id":9223372036854775807,"day":"2026-02-03","raw":"AAEC","flag":true}',
    '{"id":1.5}',
    '{"id":9223372036854775808}',
    "null",
    "[1]",
    "",
    '{"id":4,"price":"1.234"}',
]
WIDE = (
    "id bigint, at timestamp, price decimal(10,2), tags array<string>, place struct<lat: double>, by string, "
    "day date, raw binary, flag boolean, local timestamp_ntz"
)


def test_the_same_records_give_the_same_rows_and_rejects_as_in_iceberg(
    lake: DeltaLake, topic_of: TopicOf, tmp_path: Path
) -> None:
    name = topic_of(MIXED)
    columns = ["topic", "partition", "offset", "timestamp", "key", "headers"]
    iceberg = Lake(tmp_path, lake.kafka)

    delta_report = lake.land(name, schema=WIDE, metadata_columns=columns)
    iceberg_report = iceberg.land(name, schema=WIDE, metadata_columns=columns)

    assert delta_report.counts == iceberg_report.counts
    there = iceberg.table().scan().to_arrow().sort_by("_kafka_offset")
    here = DeltaTable(lake.place).to_pyarrow_table().sort_by("_kafka_offset")
    assert here.column_names == there.column_names
    for column in there.column_names:
        # PyIceberg reads a null list of structs as an empty one.
        assert [one or None for one in here[column].to_pylist()] == [one or None for one in there[column].to_pylist()]
    rejects = iceberg.table("lake.events__rejected").scan().to_arrow().sort_by("_kafka_offset")
    own = ("value", "stage", "error", "_kafka_offset", "_kafka_headers")
    theirs = zip(*(rejects[name].to_pylist() for name in own), strict=True)
    assert [(*row[:-1], row[-1] or None) for row in lake.rejected(*own)] == [
        (*row[:-1], row[-1] or None) for row in theirs
    ]


def test_partitioned_and_sorted(lake: DeltaLake, topic_of: TopicOf) -> None:
    name = topic_of([f'{{"id":{n},"kind":{k}}}' for n, k in [(3, '"a"'), (1, '"b"'), (2, '"a"'), (4, "null")]])
    lake.land(name, schema="id bigint, kind string", partition_by=["kind"], sort_order=["id desc"])
    found = DeltaTable(lake.place).to_pyarrow_table()
    assert sorted(zip(found["id"].to_pylist(), found["kind"].to_pylist(), strict=True)) == [
        (1, "b"),
        (2, "a"),
        (3, "a"),
        (4, None),
    ]
    only = DeltaTable(lake.place).to_pyarrow_table(filters=[("kind", "=", "a")])
    assert only["id"].to_pylist() == [3, 2]


@pytest.mark.parametrize(
    ("settings", "argument"),
    [
        ({"partition_by": ["day(at)"]}, "partition_by"),
        ({"schema_evolution": "widen"}, "schema_evolution"),
        ({"table_properties": {"delta.columnMapping.mode": "name"}}, "table_properties"),
        ({"table_properties": {"lakestream.ledger.g": "x"}}, "table_properties"),
        ({"table": "lake.events"}, "table"),
        ({"table": "/lake/{topic}"}, "table"),
        ({"table": "/lake/{field}"}, "table"),
        ({"home_table": "lake.home"}, "home_table"),
        ({"schema": "id bigint, at time"}, "schema"),
        ({"schema": "id bigint, who uuid"}, "schema"),
        ({"schema": "id bigint, `two words` string"}, "schema"),
        ({"schema": "id bigint", "partition_by": ["nope"]}, "partition_by"),
        ({"schema": "id bigint", "sort_order": ["bucket(4, id)"]}, "sort_order"),
        ({"table_format": "hudi"}, "table_format"),
    ],
)
def test_what_a_delta_table_can_not_have_is_refused_by_name(
    lake: DeltaLake, filled: str, settings: dict[str, Any], argument: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        lake.land(filled, **settings)
    assert caught.value.argument == argument
    assert not Path(lake.place).exists()


def test_what_can_not_be_audited_is_said(lake: DeltaLake, filled: str) -> None:
    with pytest.raises(InvalidArgument, match="there is no Delta table at"):
        lake.audit()
    lake.land(filled)
    write_deltalake(f"{lake.folder}/plain", pa.table({"id": [1]}))
    with pytest.raises(NoPositions, match="_kafka_topic, _kafka_partition, _kafka_offset"):
        DeltaAudit(table=f"{lake.folder}/plain", consumer_group=GROUP).run(DeltaStorage())


def test_by_the_command_line(
    lake: DeltaLake, filled: str, connections: Connections, capsys: pytest.CaptureFixture[str]
) -> None:
    lake.land(filled)
    command = ["audit", "--table", lake.place, "--group", GROUP, "--full", "--json"]
    assert run(command) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "clean"
    DeltaTable(lake.place).delete("_kafka_offset = 7")
    assert run(command) == 1
