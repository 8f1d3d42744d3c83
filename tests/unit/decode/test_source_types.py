"""Columns of the source that become other ones: which mean something else in the table's column, in each format."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest

from airflow_lakestream.cdc.events.decoder import EventPayload
from airflow_lakestream.cdc.events.names import ColumnNames
from airflow_lakestream.core.column_use import ColumnUse
from airflow_lakestream.core.policies import OnError
from airflow_lakestream.core.records import DecodedBatch
from airflow_lakestream.core.source_types import LedgerTypes, SourceTypeChanged, combined_types
from airflow_lakestream.decode.formats import PayloadFormats
from airflow_lakestream.decode.rows import RowDecoderFactory
from airflow_lakestream.registry.config import RegistryConfig
from tests.support import typed_events as kinds
from tests.support.registry import FakeRegistry
from tests.unit.decode.support import batch

Kind = Mapping[str, Any]

DATE, TIME, NTZ, TZ = pa.date32(), pa.time64("us"), pa.timestamp("us"), pa.timestamp("us", "UTC")
INT, LONG, DOUBLE, TEXT, BYTES = pa.int32(), pa.int64(), pa.float64(), pa.string(), pa.binary()
DECIMAL, BOOLEAN = pa.decimal128(10, 2), pa.bool_()

# The source's type before and after, and the column of the table.
OTHER = {
    "date to integer": (kinds.DATE, kinds.INT, DATE),
    "date of Connect to integer": (kinds.CONNECT_DATE, kinds.INT, DATE),
    "integer to date": (kinds.INT, kinds.DATE, INT),
    "year to date": (kinds.YEAR, kinds.DATE, INT),
    "seconds to timestamp": (kinds.LONG, kinds.MICROS, LONG),
    "timestamp to seconds": (kinds.MICROS, kinds.LONG, NTZ),
    "double to timestamp": (kinds.DOUBLE, kinds.MICROS, DOUBLE),
    "instant to integer": (kinds.INSTANT, kinds.LONG, TZ),
    "time to integer": (kinds.MICROS_OF_DAY, kinds.LONG, TIME),
    "integer to time": (kinds.INT, kinds.MILLIS_OF_DAY, INT),
    "time to timestamp, raw": (kinds.MICROS_OF_DAY, kinds.MICROS, LONG),
    "timestamps of another unit, raw": (kinds.MILLIS, kinds.MICROS, LONG),
    "date to time, raw": (kinds.DATE, kinds.MILLIS_OF_DAY, INT),
    "interval to integer": (kinds.INTERVAL, kinds.LONG, LONG),
    "integer to interval": (kinds.LONG, kinds.INTERVAL, LONG),
    "bytes to numeric": (kinds.BYTES, kinds.NUMERIC, BYTES),
    "numeric to bytes, raw": (kinds.NUMERIC, kinds.BYTES, BYTES),
    "another scale, raw": (kinds.NUMERIC, kinds.FINER, BYTES),
    "bits to bytes": (kinds.BITS, kinds.BYTES, BYTES),
    "text to bytes": (kinds.TEXT, kinds.BYTES, TEXT),
    "bytes to text": (kinds.BYTES, kinds.TEXT, BYTES),
    "boolean to integer": (kinds.BOOLEAN, kinds.INT, BOOLEAN),
    "dates to integers": (kinds.array(kinds.DATE), kinds.array(kinds.INT), pa.list_(DATE)),
    "integers to dates": (kinds.array(kinds.INT), kinds.array(kinds.DATE), pa.list_(INT)),
    "an integer to some": (kinds.INT, kinds.array(kinds.INT), INT),
    "a date in a record": (kinds.nested(x=kinds.DATE), kinds.nested(x=kinds.INT), pa.struct([("x", DATE)])),
}
SAME = {
    "integers that become wider": (kinds.INT, kinds.LONG, LONG),
    "integers that become shorter": (kinds.LONG, kinds.SHORT, LONG),
    "floats": (kinds.FLOAT, kinds.DOUBLE, DOUBLE),
    "year to integer": (kinds.YEAR, kinds.INT, INT),
    "numeric to integer": (kinds.NUMERIC, kinds.LONG, DECIMAL),
    "more digits": (kinds.NUMERIC, kinds.FINER, DECIMAL),
    "timestamps of another unit": (kinds.MILLIS, kinds.MICROS, NTZ),
    "times of another unit": (kinds.MILLIS_OF_DAY, kinds.MICROS_OF_DAY, TIME),
    "dates of another library": (kinds.DATE, kinds.CONNECT_DATE, DATE),
    "any scale": (kinds.NUMERIC, kinds.ANY_SCALE, DECIMAL),
    "any scale as text": (kinds.ANY_SCALE, kinds.NUMERIC, TEXT),
    "raw dates": (kinds.DATE, kinds.DATE, INT),
    "longer bits": (kinds.BITS, kinds.MORE_BITS, BYTES),
    "text to JSON": (kinds.TEXT, kinds.JSON, TEXT),
    "enum to text": (kinds.ENUM, kinds.TEXT, TEXT),
    "uuid to text": (kinds.UUID, kinds.TEXT, TEXT),
    "dates as text": (kinds.DATE, kinds.TEXT, DATE),
    "instants as text": (kinds.INSTANT, kinds.ZONED, TZ),
    "numeric as text": (kinds.NUMERIC, kinds.TEXT, DECIMAL),
    "integer to text": (kinds.INT, kinds.TEXT, TEXT),
    "a date as text": (kinds.DATE, kinds.INT, TEXT),
    "a field more": (kinds.nested(x=kinds.INT), kinds.nested(x=kinds.INT, y=kinds.DATE), pa.struct([("x", INT)])),
}

REGISTRY = RegistryConfig("http://nowhere")


def payload_of(form: str, mirror: bool, **settings: Any) -> PayloadFormats:
    if mirror:
        settings["names"] = ColumnNames("lake.t")
    if form != "json":
        settings |= {"format": form, "registry": REGISTRY}
    return (EventPayload if mirror else PayloadFormats)(envelope="debezium", **settings)


def decoded(
    payload: PayloadFormats, column: pa.DataType, before: Kind, after: Kind, name: str = "v"
) -> Iterator[ColumnUse]:
    """Yield what two batches say, one before and one after the change; all values are NULL."""
    texts = {1: {"v": before}, 2: {"v": after}}
    if payload.format != "json":
        make = kinds.avro_schema if payload.format == "avro" else kinds.json_schema
        fake = FakeRegistry({n: (payload.format_row.kind or "", make(of)) for n, of in texts.items()})
        vars(payload)["registry_client"] = fake
    schema = pa.schema([("id", pa.int64()), (name, column)])
    for number, of in texts.items():
        row, place = {"id": 1, "v": None}, 100 * number
        value = kinds.typed_change("c", row, place, of)
        if payload.format == "avro":
            value = kinds.avro_change("c", row, place, of, number)
        elif payload.format == "json_schema":
            value = kinds.json_change("c", row, place, number)
        # Each batch in a process of its own, so to say: a mirror's decoder refuses some types by itself.
        decoder = RowDecoderFactory(payload, ("partition", "offset"), on_error=OnError.SKIP)(schema, None)
        assert decoder is not None
        found: DecodedBatch = decoder.decode(batch([value], first=number))
        yield ColumnUse.from_dict(json.loads(json.dumps(found.use.to_dict())))


# The events of this test have no records in Avro.
OF_FORMS = [
    pytest.param(form, *case, is_other, id=f"{form}-{name}")
    for form in ("json", "avro")
    for cases, is_other in ((OTHER, True), (SAME, False))
    for name, case in cases.items()
    if form == "json" or "struct" not in (kind["type"] for kind in case[:2])
]


@pytest.mark.parametrize("mirror", [True, False], ids=["mirror", "extract"])
@pytest.mark.parametrize(("form", "before", "after", "column", "is_other"), OF_FORMS)
def test_a_column_that_means_something_else_is_refused_and_any_other_change_is_not(
    form: str, mirror: bool, before: Kind, after: Kind, column: pa.DataType, is_other: bool
) -> None:
    one, other = decoded(payload_of(form, mirror), column, before, after)
    if is_other:
        kept = LedgerTypes().add(LedgerTypes().changes(one.types))
        # In one batch, and in two: the ledger has what was landed before.
        for before_it, seen in ((kept, other.types), (LedgerTypes(), combined_types(one.types, other.types))):
            with pytest.raises(SourceTypeChanged, match=r"column v\S* .* at orders\[7\] offset 2") as stop:
                before_it.check("lake.t", seen)
            assert stop.value.reason == "type-changed"
        return
    kept = LedgerTypes().add(LedgerTypes().changes(one.types))
    kept.check("lake.t", other.types)
    LedgerTypes().check("lake.t", combined_types(one.types, other.types))


JSON_SCHEMA = [
    ("date to integer", kinds.DATE, kinds.INT, pa.int64(), True),
    ("integer to timestamp", kinds.LONG, kinds.MICROS, pa.int64(), True),
    ("timestamps of another unit", kinds.MILLIS, kinds.MICROS, pa.int64(), True),
    ("interval to integer", kinds.INTERVAL, kinds.LONG, pa.int64(), True),
    ("text to bytes", kinds.TEXT, kinds.BYTES, pa.string(), True),
    ("dates to integers", kinds.array(kinds.DATE), kinds.array(kinds.INT), pa.list_(pa.int64()), True),
    ("integers", kinds.INT, kinds.LONG, pa.int64(), False),
    ("text", kinds.TEXT, kinds.JSON, pa.string(), False),
    ("raw dates", kinds.DATE, kinds.DATE, pa.int64(), False),
]


@pytest.mark.parametrize(("before", "after", "column", "is_other"), [pytest.param(*c, id=n) for n, *c in JSON_SCHEMA])
def test_titles_of_json_schema_tell_a_change(before: Kind, after: Kind, column: pa.DataType, is_other: bool) -> None:
    one, other = decoded(payload_of("json_schema", False), column, before, after)
    kept = LedgerTypes().add(LedgerTypes().changes(one.types))
    assert kept.columns["v"].text
    if not is_other:
        kept.check("lake.t", other.types)
        return
    with pytest.raises(SourceTypeChanged, match="column v"):
        kept.check("lake.t", other.types)


def test_the_error_names_both_types_and_the_way_on() -> None:
    one, other = decoded(payload_of("json", False), DATE, kinds.DATE, kinds.INT)
    with pytest.raises(SourceTypeChanged) as stop:
        LedgerTypes().add(LedgerTypes().changes(one.types)).check("lake.t", other.types)
    said = str(stop.value)
    assert "int32 (io.debezium.time.Date) before, and is int32 at" in said
    assert "from that offset on into a new table" in said
    assert "type-changed" in said


def test_a_renamed_column_is_kept_by_its_name_in_the_table() -> None:
    one, _ = decoded(payload_of("json", False, renamed=(("v", "w"),)), DATE, kinds.DATE, kinds.DATE, "w")
    assert LedgerTypes().changes(one.types)["w"].meaning == "date"
    named = payload_of("json", True)
    named = EventPayload(envelope="debezium", names=ColumnNames("lake.t", {"v": "w"}))
    one, _ = decoded(named, DATE, kinds.DATE, kinds.DATE, "w")
    assert LedgerTypes().changes(one.types)["w"].meaning == "date"


def test_what_tells_no_types_is_compared_with_nothing() -> None:
    bare = json.dumps({"before": None, "after": {"id": 1, "v": 1}, "op": "c"}).encode()
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    own = {"type": "struct", "fields": [{"field": "ts_ms", "type": "int64"}]}
    values = [bare, None, b"no JSON", json.dumps({"schema": own, "payload": {}}).encode()]
    for payload in (payload_of("json", False), PayloadFormats()):
        decoder = pickle.loads(pickle.dumps(RowDecoderFactory(payload, ("offset",), on_error=OnError.SKIP)))(
            schema, None
        )
        assert not decoder.decode(batch(values)).use.types


def test_the_places_of_a_mirrors_events_tell_when_a_column_came_and_went() -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    payload = EventPayload(envelope="debezium", names=ColumnNames("lake.t"))
    decoder = RowDecoderFactory(payload, ("partition", "offset"), on_error=OnError.SKIP)(schema, None)
    assert decoder is not None
    values = [kinds.typed_change("c", {"id": n, "v": 1}, n, {"v": kinds.LONG}) for n in (3, 5, 4)]
    values += [kinds.typed_change("c", {"id": n}, n, {}) for n in (8, 9)]
    values += [b"no JSON"]
    seen = decoder.decode(batch(values)).use.types["v"]
    assert (seen.there, seen.lacking) == ((3, 5), (8, 9))
