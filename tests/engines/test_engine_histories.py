"""Random histories on a real Flink, with and without SQL, and on a real Connect: each way out ends in a landing.

`LAKESTREAM_STEPS=50 LAKESTREAM_SEED=1` plays a long one for each way to give columns; else one way is played.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from tests.support.broker import Producing, Topics
from tests.support.connecting import SCHEMA, Sinks
from tests.support.engine_histories import ByConnect, ByFlink, History
from tests.support.flink import COLUMNS, FlinkLanding

pytestmark = pytest.mark.integration

STEPS = int(os.environ.get("LAKESTREAM_STEPS", "3"))
SEED = int(os.environ.get("LAKESTREAM_SEED", "0"))

_OWN = "SELECT * FROM source WHERE id % 2 = 1"
_COMMON = """
    SELECT CAST(json_value(value, '$.id') AS BIGINT) AS id, json_value(value, '$.name') AS name,
           CAST(json_value(value, '$.score') AS DOUBLE) AS score
    FROM {{ input }} WHERE CAST(json_value(value, '$.id') AS BIGINT) % 2 = 1
"""
# What Flink is told, and what the extract is told that lands the same.
_FLINKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "columns": ({"columns": COLUMNS}, {"schema": COLUMNS, "tombstones": "skip"}),
    "sql of its own": (
        {"sql": _OWN, "schema": COLUMNS},
        {"sql": _OWN.replace("source", "{{ input }}"), "sql_input": "decoded", "schema": COLUMNS},
    ),
    "sql of all engines": ({"sql": _COMMON, "columns": ""}, {"sql": _COMMON}),
}


def is_odd(number: int) -> bool:
    return number % 2 == 1


# Each way has a test of its own in `test_flink.py` and `test_flink_common_sql.py`; the histories are the same code.
@pytest.mark.parametrize("name", _FLINKS if "LAKESTREAM_STEPS" in os.environ else ["sql of all engines"])
def test_by_flink(landing: FlinkLanding, produce: Producing, admin: AdminClient, name: str) -> None:
    landing.config, extract = _FLINKS[name]
    keeps = None if name == "columns" else is_odd
    History(ByFlink(landing, extract), produce, admin, SEED, keeps).play(STEPS)


@pytest.mark.skipif(
    "LAKESTREAM_STEPS" not in os.environ, reason="is a soak: LAKESTREAM_STEPS=3; not seen to end so far"
)
def test_by_connect(sinks: Sinks, topic: Topics, produce: Producing, admin: AdminClient) -> None:
    name = topic(2)
    # The sink needs its table.
    sinks.lake.land(name, schema=SCHEMA)
    History(ByConnect(sinks, name), produce, admin, SEED).play(STEPS)
