"""What a writer or a library fails on costs the record that it is the fault of, and no run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_lakestream.exceptions import BadRecord, InvalidArgument
from airflow_lakestream.tables.row_buffer import culprits
from tests.support.given_records import GivenLake

LAKES = pytest.mark.parametrize("table_format", ["iceberg", "delta"])


def value(v: Any, **others: Any) -> bytes:
    return json.dumps({"v": v, **others}).encode()


# A setting of the table, the columns, and values: good ones, and those of which no file can be made.
CASES: dict[str, tuple[str, dict[str, Any], list[Any], list[Any]]] = {
    "an empty string in a partition of Delta": (
        "delta",
        {"schema": "v string, n int", "partition_by": ["v"]},
        ["a", None, "b"],
        [""],
    ),
    "a decimal whose partition has a digit too many": (
        "iceberg",
        {"schema": "v decimal(9,2), n int", "partition_by": ["truncate(7, v)"]},
        ["1.00", "-9999999.00", "9999999.99", None],
        ["-9999999.99"],
    ),
    "a decimal of 38 digits whose partition has 39": (
        "iceberg",
        {"schema": "v decimal(38,0), n int", "partition_by": ["truncate(7, v)"]},
        ["1", "9" * 38],
        ["-" + "9" * 38],
    ),
    "an integer whose partition is below the lowest one": (
        "iceberg",
        {"schema": "v bigint, n int", "partition_by": ["truncate(3, v)"]},
        [2**63 - 1, 0, None],
        [-(2**63)],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_value_of_which_no_file_can_be_made_rejects_its_record(tmp_path: Path, case: str) -> None:
    table_format, config, good, bad = CASES[case]
    values = [value(v, n=n) for n, v in enumerate([*good, *bad, *good])]
    lake = GivenLake(tmp_path, table_format)

    report = lake.land(values, **config)

    at = range(len(good), len(good) + len(bad))
    assert (report.counts.read, report.counts.rejected) == (len(values), len(bad))
    assert [row["n"] for row in lake.rows()] == [n for n in range(len(values)) if n not in at]
    rejected = lake.rejected()
    assert {offset: (row["stage"], row["value"]) for offset, row in rejected.items()} == {
        n: ("write", values[n]) for n in at
    }
    assert all(row["error"].startswith("no file can hold it: ") for row in rejected.values())
    # Nothing is left of the first try.
    assert len(list(Path(tmp_path).rglob("*.parquet"))) == len(lake.files()) + len(lake.files(f"{lake.name}__rejected"))


@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_the_policy_for_bad_records_goes_for_it_too(tmp_path: Path, on_error: str) -> None:
    lake = GivenLake(tmp_path, "delta")
    values = [value(v) for v in ("a", "", "b")]
    config: dict[str, Any] = {"schema": "v string, n int", "partition_by": ["v"], "on_error": on_error}
    if on_error == "fail":
        with pytest.raises(BadRecord, match=r"given\[0\] offset 1: no file can hold it: InvalidArgument: partition_by"):
            lake.land(values, **config)
        return
    report = lake.land(values, **config)
    assert (report.counts.written, report.counts.skipped) == (2, 1)
    assert len(lake.rows()) == 2


def test_a_replace_is_careful_too(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path, "delta")
    config: dict[str, Any] = {"schema": "v string, n int", "partition_by": ["v"]}
    lake.land([value(v) for v in ("a", "b", "c")], **config)

    lake.land([value(v) for v in ("a", "", "c")], mode="ranges", ranges=[[0, 0, 3]], replace=True, **config)

    assert [row["_kafka_offset"] for row in lake.rows()] == [0, 2]
    assert set(lake.rejected()) == {1}


@LAKES
def test_what_is_wrong_with_the_table_is_no_records_fault(tmp_path: Path, table_format: str) -> None:
    lake = GivenLake(tmp_path, table_format)
    rows = pa.table({"v": [1, 2]})

    def write(some: pa.Table) -> None:
        raise InvalidArgument("rows", "the table has no such column.")

    with pytest.raises(InvalidArgument, match="no such column"):
        culprits(rows, write)
    lake.land([value(1)], schema="v int")
    assert lake.rejected() == {}


def test_a_codec_that_does_not_exist_is_refused_and_rejects_nothing(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path)
    with pytest.raises(InvalidArgument, match=r"^table_properties: write\.parquet\.compression-codec is 'none-such'"):
        lake.land([value(1)], schema="v int", table_properties={"write.parquet.compression-codec": "none-such"})
    assert not lake.catalog().list_namespaces()


def test_long_strings_partition_a_table(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path)
    texts = ["x" * 60_000, "é" * 200, "a", "..", ".", "/", "", None, "\0", "\n"]
    lake.land([value(text) for text in texts], schema="v string", partition_by=["v"])
    assert [row["v"] for row in lake.rows()] == texts
    assert len(lake.files()) == len(texts)


@LAKES
def test_texts_whose_bounds_can_hardly_be_written(tmp_path: Path, table_format: str) -> None:
    # A bound is cut to 16 characters, and the last of them raised: into the surrogates, or beyond the last character.
    texts = [
        "\ud7ff" * 17,
        "a" * 15 + "\ud7ff" * 2,
        "\U0010ffff" * 17,
        "b" + "\U0010ffff" * 20,
        "\ud7ff" * 16,
        "",
        "\0",
    ]
    for at, text in enumerate(texts):
        (tmp_path / str(at)).mkdir()
        lake = GivenLake(tmp_path / str(at), table_format)
        lake.land([value(text), value(None)], schema="v string")
        assert [row["v"] for row in lake.rows()] == [text, None]
        if table_format == "iceberg":
            assert len(lake.iceberg().scan(row_filter=f"v == '{text}'").to_arrow()) == 1 or "\0" in text


def test_culprits_are_found_wherever_they_stand() -> None:
    def write(rows: pa.Table) -> None:
        if {3, 4, 11} & set(rows["n"].to_pylist()):
            raise OverflowError("out of range")

    found = culprits(pa.table({"n": list(range(12))}), write)

    assert sorted(found) == [3, 4, 11]
    assert set(found.values()) == {"no file can hold it: OverflowError: out of range"}


def test_storage_that_fails_is_no_records_fault() -> None:
    def write(rows: pa.Table) -> None:
        if len(rows):
            raise TimeoutError("the store is slow")

    with pytest.raises(TimeoutError):
        culprits(pa.table({"n": [1, 2]}), write)


def test_a_fan_out_is_careful_too(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path)
    lake.catalog().create_namespace("lake")
    values = [value(v, kind=kind) for kind in ("x", "y") for v in ("1.00", "-9999999.99")]

    lake.land(
        values,
        schema="kind string, v decimal(9,2)",
        partition_by=["truncate(7, v)"],
        table="lake.{kind}",
        new_tables="create",
        home_table="lake.home",
    )

    assert [row["_kafka_offset"] for kind in ("x", "y") for row in lake.rows(f"lake.{kind}")] == [0, 2]
    assert [row["_kafka_offset"] for row in lake.rows("lake.home__rejected")] == [1, 3]
