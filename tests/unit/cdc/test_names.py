"""Columns of odd names: they come to the same rows as plain ones, in each format of a table."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_lakestream.cdc.design import MirrorDesign
from airflow_lakestream.cdc.events.decoder import event_columns
from airflow_lakestream.cdc.events.names import ColumnNames
from airflow_lakestream.cdc.merge.entries import EntryFile, condensed
from airflow_lakestream.cdc.merge.memory import MirrorMemory, entry_schema
from airflow_lakestream.cdc.rows import RowStrategy
from airflow_lakestream.cdc.stops import MirrorStopped, StopReason
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.policies import OnError, TableFormat, Tombstones
from airflow_lakestream.decode.rows import RowDecoderFactory
from airflow_lakestream.delta.columns import REFUSED_CHARACTERS
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.lakes import LAKES
from airflow_lakestream.tables.design import TableDesign
from tests.support.mirroring import IDENTITY, KINDS, Event, HandDeltaMirror, HandMirror, landing_of, rows_of
from tests.unit.decode.support import batch

PLAIN = ("id", "name", "big")
NASTY = [
    *("own", "_max", "own_max", "last", "last_max", "__mine", "__theirs", "mine", "theirs", "id_max", "_row", "commit"),
    *("op", "before", "after", "source", "schema", "payload", "ts_ms", "_before", "_after", "_ts_ms", "_transaction"),
    *("key 0", "0", "class", "None", "self", "select", "from", "where", "order", "group", "null", "true", "nan"),
    *(".a", "a.b", ".", "..", "[0]", ".a[0]", 'say "hi"', "it's", "`tick`", "a b", " ", "a,b", "a;b", "{x}", "(y)"),
    *("a=b", "100%", "a/b", "a\\b", "ü", "Ünïcödé", "名前", "🦆", "x" * 63, "é" * 31, "-1", "$", "#", "@", "*", "?"),
    *("element", "key", "value", "list", "_c0", "__index_level_0__", "position", "deleted", "partition", "offset"),
]
HISTORY = [
    [
        Event("c", 1, ("a", "x"), 1, 1, 0, 0),
        Event("c", 2, ("b", "y"), 1, 2, 0, 1),
        Event("c", 3, ("c", None), 1, 3, 0, 2),
    ],
    [Event("u", 1, ("aa", "__debezium_unavailable_value"), 2, 4, 0, 3), Event("d", 2, None, 2, 5, 0, 4)],
    [
        Event("u", 2, ("late", "late"), 1, 4, 0, 5),
        Event("c", 4, ("d", "z"), 3, 6, 0, 6),
        Event("d", 3, None, 3, 7, 0, 7),
    ],
]


def names_for(mirror: type[HandMirror]) -> st.SearchStrategy[list[str]]:
    is_delta = mirror is HandDeltaMirror
    fit = [name for name in NASTY if not (is_delta and set(name) & set(REFUSED_CHARACTERS))]
    return st.lists(st.sampled_from(fit), min_size=3, max_size=3, unique_by=str.lower)


def land_all(mirror: HandMirror, names: Sequence[str]) -> list[dict[str, Any]]:
    """Land the history under these names; return the rows under the plain ones."""
    mirror.design = replace(mirror.design, key=(names[0],))
    for events in HISTORY:
        sink = mirror.sink()
        sink.load("run")
        rows = rows_of(events, KINDS["text"])
        new = dict(zip(PLAIN, names, strict=True))
        sink.write(rows.rename_columns([new.get(name, name) for name in rows.column_names]), IDENTITY)
        sink.commit(landing_of(events))
    old = dict(zip(names, PLAIN, strict=True))
    found = [{old.get(name, name): value for name, value in row.items()} for row in mirror.found()]
    return sorted(found, key=lambda row: row["id"])


@pytest.mark.long
@pytest.mark.parametrize("soft_delete", [False, True])
@pytest.mark.parametrize("mirror", [HandMirror, HandDeltaMirror])
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_odd_names_come_to_the_same_rows_as_plain_ones(
    mirror: type[HandMirror], soft_delete: bool, data: st.DataObject
) -> None:
    names = data.draw(names_for(mirror))
    with tempfile.TemporaryDirectory() as plain, tempfile.TemporaryDirectory() as odd:
        expected = land_all(mirror(Path(plain), soft_delete=soft_delete), PLAIN)
        assert land_all(mirror(Path(odd), soft_delete=soft_delete), names) == expected


def row(*names: str) -> list[pa.Field]:
    return [pa.field(name, pa.string()) for name in names]


ALWAYS = ["_op", "_source", "_cdc_commit", "_cdc_position", "_kafka_partition", "_kafka_offset"]
OF_ICEBERG = ["_file", "_pos", "_deleted", "_spec_id", "_partition"]


@pytest.mark.parametrize("name", [*ALWAYS, *OF_ICEBERG, "_kafka_key", "_is_deleted", "_OP"])
def test_a_name_that_the_mirror_keeps_stops_it_with_the_way_out(name: str) -> None:
    with pytest.raises(MirrorStopped, match=rf"'{name}'.*rename_columns=.\"{name}\"") as stopped:
        ColumnNames("lake.t", rows=RowStrategy.MARKED).columns(row("id", name))
    assert stopped.value.reason is StopReason.RESERVED_NAME
    kept = ColumnNames("lake.t", {name: "kept"}, rows=RowStrategy.MARKED).columns(row("id", name))
    assert [one.name for one in kept] == ["id", "kept"]


def test_only_names_that_collide_in_this_mirror_stop_it() -> None:
    names = ColumnNames("lake.t", with_key=False, lake=LAKES[TableFormat.DELTA])
    free = ["_kafka_key", "_is_deleted", "_before", "_after", "_ts_ms", "_ts_us", "_ts_ns", "_transaction", *OF_ICEBERG]
    assert [one.name for one in names.columns(row(*free))] == free


@pytest.mark.parametrize(
    ("names", "columns", "there"),
    [
        (ColumnNames("lake.t"), ["ID", "id"], []),
        (ColumnNames("lake.t"), ["Name"], ["id", "name"]),
        (ColumnNames("lake.t", {"_op": "name"}), ["_op", "name"], []),
        (ColumnNames("lake.t", lake=LAKES[TableFormat.DELTA]), ["a b"], []),
    ],
)
def test_names_that_the_table_can_not_have_stop_the_mirror(
    names: ColumnNames, columns: list[str], there: list[str]
) -> None:
    with pytest.raises(MirrorStopped, match="reserved-name"):
        names.columns(row(*columns), there)


@pytest.mark.parametrize(
    "given", [{"a": "_op"}, {"a": "x", "b": "X"}, {"a": ""}, "no mapping", ["a"], {"a": 1}, {"a": "_is_deleted"}]
)
def test_new_names_are_checked_with_the_arguments(given: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^rename_columns: "):
        MirrorConfig(topic="t", table="lake.t", consumer_group="g", soft_delete=True, rename_columns=given)


def event(image: dict[str, Any]) -> bytes:
    return json.dumps({"before": None, "after": image, "source": {"lsn": 1}, "op": "c"}).encode()


def test_a_renamed_column_keeps_its_values_beside_those_of_the_mirror() -> None:
    config = MirrorConfig(
        topic="t", table="lake.t", consumer_group="g", rename_columns='{"_op": "op_", "_source": "s"}'
    )
    image = {"id": 1, "_op": "mine", "_source": "theirs", "_ts_ms": "plain"}
    values = [event({"id": 0}), event(image)]
    for schema in (None, event_columns(pa.schema([("id", pa.int64())]))):
        decoder = RowDecoderFactory(config.payload, ("partition", "offset"), None, OnError.FAIL, Tombstones.SKIP)(
            schema, batch(values)
        )
        assert decoder is not None
        found = decoder.decode(batch(values)).rows.select(["id", "op_", "s", "_ts_ms", "_op"]).to_pylist()[1]
        assert found == {"id": 1, "op_": "mine", "s": "theirs", "_ts_ms": "plain", "_op": "c"}


@pytest.mark.parametrize("image", [{"id": 1, "_op": "x"}, {"id": 1, "ID": 2}, {"id": 1, "a\tb": 2}])
@pytest.mark.parametrize("is_new", [True, False])
def test_a_column_of_bare_json_that_can_not_be_stops_the_mirror(image: dict[str, Any], is_new: bool) -> None:
    payload = MirrorConfig(topic="t", table="lake.t", consumer_group="g").payload
    schema = None if is_new else event_columns(pa.schema([("id", pa.int64())]))
    with pytest.raises(MirrorStopped, match="reserved-name"):
        RowDecoderFactory(payload, ("partition", "offset"), None, OnError.FAIL, Tombstones.SKIP)(  # type: ignore[union-attr]
            schema, batch([event(image)])
        ).decode(batch([event(image)]))


def test_the_key_of_the_records_is_renamed_with_its_column() -> None:
    rows = pa.table({"id_": [1], "_kafka_key": [b'{"_op": 1}']})
    design = MirrorDesign(TableDesign(metadata=pa.schema([])), renamed={"_op": "id_"})
    assert design.of_rows("lake.t", rows).key == ("id_",)


@pytest.mark.parametrize("key", [("_row",), ("_row", "_row_")])
def test_a_key_column_named_as_that_of_the_deleted_row(key: tuple[str, ...]) -> None:
    schema = entry_schema(pa.schema([(name, pa.int64()) for name in key]))
    assert len(set(schema.names)) == len(schema.names)
    entries = pa.Table.from_pylist(
        [
            dict.fromkeys(key, 1) | {"_cdc_commit": at, "_cdc_position": 0, "_kafka_partition": 0, "_kafka_offset": at}
            for at in (1, 2)
        ],
        schema,
    )
    [kept] = condensed([EntryFile(2, None, True, lambda names: [entries.select(names or schema.names)])], key, {})
    assert kept["_cdc_commit"].to_pylist() == [2]
    rows = pa.table({name: [1] for name in key} | {name: entries[name][:1] for name in schema.names if name not in key})
    assert MirrorMemory(key, entries).is_dead(rows).tolist() == [True]


@pytest.mark.parametrize("name", ["größe", "naïve", "列", "😀"])
def test_a_name_that_the_stream_garbled_is_told_from_one_that_it_did_not(name: str) -> None:
    garbled = "".join(chr(byte if byte < 0x80 else 0xFF00 | byte) for byte in name.encode())
    with pytest.raises(MirrorStopped, match=name) as stopped:
        ColumnNames("lake.t").columns(row("id", garbled))
    assert stopped.value.reason is StopReason.NAME_GARBLED
    # Halfwidth katakana are names as any others.
    kept = [name, "ﾃｽﾄ", "￥"]
    assert [one.name for one in ColumnNames("lake.t").columns(row(*kept))] == kept
