"""Decimals that Avro calls invalid, as Connect writes them, from real registry and broker into each table format."""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from typing import Any

import pytest

from dev.services.registry import Registry
from tests.support.avro_records import written
from tests.support.broker import Producing
from tests.support.delta_lake import EACH_FORMAT
from tests.support.lake import Lake
from tests.support.lake_reading import one_partition

pytestmark = pytest.mark.integration

name = one_partition

CONNECT = "org.apache.kafka.connect.data.Decimal"
SCALES = {"zeros": -2, "usual": 2, "long": 40, "longest": 127}
# 0 to 9 unscaled.
ROWS = [
    {
        "zeros": Decimal(n * 100),
        "usual": Decimal(n).scaleb(-2),
        "long": f"{Decimal(n).scaleb(-40):f}",
        "longest": f"{Decimal(n).scaleb(-127):f}",
    }
    for n in range(10)
]


def landed(lake: Lake) -> list[dict[str, Any]]:
    return [{name: row[name] for name in SCALES} for row in lake.records()]


@EACH_FORMAT
def test_decimals_of_any_scale_in_avro(lake: Lake, name: str, produce: Producing, registry: Registry) -> None:
    def decimal(scale: int) -> dict[str, Any]:
        logical = {"logicalType": "decimal", "precision": 64, "scale": scale, "connect.name": CONNECT}
        return {"type": "bytes", **logical}

    fields = [{"name": name, "type": decimal(scale)} for name, scale in SCALES.items()]
    schema = {"type": "record", "name": "R", "fields": fields}
    plain = {"type": "record", "name": "R", "fields": [{"name": name, "type": "bytes"} for name in SCALES]}
    schema_id = registry.register(f"{name}-value", json.dumps(schema))
    produce(name, 0, [written(plain, schema_id, dict.fromkeys(SCALES, bytes([n]))) for n in range(10)])
    report = lake.land(name, format="avro", schema_registry=registry.url, on_error="fail")
    assert report.counts.written == 10
    assert landed(lake) == ROWS


@EACH_FORMAT
def test_decimals_of_any_scale_in_connects_json(lake: Lake, name: str, produce: Producing) -> None:
    fields = [
        {"field": name, "type": "bytes", "name": CONNECT, "optional": True, "parameters": {"scale": str(scale)}}
        for name, scale in SCALES.items()
    ]
    schema = {"type": "struct", "fields": fields}
    payloads = [dict.fromkeys(SCALES, base64.b64encode(bytes([n])).decode()) for n in range(10)]
    produce(name, 0, [json.dumps({"schema": schema, "payload": payload}) for payload in payloads])
    report = lake.land(name, envelope="connect", on_error="fail")
    assert report.counts.written == 10
    assert landed(lake) == ROWS
