"""SQL of the common subset by a real Flink: the same rows, rejects and counts as by the extract."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dev.services.kafka import Kafka
from tests.support.broker import Producing
from tests.support.common_sql import Statements
from tests.support.flink import FlinkLanding
from tests.support.lake import Lake

pytestmark = pytest.mark.integration

# Documents that engines read in ways of their own, among plain ones.
ODD: Sequence[bytes | str | None] = (
    '{"user_id":"u1","n":"7","price":"12.50","at":"2026-01-02T03:04:05Z","ok":"true","day":"2026-02-28"}',
    '{"user_id":"u2","n":8,"price":12.5,"at":"2026-01-02 03:04:05.123456","ok":true}',
    '{"user_id":"Zoë","n":-3,"price":0.10,"ok":false,"day":"2024-02-29"}',
    '{"user_id":{"a":1},"n":null}',
    '{"user_id":"x","n":1.5}',
    '{"user_id":"x","n":"many"}',
    '{"user_id":"x","n":99999999999999999999}',
    '{"user_id":"x","day":"2026-02-30"}',
    '{"user_id":"x","at":"2026-01-02T03:04:05+02:00"}',
    '{"user_id":"x","price":"1e2"}',
    '{"user_id":"\\ud83d\\ude00","n":2}',
    '{"user_id":1.0,"n":3}',
    '{"user_id":1e3,"n":4}',
    "no document",
    '{"user_id":"cut',
    '{"user_id":"two"} {"user_id":"documents"}',
    b'{"user_id":"\xff"}',
    None,
    "{}",
    "[1]",
    "",
    '{"user_id":"left out","n":-100}',
)
SELECT = """
    SELECT json_value(value, '$.user_id') AS user_id,
           CAST(json_value(value, '$.n') AS BIGINT) AS n,
           CAST(json_value(value, '$.price') AS DECIMAL(10, 2)) AS price,
           TRY_CAST(json_value(value, '$.at') AS TIMESTAMPTZ) AS at,
           CAST(json_value(value, '$.day') AS DATE) AS day,
           CASE WHEN CAST(json_value(value, '$.ok') AS BOOLEAN) THEN upper(key) ELSE coalesce(key, 'none') END AS kind,
           event_timestamp
    FROM {{ input }}
    WHERE coalesce(CAST(json_value(value, '$.n') AS BIGINT), 0) > -100
"""


def rejected(lake: Lake) -> list[tuple[Any, ...]]:
    """Return where the rejected records are, and why."""
    found = lake.counting()
    names = ("_kafka_partition", "_kafka_offset", "reason")
    return sorted(tuple(row[name] for name in names if name in row) for row in found)


def compared(landing: FlinkLanding, lake: Lake) -> None:
    """Assert that both lakes have the same rows, rejects and counts."""
    assert landing.lake.records() == lake.records()
    assert rejected(landing.lake) == rejected(lake)
    mine, other = (one.entry(landing.topic).counts for one in (landing.lake, lake))
    assert (mine.read, mine.written, mine.rejected, mine.filtered, mine.skipped) == (
        *(other.read, other.written, other.rejected, other.filtered, other.skipped),
    )


def land_both(
    landing: FlinkLanding,
    kafka: Kafka,
    folder: Path,
    config: dict[str, Any],
    count: int,
    columns: str = "",
) -> None:
    """Land what partition 0 has by Flink, and then by the extract into a lake of its own; compare the two."""
    landing.config = {"columns": columns, "max_rejected": "1.0", **config}
    landing.start()
    landing.await_running()
    landing.await_landed({0: count})
    landing.stop()
    lake = Lake(folder / "extract", kafka.client_config())
    lake.folder.mkdir()
    lake.land(landing.topic, max_rejected="1.0", schema=columns or None, **config)
    compared(landing, lake)


def test_odd_records_come_to_the_rows_rejects_and_counts_of_the_extract(
    landing: FlinkLanding, produce: Producing, kafka: Kafka, tmp_path: Path
) -> None:
    values = [*ODD, *(f'{{"user_id":"u{n}","n":{n},"price":"{n}.25"}}' for n in range(300))]
    keys = [None if n % 3 else f"k{n}" for n in range(len(values))]
    produce(landing.topic, 0, values, keys=keys)
    produce(landing.topic, 1, [*ODD[:5], *(f'{{"user_id":"v{n}","ok":"false"}}' for n in range(100))])
    config: dict[str, Any] = {"sql": SELECT, "max_rejected": "1.0", "partition_by": ["day(event_timestamp)"]}
    landing.config = {"columns": "", **config}
    landing.start()
    landing.await_running()
    landing.await_landed({0: len(values), 1: 105})
    assert "other values than the extract makes" not in landing.log
    # Flink takes the last of two values, DuckDB the first.
    produce(landing.topic, 1, ['{"user_id":"a","user_id":"b","n":1}'])
    landing.await_landed({0: len(values), 1: 106})
    assert f"1 row has other values than the extract makes of the records ({landing.topic}[1] offset 105" in landing.log
    produce(landing.topic, 1, ["no document", '{"user_id":"last"}'])
    landing.await_landed({0: len(values), 1: 108})
    landing.stop()
    lake = Lake(tmp_path / "extract", kafka.client_config())
    lake.folder.mkdir()
    lake.land(landing.topic, **config)
    compared(landing, lake)
    assert "Landed what Flink has left to the extract" in landing.log


# `LAKESTREAM_STATEMENTS=200` is a soak.
@pytest.mark.parametrize("seed", range(int(os.environ.get("LAKESTREAM_STATEMENTS", "1"))))
def test_random_statements_make_of_random_records_what_the_extract_makes(
    landing: FlinkLanding, produce: Producing, kafka: Kafka, tmp_path: Path, seed: int
) -> None:
    made = Statements(seed)
    values = [made.value() for _ in range(400)]
    produce(landing.topic, 0, values, keys=[made.key() for _ in values])
    sql = made.statement(8)
    # A failure shows it.
    print(sql)
    land_both(landing, kafka, tmp_path, {"sql": sql}, len(values))
    # What Flink made was right, and not only what the extract has made in its place.
    assert "other values than the extract makes" not in landing.log


def test_columns_that_flink_has_decoded_are_compared_too(
    landing: FlinkLanding, produce: Producing, kafka: Kafka, tmp_path: Path
) -> None:
    values = [f'{{"id":{n},"name":"n{n}","price":{n}.25}}' for n in range(200)]
    values[50:50] = ['{"id":"no number"}', "no document", '{"id":1.5}', '{"id":1,"price":123456789.5}', '{"id":7}']
    produce(landing.topic, 0, [*values, None])
    sql = "SELECT id, upper(name) AS name, price * 2 AS twice FROM {{ input }} WHERE id <> 7"
    columns = "id bigint, name string, price decimal(9, 2)"
    config = {"sql": sql, "sql_input": "decoded"}
    land_both(landing, kafka, tmp_path, config, len(values) + 1, columns)


def test_the_first_records_tell_the_columns_where_nobody_does(
    landing: FlinkLanding, produce: Producing, kafka: Kafka, tmp_path: Path
) -> None:
    values = [f'{{"id":{n},"name":"n{n}","at":"2026-01-02T03:04:05Z"}}' for n in range(100)]
    produce(landing.topic, 0, [*values, "no document", None])
    land_both(landing, kafka, tmp_path, {"on_error": "reject"}, 102)
