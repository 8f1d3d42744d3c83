"""Columns that readers of Iceberg keep for themselves: no table gets one, whichever way it would come."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.names import ICEBERG_COLUMNS
from airflow_lakestream.exceptions import InvalidArgument
from tests.support.given_records import FORMATS, GivenLake

NAMES = [*ICEBERG_COLUMNS, "_FILE", "_Pos"]
RENAMED = {name: f"its{name.lower()}" for name in NAMES}
AVRO = {"type": "record", "name": "R", "fields": [{"name": name, "type": "long"} for name in ("id", "_pos")]}


def record(name: str, number: int = 1) -> bytes:
    return json.dumps({"id": number, name: number}).encode()


def avro(number: int = 1) -> bytes:
    # Both numbers in zigzag, behind the schema's id.
    return b"\0\0\0\0\1" + bytes([2 * number]) * 2


def columns(lake: GivenLake) -> list[str]:
    return [name for name in lake.iceberg().schema().column_names if not name.startswith("_kafka_")]


def values(lake: GivenLake) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if not k.startswith("_kafka_")} for row in lake.rows()]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", ["inferred", "given", "added", "by sql"])
def test_a_column_with_a_taken_name_is_refused(tmp_path: Path, name: str, way: str) -> None:
    lake = GivenLake(tmp_path)
    config: dict[str, Any] = {
        "inferred": {},
        "given": {"schema": f"id bigint, `{name}` bigint"},
        "added": {"schema": f"id bigint, `{name}` bigint", "schema_evolution": "add"},
        "by sql": {"sql": f'select 1 as id, 2 as "{name}" from {{{{ input }}}}'},
    }[way]
    if way == "added":
        lake.land([b'{"id": 0}'])
    with pytest.raises(InvalidArgument, match=rf"{name}.*readers of Iceberg keep the name .*rename_columns"):
        lake.land([b'{"id": 0}', *[record(name)] * 30][way != "added" :], **config)
    if way == "added":
        assert columns(lake) == ["id"]
    else:
        assert not lake.catalog().table_exists(lake.name)


def test_a_registrys_column_with_a_taken_name_is_refused_or_renamed(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path, schemas={1: ("AVRO", json.dumps(AVRO))})
    with pytest.raises(InvalidArgument, match=r"_pos.*rename_columns"):
        lake.land([avro()], format="avro")
    lake.land([avro(7)], format="avro", rename_columns={"_pos": "place"})
    assert values(lake) == [{"id": 7, "place": 7}]


@pytest.mark.parametrize("name", NAMES)
def test_a_rescued_field_keeps_its_name_and_an_evolved_one_is_bad(tmp_path: Path, name: str) -> None:
    lake = GivenLake(tmp_path)
    lake.land([record(name)], unknown_fields="rescue")
    assert columns(lake) == ["id", "_rescued"]
    assert json.loads(values(lake)[0]["_rescued"]) == {name: 1}
    other = GivenLake(tmp_path / "other")
    other.folder.mkdir()
    other.land([b'{"id": 0}', record(name)], unknown_fields="evolve", schema_evolution="add", max_rejected=1.0)
    assert columns(other) == ["id"]
    assert "rename_columns" in other.rejected()[1]["error"]


@pytest.mark.parametrize("table_format", FORMATS)
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"schema": "id bigint, place bigint"},
        {"unknown_fields": "rescue"},
        {"unknown_fields": "evolve", "schema_evolution": "add"},
        {"unknown_fields": "fail"},
    ],
    ids=str,
)
def test_renamed_fields_land_in_columns_of_the_new_names(
    tmp_path: Path, table_format: str, config: dict[str, Any]
) -> None:
    lake = GivenLake(tmp_path, table_format)
    for number in range(2):
        records = [record("_pos", at) for at in range(3 * (number + 1))]
        lake.land(records, rename_columns='{"_pos": "place"}', **config)
    assert [(row["id"], row["place"]) for row in values(lake)] == [(at, at) for at in range(6)]
    assert lake.rejected() == {}


def test_renamed_fields_come_up_later_and_swap_names(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path)
    records = [b'{"id": 0}', record("_pos", 1), b'{"id": 2, "a": 1, "b": "x", "place": 5}']
    config = {"unknown_fields": "evolve", "schema_evolution": "add", "max_rejected": 1.0}
    lake.land(records, rename_columns={"_pos": "place", "a": "b", "b": "a"}, **config)
    assert [(row["id"], row["place"]) for row in values(lake)] == [(0, None), (1, 1)]
    assert "filled with something else" in lake.rejected()[2]["error"]
    lake.land([*records, b'{"id": 3, "a": 1, "b": "x"}'], rename_columns={"a": "b", "b": "a"}, **config)
    assert values(lake)[-1] == {"id": 3, "place": None, "a": "x", "b": 1}


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"rename_columns": {"a": "_file"}}, "'a' can't become '_file': readers of Iceberg keep the name"),
        ({"rename_columns": {"a": "_kafka_x"}}, "'a' can't become '_kafka_x': names that begin with _kafka_"),
        ({"rename_columns": {"a": "_key"}}, "'a' can't become '_key': a column of this name is filled with"),
        ({"rename_columns": {"a": "_rescued"}}, "'a' can't become '_rescued': a column of this name is filled with"),
        ({"rename_columns": {"a": "c", "b": "C"}}, "'a' can't become 'c': two columns get it"),
        ({"rename_columns": {"a": "x" * 256}}, "more than 255 characters"),
        ({"rename_columns": {"a": "b"}, "format": "csv", "schema": "b int"}, "with format='csv' fields have no names"),
        (
            {"rename_columns": {"a": "b"}, "sql": "select 1 as b from {{ input }}"},
            "the statement in sql names the columns",
        ),
        ({"rename_columns": "a"}, "is not a mapping of names"),
        ({"rename_columns": {"a": "b;"}, "table": "/lake/t", "table_format": "delta"}, "a Delta table takes no ';'"),
    ],
    ids=str,
)
def test_new_names_that_no_column_can_have_are_refused(config: dict[str, Any], error: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^rename_columns: .*{error}"):
        ExtractConfig(**{"topic": "t", "table": "lake.t", "consumer_group": "g", **config})


def test_a_field_beside_a_renamed_one_and_a_column_that_nothing_fills_are_refused(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path)
    with pytest.raises(InvalidArgument, match=r"rename_columns: .*'_pos', 'place'.* would be one column"):
        lake.land([b'{"_pos": 1, "place": 2}'], rename_columns={"_pos": "place"})
    lake.land([b'{"a": 1}'])
    with pytest.raises(InvalidArgument, match="rename_columns: the table has a column 'a' as well"):
        lake.land([b'{"a": 1}', b'{"a": 2}'], rename_columns={"a": "b"})


def test_a_table_that_has_such_a_column_is_landed_in_as_before(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path)
    lake.land([b'{"id": 0}'])
    with lake.iceberg().update_schema() as update:
        update.add_column("_pos", lake.iceberg().schema().find_field("id").field_type)
    lake.land([b'{"id": 0}', record("_pos")])
    assert values(lake)[-1] == {"id": 1, "_pos": 1}


def test_a_delta_table_takes_these_names(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path, "delta")
    lake.land([record("_pos")])
    assert values(lake) == [{"id": 1, "_pos": 1}]
