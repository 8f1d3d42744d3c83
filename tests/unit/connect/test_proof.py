"""Which sinks write rows that we can make, too, and what is said of the others."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from airflow_lakestream.config.arguments import proven_share
from airflow_lakestream.connect.configuration import complete_config
from airflow_lakestream.connect.publishing import proof_of
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.run.publication import DecodingProof
from tests.unit.decode.support import batch

GIVEN = {"topics": "orders", "iceberg.tables": "a.b", "iceberg.catalog.type": "rest"}
JSON = {"value.converter": "org.apache.kafka.connect.json.JsonConverter"}


def proof(share: float = 1.0, **settings: str) -> DecodingProof | None:
    given = {**GIVEN, **JSON, **{name.replace("_", "."): value for name, value in settings.items()}}
    sink = complete_config("c", given, "lake", 5)
    found: Any = proof_of(sink.config, lambda: None, share)  # type: ignore[arg-type, return-value]  # nothing is read
    return found


def test_json_is_decoded_with_its_schema_or_without() -> None:
    row = {"id": 3}
    schema = {"type": "struct", "fields": [{"type": "int64", "field": "id", "optional": True}]}
    wrapped = {"schema": schema, "payload": row}
    for settings, value in (({}, wrapped), ({"value_converter_schemas_enable": "false"}, row)):
        made = proof(**settings)
        assert made is not None
        decoder = made.decoder(pa.schema([("id", pa.int64())]))
        assert decoder.decode(batch([json.dumps(value).encode()])).rows.to_pylist() == [row]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"value_converter": "io.confluent.connect.avro.AvroConverter"}, "AvroConverter"),
        ({"value_converter": ""}, "that of the workers"),
        ({"transforms": "flat", "transforms_flat_type": "org.apache.kafka.connect.transforms.Flatten$Value"}, "flat"),
    ],
)
def test_rows_that_we_can_not_make_are_said_to_be_unproven(
    settings: dict[str, str], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert proof(**settings) is None
    assert told in caplog.text
    assert "not compared" in caplog.text


def test_nothing_is_said_to_who_wants_no_proof(caplog: pytest.LogCaptureFixture) -> None:
    assert proof(share=0.0, transforms="flat", transforms_flat_type="a.Flatten") is None
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("given", "share"), [("all", 1.0), ("off", 0.0), (0.05, 0.05), (" 0.5", 0.5), (".25", 0.25), ("ALL", 1.0)]
)
def test_how_much_is_compared(given: object, share: float) -> None:
    assert proven_share("prove", given) == share


@pytest.mark.parametrize("given", [True, False, None, "", "some", 0, 0.0, 1.5, -0.1, "1%", "none"])
def test_what_is_no_share_is_refused(given: object) -> None:
    with pytest.raises(InvalidArgument, match=r"prove: .*\"all\""):
        proven_share("prove", given)
