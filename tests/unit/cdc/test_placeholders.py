"""What a connector writes for values that it leaves out, whatever its placeholder is: extracts and mirrors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.cdc.columns import UNAVAILABLE
from airflow_lakestream.cdc.events.decoder import EventPayload
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.policies import OnError, Tombstones
from airflow_lakestream.decode.connect.unavailable import USUAL, ValuePlaceholder, left_out, may_be_left_out
from airflow_lakestream.decode.rows import RowDecoderFactory
from airflow_lakestream.exceptions import BadRecord, InvalidArgument
from tests.support.given_records import FORMATS, GivenLake
from tests.unit.decode.support import batch

KINDS = [
    *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.uuid(), pa.binary(16)),
    *(pa.list_(kind) for kind in (pa.string(), pa.binary(), pa.uuid(), pa.int32(), pa.int64(), pa.date32())),
    *(pa.large_list(pa.string()), pa.map_(pa.string(), pa.string())),
]
SETTINGS = st.one_of(
    st.sampled_from([UNAVAILABLE, "-", "hex:00", "hex:ff80", "hex:5F5F", "ünavailable", "hex:c3bc"]),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: not text.startswith("hex:")),
    st.binary(min_size=1).map(lambda octets: f"hex:{octets.hex()}"),
)


@pytest.mark.parametrize(("setting", "value"), [("hex:2d2d", "--"), ("left out", "left out")])
@pytest.mark.parametrize("envelope", ["flattened", None])
def test_a_flattened_event_that_leaves_a_value_out_is_bad_whatever_the_placeholder_is(
    tmp_path: Path, setting: str, value: str, envelope: str | None
) -> None:
    lake = GivenLake(tmp_path, kind=MirrorConfig)
    config = {"envelope": envelope, "key": ["id"], "unavailable_placeholder": setting}
    usual = b'{"id": 1, "text": "__debezium_unavailable_value"}'
    lake.land([usual], **config)
    with pytest.raises(BadRecord, match=f"offset 1: text: {setting} is Debezium's mark of a value that it left out"):
        lake.land([usual, json.dumps({"id": 1, "text": value}).encode()], **config)


@given(SETTINGS, st.sampled_from(KINDS))
def test_the_placeholder_of_each_type_is_found_and_nothing_else(setting: str, kind: pa.DataType) -> None:
    placeholder = ValuePlaceholder(setting)
    assert may_be_left_out(kind)
    value = placeholder.of(kind)
    assert (value.type, len(value)) == (kind, 1)
    column = pa.concat_arrays([value, pa.nulls(1, kind), ValuePlaceholder("hex:" + "01" * 40).of(kind), value])
    assert left_out(column, placeholder).tolist() == [True, False, False, True]
    # As a slice, too.
    assert left_out(column.slice(1), placeholder).tolist() == [False, False, True]


@pytest.mark.parametrize("setting", ["", "hex:", "hex:0", "hex:xy"])
def test_a_placeholder_that_is_none_is_refused_by_name(setting: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^unavailable_placeholder: "):
        EventPayload(envelope="debezium", unavailable_placeholder=setting)


def event(op: str, row: dict[str, Any], lsn: int = 1) -> bytes:
    source = {"lsn": lsn, "sequence": f'["{lsn}", "{lsn}"]', "ts_ms": 1, "snapshot": "false"}
    return json.dumps({"before": None, "after": row, "source": source, "op": op, "ts_ms": 1}).encode()


def rows_with(placeholder: ValuePlaceholder) -> list[bytes]:
    whole = {"id": 1, "big": "b", "tags": ["x"], "counts": [1, 2]}
    left = {"id": 1, "big": placeholder.text, "tags": [placeholder.text], "counts": placeholder.numbers.tolist()}
    return [event("c", whole), event("u", left, 2), event("u", {**whole, "big": placeholder.text}, 3)]


def decoded(values: list[bytes], placeholder: str) -> pa.Table:
    payload = EventPayload(envelope="debezium", unavailable_placeholder=placeholder, stops=True)
    make = RowDecoderFactory(payload, ("partition", "offset"), None, OnError.FAIL, Tombstones.SKIP)
    decoder = make(None, batch(values))
    assert decoder is not None
    return decoder.decode(batch(values)).rows


@pytest.mark.parametrize("setting", ["-left-out-", "hex:ff80ff", "ünavailable"])
def test_a_mirror_knows_any_placeholder_as_it_knows_the_usual_one(setting: str) -> None:
    found, usual = decoded(rows_with(ValuePlaceholder(setting)), setting), decoded(rows_with(USUAL), UNAVAILABLE)
    for name in ("id", "big", "tags", "counts"):
        assert found[name].to_pylist() == usual[name].to_pylist()
    assert left_out(found["counts"]).tolist() == [False, True, False]
    assert np.array_equal(left_out(found["big"]), [False, True, True])


def test_a_mirror_takes_no_value_for_left_out_that_the_connector_would_not_write() -> None:
    with pytest.raises(BadRecord, match=r"big: has __debezium_unavailable_value, which is not the connector's"):
        decoded([event("c", {"id": 1, "big": UNAVAILABLE})], "-left-out-")


def test_a_mirror_has_no_choice_of_what_becomes_of_them() -> None:
    config = {"topic": "t", "table": "lake.t", "consumer_group": "g"}
    assert MirrorConfig(**config, unavailable_placeholder="hex:ff").payload.unavailable_placeholder == "hex:ff"
    with pytest.raises(InvalidArgument, match=r"^unavailable_values: is not for a mirror"):
        MirrorConfig(**config, unavailable_values="null")


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("setting", [UNAVAILABLE, "hex:ff80ff"])
def test_an_extract_rejects_what_leaves_a_value_out(tmp_path: Path, kind: str, setting: str) -> None:
    lake = GivenLake(tmp_path, kind)
    report = lake.land(rows_with(ValuePlaceholder(setting)), envelope="debezium", unavailable_placeholder=setting)
    assert (report.counts.written, report.counts.rejected) == (1, 2)
    assert [row["big"] for row in lake.rows()] == ["b"]
    assert "big: Debezium left the value out" in lake.rejected()[1]["error"]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("setting", [UNAVAILABLE, "hex:ff80ff"])
def test_an_extract_makes_them_null_with_their_names(tmp_path: Path, kind: str, setting: str) -> None:
    lake = GivenLake(tmp_path, kind)
    told = {"envelope": "debezium", "unavailable_placeholder": setting, "unavailable_values": "null"}
    assert lake.land(rows_with(ValuePlaceholder(setting)), **told).counts.written == 3
    rows = sorted(lake.rows(), key=lambda row: row["_kafka_offset"])
    assert [(row["big"], row["tags"], row["counts"]) for row in rows] == [
        ("b", ["x"], [1, 2]),
        (None, None, None),
        (None, ["x"], [1, 2]),
    ]
    assert [row["_unavailable"] for row in rows] == [None, ["big", "tags", "counts"], ["big"]]


def test_without_a_column_for_the_names_the_event_is_rejected(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path, "iceberg")
    told = {"envelope": "debezium", "unavailable_values": "null", "schema": "id bigint, big string"}
    assert lake.land(rows_with(USUAL), **told).counts.rejected == 2
    assert "the table has no column _unavailable to note it" in lake.rejected()[1]["error"]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("image", ["before", "after"])
def test_a_whole_row_beside_the_columns_has_no_placeholder_either(tmp_path: Path, kind: str, image: str) -> None:
    row = {"id": 1, "big": UNAVAILABLE}
    event = json.dumps({"op": "u", "before": row, "after": row, "source": {"lsn": 5}, "ts_ms": 1}).encode()
    lake = GivenLake(tmp_path, kind)
    told = {"envelope": "debezium", "schema": f"id bigint, _{image} struct<id: bigint, big: string>"}
    assert lake.land([event], **told, max_rejected=1.0).counts.rejected == 1
    assert lake.rejected()[0]["error"].startswith(f"_{image}.big: Debezium left the value out")
    assert lake.land([event, event], **told, unavailable_values="null").counts.written == 1
    assert [found[f"_{image}"] for found in lake.rows()] == [{"id": 1, "big": None}]


def test_the_arguments_go_with_the_envelope(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r'^unavailable_values: goes with envelope="debezium"'):
        GivenLake(tmp_path, "iceberg").job([b"{}"], unavailable_values="null")
