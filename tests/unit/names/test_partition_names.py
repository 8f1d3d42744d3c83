"""Partition names that Avro does not tell apart: refused, since nobody could read the table's manifests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg.write.layout import check_names
from tests.support.given_records import GivenLake

ALIKE = [
    ("order-id", "order_x2Did"),
    ("a b", "a_x20b"),
    ("1st", "_1st"),
    ("a.b", "a_x2Eb"),
    ("\u20ac", "_x20AC"),
    # As Java has it, and as PyIceberg has it.
    ("a\U0001f600", "a_xD83D_xDE00"),
    ("a\U0001f600", "a_x1F600"),
]
APART = [("order-id", "order_id"), ("a b", "a-b"), ("1st", "first"), ("order-id", "order_x2did")]


def spec(*names: str) -> PartitionSpec:
    fields = (PartitionField(n, 1000 + n, IdentityTransform(), name) for n, name in enumerate(names, 1))
    return PartitionSpec(*fields)


@pytest.mark.parametrize(("one", "other"), ALIKE)
@pytest.mark.parametrize("order", [1, -1])
def test_names_that_are_one_in_avro_are_refused_before_a_table_is_made(
    tmp_path: Path, one: str, other: str, order: int
) -> None:
    lake = GivenLake(tmp_path)
    names = [one, other][::order]
    with pytest.raises(InvalidArgument, match=r"^partition_by: .* in Avro, .* nobody could read the table"):
        lake.land([json.dumps(dict.fromkeys(names, "x")).encode()], partition_by=[f'"{name}"' for name in names])
    assert not lake.catalog().table_exists(lake.name)


@pytest.mark.parametrize(("one", "other"), APART)
def test_a_table_with_other_names_is_read_back(tmp_path: Path, one: str, other: str) -> None:
    lake = GivenLake(tmp_path)
    lake.land([json.dumps({one: "x", other: "y"}).encode()], partition_by=[f'"{one}"', f'"{other}"'])
    assert [(row[one], row[other]) for row in lake.rows()] == [("x", "y")]


def test_a_table_whose_partitions_another_engine_evolved_so_is_refused_before_reading(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path)
    lake.land([b'{"order-id": "a", "order_x2Did": "b"}'], partition_by=['"order-id"'])
    with lake.iceberg().update_spec() as update:
        update.add_identity("order_x2Did")
    head = lake.iceberg().current_snapshot()
    with pytest.raises(InvalidArgument, match=r"lake\.events: the partitions 'order-id' and 'order_x2Did'"):
        lake.land([b"{}", b"{}"])
    assert lake.iceberg().current_snapshot() == head
    assert len(lake.rows()) == 1


@given(st.lists(st.text("a1_-x2D \u20ac\U0001f600", min_size=1, max_size=6), min_size=2, max_size=2, unique=True))
def test_what_is_refused_has_one_name_in_avro(names: list[str]) -> None:
    avro = [_as_in_java(name) for name in names]
    if avro[0] == avro[1]:
        with pytest.raises(InvalidArgument):
            check_names(spec(*names))
    elif all(ord(one) < 0x10000 for name in names for one in name):
        check_names(spec(*names))


def _as_in_java(name: str) -> str:
    text = name.encode("utf-16-be")
    units = [int.from_bytes(text[at : at + 2], "big") for at in range(0, len(text), 2)]
    made = ""
    for place, unit in enumerate(units):
        one = chr(unit)
        plain = one == "_" or (one.isascii() and (one.isalpha() or (place and one.isdigit())))
        made += one if plain else f"_{one}" if one.isdigit() else f"_x{unit:X}"
    return made
