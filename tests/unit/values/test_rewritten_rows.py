"""Rows that a commit reads and writes again keep their values, of whatever nested type and however often null."""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.given_records import FORMATS, GivenLake

# Types of columns that stand in each other, and strategies of their values as JSON.
Kind = tuple[str, st.SearchStrategy[Any]]
FLAT: list[Kind] = [
    ("bigint", st.integers(-5, 5)),
    ("string", st.text("aé\n", max_size=2)),
    ("decimal(9,2)", st.sampled_from(["0.00", "-1.25"])),
    ("date", st.just("2026-11-29")),
]


def placed(shape: str, kind: Kind) -> Kind:
    """Return lists, maps or structs of a kind; each value may be null, and each list or map empty."""
    name, values = kind[0], st.none() | kind[1]
    if shape == "list":
        return f"array<{name}>", st.lists(values, max_size=2)
    if shape == "map":
        return f"map<string, {name}>", st.dictionaries(st.sampled_from("kl"), values, max_size=2)
    return f"struct<a: {name}, b: int>", st.fixed_dictionaries({"a": values, "b": st.none() | st.integers(0, 1)})


SHAPES = ("list", "map", "struct")
# Each pair of shapes, one in the other.
PAIRS = [*itertools.product(SHAPES, SHAPES)]


@settings(max_examples=max(10, settings.default.max_examples // 3))
@given(st.data(), st.sampled_from(FORMATS))
def test_a_replace_changes_no_value_of_its_neighbours(data: st.DataObject, table_format: str) -> None:
    flat = data.draw(st.sampled_from(FLAT))
    kinds = [flat, *(placed(outer, placed(inner, flat)) for outer, inner in PAIRS)]
    rows = st.fixed_dictionaries({f"c{n}": st.none() | values for n, (_, values) in enumerate(kinds)})
    records = [json.dumps(row).encode() for row in data.draw(st.lists(rows, min_size=2, max_size=6))]
    schema = ", ".join(f"c{n} {name}" for n, (name, _) in enumerate(kinds))
    with tempfile.TemporaryDirectory() as folder:
        lake = GivenLake(Path(folder), table_format)
        lake.land(records, schema=schema)
        before = sorted(lake.by_duckdb(), key=lambda row: row["_kafka_offset"])
        assert lake.rows() == before

        report = lake.land(records, schema=schema, mode="ranges", ranges=[[0, 0, 1]], replace=True)

        assert report.counts.written == 1
        assert sorted(lake.by_duckdb(), key=lambda row: row["_kafka_offset"]) == before
        # By the ids of fields, those within lists and maps included.
        assert lake.rows() == before
