"""Values and types of PostgreSQL in a mirror, by the events that Debezium 3.2 writes, in both table formats."""

from __future__ import annotations

import json
from array import array
from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField, StringType

from airflow_lakestream.cdc import delta, iceberg
from airflow_lakestream.cdc.stops import MirrorStopped, StopReason
from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.policies import OnError, Tombstones
from airflow_lakestream.core.records import DecodedBatch, RawBatch
from airflow_lakestream.decode.metadata import HEADERS
from airflow_lakestream.decode.rows import RowDecoderFactory
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.exceptions import InvalidArgument
from tests.support.delta_table import live_files
from tests.support.mirroring import IDENTITY, Event, landing_of

TIME = "io.debezium.time."
KINDS: dict[str, dict[str, Any]] = {
    "int": {"type": "int32"},
    "bigint": {"type": "int64"},
    "text": {"type": "string"},
    "double": {"type": "double"},
    "uuid": {"type": "string", "name": "io.debezium.data.Uuid"},
    "date": {"type": "int32", "name": f"{TIME}Date"},
    "time": {"type": "int64", "name": f"{TIME}MicroTime"},
    "timestamp": {"type": "int64", "name": f"{TIME}MicroTimestamp"},
    "time(3)": {"type": "int32", "name": f"{TIME}Time"},
    "timestamp(3)": {"type": "int64", "name": f"{TIME}Timestamp"},
    "timestamptz": {"type": "string", "name": f"{TIME}ZonedTimestamp"},
    "numeric": {
        "type": "struct",
        "name": "io.debezium.data.VariableScaleDecimal",
        "fields": [{"field": "scale", "type": "int32"}, {"field": "value", "type": "bytes"}],
    },
    "ints": {"type": "array", "items": {"type": "int32", "optional": True}},
}
MICROS_OF_24 = 86_400_000_000


def decimal_of(scale: int, precision: int) -> dict[str, Any]:
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    return {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": parameters}


def unscaled(number: int) -> str:
    return b64encode(number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)).decode()


def event(op: str, row: dict[str, Any], kinds: dict[str, Any], *, bare: bool = False) -> bytes:
    """Return an event as Connect's JSON converter writes it; its place in the source is the number of those so far."""
    event.count = getattr(event, "count", 0) + 1  # type: ignore[attr-defined]
    place = event.count  # type: ignore[attr-defined]
    before, after = (row, None) if op == "d" else (None, row)
    source = {"sequence": f'["{place}","{place}"]', "lsn": place, "ts_ms": 1}
    payload = {"before": before, "after": after, "source": source, "op": op}
    if bare:
        return json.dumps(payload).encode()
    image = [
        {"field": name, "optional": True, **(KINDS[kind] if isinstance(kind, str) else kind)}
        for name, kind in kinds.items()
    ]
    whereabouts = [("sequence", "string"), ("lsn", "int64"), ("ts_ms", "int64")]
    fields = [
        {"field": "before", "type": "struct", "optional": True, "fields": image},
        {"field": "after", "type": "struct", "optional": True, "fields": image},
        {"field": "source", "type": "struct", "fields": [{"field": name, "type": kind} for name, kind in whereabouts]},
        {"field": "op", "type": "string"},
    ]
    return json.dumps({"schema": {"type": "struct", "fields": fields}, "payload": payload}).encode()


class Mirror:
    """A mirror in a folder, landed into without Spark."""

    def __init__(self, folder: Path, table_format: str, **arguments: Any) -> None:
        self.is_delta = table_format == "delta"
        self.catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
        self.table = str(folder / "orders") if self.is_delta else "lake.orders"
        given = {"topic": IDENTITY.topic, "table": self.table, "consumer_group": "g", "table_format": table_format}
        self.config = MirrorConfig(**{**given, "key": ["id"], **arguments})
        self._next = 0

    def land(self, *values: bytes) -> DecodedBatch:
        """Land events in one commit."""
        config = self.config
        sink: Any = (
            delta.mirror_sink(DeltaStorage(), self.table, "g", config.mirror)
            if self.is_delta
            else iceberg.mirror_sink(self.catalog, self.table, "g", config.mirror)
        )
        schema = sink.load("run").schema
        batch = records(self._next, values)
        decoder = decoders(config)(schema, batch)
        assert decoder is not None
        outcome: DecodedBatch = decoder.decode(batch)
        sink.write(outcome.rows, IDENTITY)
        sink.commit(landing_of([Event("c", 0, None, 0, 0, 0, offset) for offset in batch.offsets]))
        self._next += len(values)
        return outcome

    def rows(self) -> list[dict[str, Any]]:
        if not self.is_delta:
            return self.catalog.load_table(self.table).scan().to_arrow().to_pylist()  # type: ignore[no-any-return]
        paths = [Path(self.table, path) for path in live_files(self.table)]
        return [row for path in paths for row in pq.read_table(path).to_pylist()]

    def values(self, name: str) -> list[Any]:
        return [row[name] for row in sorted(self.rows(), key=lambda row: str(row["id"]))]


def decoders(config: ExtractConfig) -> RowDecoderFactory:
    metadata = tuple(config.metadata_columns)
    return RowDecoderFactory(config.payload, metadata, on_error=OnError(config.on_error), tombstones=Tombstones.SKIP)


def records(first: int, values: Sequence[bytes]) -> RawBatch:
    places = range(first, first + len(values))
    array_of = pa.array(values, pa.binary())
    keys, headers = pa.nulls(len(values), pa.binary()), pa.nulls(len(values), HEADERS)
    return RawBatch(IDENTITY.topic, 0, places, array("q", [0] * len(values)), array_of, keys, headers)


@pytest.fixture(params=["iceberg", "delta"])
def table_format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(
    ("kind", "keys", "remain"),
    [
        ("double", ["NaN", -0.0, "-Infinity", 1.5], 3),
        ("numeric", [{"scale": 1, "value": unscaled(-15)}, {"scale": 0, "value": unscaled(10**50)}], 1),
        (decimal_of(2, 12), [unscaled(125), unscaled(-99)], 1),
        (decimal_of(10, 50), [unscaled(10**49), unscaled(1)], 1),
        ("date", [0, -719162], 1),
        ("timestamp", [0, 253402300799999999], 1),
        ("timestamptz", ["2026-01-02T01:04:05.123456Z", "9999-12-31T23:59:59.999999Z"], 1),
        ("text", ["", "\U0001f600"], 1),
    ],
)
def test_keys_of_each_type(tmp_path: Path, table_format: str, kind: Any, keys: list[Any], remain: int) -> None:
    mirror = Mirror(tmp_path, table_format, key=["id"])
    kinds = {"id": kind, "n": "int"}
    mirror.land(*(event("c", {"id": key, "n": 1}, kinds) for key in keys))
    mirror.land(*(event("u", {"id": key, "n": 2}, kinds) for key in keys))
    assert [row["n"] for row in mirror.rows()] == [2] * len(keys)
    mirror.land(event("d", {"id": keys[0], "n": None}, kinds))
    assert len(mirror.rows()) == remain


def test_a_uuid_as_key(tmp_path: Path) -> None:
    mirror, kinds = Mirror(tmp_path, "iceberg", soft_delete=True), {"id": "uuid", "n": "int"}
    one, other = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "00000000-0000-0000-0000-000000000000"
    mirror.land(*(event("c", {"id": key, "n": 1}, kinds) for key in (one, other)))
    mirror.land(event("u", {"id": other, "n": 2}, kinds), event("d", {"id": one, "n": None}, kinds))
    assert {str(row["id"]): (row["n"], row["_is_deleted"]) for row in mirror.rows()} == {
        one: (1, True),
        other: (2, False),
    }


def test_a_uuid_that_is_not_sent_is_an_empty_text(tmp_path: Path) -> None:
    mirror, kinds = Mirror(tmp_path, "iceberg"), {"id": "uuid", "other": "uuid", "n": "int"}
    key = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    mirror.land(event("c", {"id": key, "other": key, "n": 4}, kinds))
    with pytest.raises(MirrorStopped) as stopped:
        mirror.land(event("d", {"id": "", "other": "", "n": 5}, kinds))
    assert stopped.value.reason is StopReason.KEY_NOT_SENT
    # The default replica identity: the key is there, and a column that is NOT NULL has the empty text.
    mirror.land(event("d", {"id": key, "other": "", "n": 0}, kinds))
    assert mirror.rows() == []


def test_a_timestamp_without_zone_is_added_to_a_mirror_without_any(tmp_path: Path, table_format: str) -> None:
    mirror, kinds = Mirror(tmp_path, table_format), {"id": "int"}
    mirror.land(event("c", {"id": 1}, kinds))
    mirror.land(event("c", {"id": 2, "at": 1_000_000}, {**kinds, "at": "timestamp"}))
    mirror.land(event("u", {"id": 1, "at": 2_000_000}, {**kinds, "at": "timestamp"}))
    assert mirror.values("at") == [datetime(1970, 1, 1, 0, 0, 2), datetime(1970, 1, 1, 0, 0, 1)]


def test_zeros_are_one_key_whatever_their_sign(tmp_path: Path, table_format: str) -> None:
    mirror, kinds = Mirror(tmp_path, table_format), {"id": "double", "n": "int"}
    mirror.land(event("c", {"id": -0.0, "n": 1}, kinds))
    mirror.land(event("u", {"id": 0.0, "n": 2}, kinds))
    assert [row["n"] for row in mirror.rows()] == [2]


def test_numbers_of_any_size(tmp_path: Path, table_format: str) -> None:
    kinds = {"id": "int", "v": "numeric", "w": decimal_of(10, 50), "x": decimal_of(2046, 5), "f": "double"}
    mirror = Mirror(tmp_path, table_format)
    below = unscaled(1200 * 10**2046)
    mirror.land(
        event("c", {"id": 1, "v": None, "w": None, "x": below, "f": "NaN"}, kinds),
        event(
            "c", {"id": 2, "v": {"scale": 50, "value": "AQ=="}, "w": unscaled(-(10**49)), "x": None, "f": 1.5}, kinds
        ),
        event(
            "c",
            {"id": 3, "v": {"scale": 0, "value": unscaled(10**5000)}, "w": None, "x": None, "f": "-Infinity"},
            kinds,
        ),
    )
    assert mirror.values("v") == [None, "0." + "0" * 49 + "1", "1" + "0" * 5000]
    assert mirror.values("w") == [None, f"-1{'0' * 39}.{'0' * 10}", None]
    assert mirror.values("x") == ["1200", None, None]
    assert [str(one) for one in mirror.values("f")] == ["nan", "1.5", "-inf"]


ODD: dict[str, tuple[str, list[Any]]] = {
    "d": ("date", [2932897, -2147472692, -625821272, -735160]),
    "t": ("time", [MICROS_OF_24]),
    "s": ("timestamp", [9223372036825200000, -9223372036832400000, -9223372036853775810, 253402300800000000]),
    "t3": ("time(3)", [MICROS_OF_24 // 1000]),
    "s3": ("timestamp(3)", [9223372036825200, -9223372036832400, 253402300800000]),
    "z": ("timestamptz", ["infinity", "-infinity", "+10000-01-01T00:00:00.000000Z", "-0043-03-15T00:00:00.000000Z"]),
}
LAST, FIRST = datetime.max, datetime.min
CLAMPED: dict[str, list[Any]] = {
    "d": [date.max, date.max, date.min, date.min],
    "t": [time.max],
    "s": [LAST, FIRST, LAST, LAST],
    # The column has microseconds, of whatever the database has.
    "t3": [time.max],
    "s3": [LAST, FIRST, LAST],
    "z": [one.replace(tzinfo=UTC) for one in (LAST, FIRST, LAST, FIRST)],
}


# Delta has no type for a time.
@pytest.mark.parametrize(
    ("column", "table_format"),
    [
        (column, name)
        for column in ODD
        for name in ("iceberg", "delta")
        if not (column.startswith("t") and name == "delta")
    ],
    indirect=["table_format"],
)
def test_values_out_of_range(tmp_path: Path, table_format: str, column: str) -> None:
    kind, values = ODD[column]
    kinds = {"id": "int", column: kind}
    for policy in ("reject", "clamp", "null"):
        (folder := tmp_path / policy).mkdir()
        mirror = Mirror(folder, table_format, out_of_range=policy)
        mirror.land(event("c", {"id": 0, column: None}, kinds))
        events = [event("c", {"id": number, column: value}, kinds) for number, value in enumerate(values, 1)]
        if policy == "reject":
            for one in events:
                with pytest.raises(MirrorStopped, match=rf"offset 1 .*column {column} .*reject.*clamp") as stop:
                    mirror.land(one)
                assert stop.value.reason is StopReason.VALUE_OUT_OF_RANGE
            continue
        mirror.land(*events)
        expected = CLAMPED[column] if policy == "clamp" else [None] * len(values)
        assert mirror.values(column)[1:] == expected


def test_as_text_each_value_has_its_place(tmp_path: Path, table_format: str) -> None:
    kinds = {"id": "int", **{name: kind for name, (kind, _) in ODD.items()}}
    mirror = Mirror(tmp_path, table_format, schema="d string, t string, s string, t3 string, s3 string, z string")
    rows = [{name: values[n % len(values)] for name, (_, values) in ODD.items()} for n in range(4)]
    mirror.land(*(event("c", {"id": number, **row}, kinds) for number, row in enumerate(rows)))
    assert mirror.values("d") == ["10000-01-01", "infinity", "-infinity", "-0043-03-15"]
    assert mirror.values("t") == ["24:00:00.000000"] * 4
    assert mirror.values("s") == ["infinity", "-infinity", "infinity", "10000-01-01T00:00:00.000000"]
    assert mirror.values("t3") == ["24:00:00.000"] * 4
    assert mirror.values("s3") == ["infinity", "-infinity", "10000-01-01T00:00:00.000", "infinity"]
    assert mirror.values("z") == ODD["z"][1]


def test_a_key_is_never_clamped(tmp_path: Path, table_format: str) -> None:
    mirror = Mirror(tmp_path, table_format, out_of_range="clamp")
    with pytest.raises(InvalidArgument, match="would merge several rows: the key's column id"):
        mirror.land(event("c", {"id": 1}, {"id": "date"}))


def test_a_policy_is_for_json() -> None:
    with pytest.raises(InvalidArgument, match=r'out_of_range: .*goes with format="json"'):
        MirrorConfig(
            **{"topic": "t", "table": "a.b", "consumer_group": "g", "format": "avro", "out_of_range": "null"},
            schema_registry={"url": "http://r"},
        )


SCHEMAS = {
    "ddl": "id int, code string",
    "ddl with a required key": "id int not null, code string not null",
    "the one column": "code string",
    "arrow": pa.schema([("id", pa.int32()), ("code", pa.string())]),
    "iceberg": Schema(NestedField(1, "id", IntegerType(), required=False), NestedField(2, "code", StringType())),
}


@pytest.mark.parametrize("given", SCHEMAS)
@pytest.mark.parametrize("key", [["id"], ["code"], ["code", "id"]])
def test_a_given_schema(tmp_path: Path, table_format: str, given: str, key: list[str]) -> None:
    mirror = Mirror(tmp_path, table_format, schema=SCHEMAS[given], key=key)
    kinds, code = {"id": "int", "code": "uuid", "n": "bigint"}, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    mirror.land(event("c", {"id": 1, "code": code, "n": 1}, kinds))
    mirror.land(event("u", {"id": 1, "code": code, "n": 2}, kinds))
    assert [(row["id"], row["code"], row["n"]) for row in mirror.rows()] == [(1, code, 2)]


@pytest.mark.parametrize(
    ("old", "first", "new", "then"),
    [
        ("int", 1, "text", "n1"),
        ("int", 1, "double", 1.5),
        ("bigint", 1, decimal_of(2, 10), unscaled(150)),
        (decimal_of(2, 10), unscaled(150), decimal_of(4, 12), unscaled(15001)),
        ("timestamp", 0, "timestamptz", "2026-01-02T01:04:05.123456Z"),
        ("timestamptz", "2026-01-02T01:04:05.123456Z", "text", "soon"),
        ("int", 1, "ints", [1]),
        ("ints", [1], "int", 1),
    ],
)
def test_a_type_that_a_mirror_cant_follow(
    tmp_path: Path, table_format: str, old: Any, first: Any, new: Any, then: Any
) -> None:
    mirror = Mirror(tmp_path, table_format)
    mirror.land(event("c", {"id": 1, "v": first}, {"id": "int", "v": old}))
    with pytest.raises(MirrorStopped, match=r"column v .*partition 0, offset 1.*resnapshot") as stop:
        mirror.land(event("u", {"id": 1, "v": then}, {"id": "int", "v": new}))
    assert stop.value.reason is StopReason.TYPE_CHANGED


def test_on_the_extract_path_each_odd_value_is_a_row_or_a_reject() -> None:
    config = ExtractConfig(topic="t", table="a.b", consumer_group="g", envelope="debezium")
    kinds = {"id": "int", "f": "double", "n": "numeric", **{name: kind for name, (kind, _) in ODD.items()}}
    odd = [{name: value} for name, (_, values) in ODD.items() for value in values]
    fine: list[dict[str, Any]] = [{"f": "NaN"}, {"f": "Infinity"}, {"n": {"scale": 60, "value": "AQ=="}}]
    for bare in (False, True):
        usual = event("c", {"id": 0, "f": 0.5, "z": "2026-01-02T01:04:05Z"}, kinds, bare=bare)
        first = records(0, [usual])
        events = [event("c", {"id": 1, **row}, kinds, bare=bare) for row in (*fine, *odd)]
        decoder = decoders(config)(None, first)
        assert decoder is not None
        outcome = decoder.decode(records(1, events))
        # Without schemas only instants tell what they are; numbers are numbers.
        bad = len(ODD["z"][1]) if bare else len(odd)
        assert outcome.counts.rejected == bad
        assert len(outcome.rows) == len(events) - bad
        assert outcome.rejected is not None


def test_decimals_of_a_table_made_before(tmp_path: Path, table_format: str) -> None:
    mirror = Mirror(tmp_path, table_format, schema="id int, v decimal(38, 10), w decimal(5, 2)")
    kinds = {"id": "int", "v": decimal_of(10, 50), "w": "numeric"}
    mirror.land(event("c", {"id": 1, "v": unscaled(5 * 10**9), "w": {"scale": 1, "value": unscaled(-15)}}, kinds))
    assert (mirror.values("v"), mirror.values("w")) == ([Decimal("0.5")], [Decimal("-1.50")])
    with pytest.raises(MirrorStopped, match="column v "):
        mirror.land(event("c", {"id": 2, "v": unscaled(10**49), "w": None}, kinds))
