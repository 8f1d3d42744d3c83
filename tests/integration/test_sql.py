"""SQL on the way from a real broker to a table: what becomes of each record, retries, replaces, and the operator."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from airflow_lakestream.audit.result import AuditVerdict
from airflow_lakestream.audit.run import Audit
from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.exceptions import BadRecord, InvalidArgument
from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator
from airflow_lakestream.run.repair import RecordsWithoutRow, TableRepair
from tests.support.airflow_home import AirflowHome, Connections
from tests.support.broker import Producing, TopicOf, Topics
from tests.support.lake import GROUP, TABLE, Lake
from tests.support.lake_reading import at
from tests.support.parallel_run import ParallelRun
from tests.support.spark import SparkRun

pytestmark = pytest.mark.integration

EVEN = """SELECT json_value(value, '$.n')::BIGINT AS n, upper(json_value(value, '$.s')) AS s FROM {{ input }}
    WHERE json_value(value, '$.n')::BIGINT % 2 = 0"""
ALL = "SELECT json_value(value, '$.n')::BIGINT AS n, json_value(value, '$.s') AS s FROM {{ input }}"


def documents(count: int) -> list[str]:
    return [f'{{"n": {n}, "s": "s{n}"}}' for n in range(count)]


def rejected_of(lake: Lake) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = lake.table("lake.events__rejected").scan().to_arrow().to_pylist()
    return sorted(rows, key=lambda row: row["_kafka_offset"])


@pytest.fixture
def ten(topic_of: TopicOf) -> str:
    return topic_of(documents(10))


def test_raw_records_become_the_columns_of_the_statement_and_the_filtered_ones_are_counted(
    lake: Lake, ten: str
) -> None:
    report = lake.land(ten, sql=EVEN)

    assert lake.offsets() == at(0, range(0, 10, 2))
    assert lake.column("s") == ["S0", "S2", "S4", "S6", "S8"]
    told = report.to_dict()
    assert (told["read"], told["rows"], told["filtered"], told["rejected"]) == (10, 5, 5, 0)
    assert told["partitions"] == {"0": {"read": 10, "rows": 5, "rejected": 0, "skipped": 0, "filtered": 5}}
    assert lake.entry(ten).counts == Counts(read=10, written=5, filtered=5)
    assert lake.landed(ten) == {0: [(0, 10)]}


def test_the_decoded_columns_with_the_metadata_columns(lake: Lake, ten: str) -> None:
    sql = "SELECT s || '-' || _kafka_offset AS id, n::INT AS small FROM {{ input }} WHERE n > 6"
    lake.land(ten, sql=sql, sql_input="decoded", schema="n bigint not null, s string")

    assert [(row["id"], row["small"], row["_kafka_offset"]) for row in lake.records()] == [
        ("s7-7", 7, 7),
        ("s8-8", 8, 8),
        ("s9-9", 9, 9),
    ]
    assert "n" not in lake.table().schema().column_names


def test_what_fails_to_decode_and_what_the_statement_fails_on_are_rejected_by_their_stages(
    lake: Lake, topic_of: TopicOf
) -> None:
    name = topic_of(['{"n": 1, "s": "1"}', '{"n": "x"}', '{"n": 3, "s": "three"}', '{"n": 4, "s": "4"}'])

    report = lake.land(
        name, sql="SELECT n, s::INT AS number FROM {{ input }}", sql_input="decoded", schema="n bigint, s string"
    )

    assert lake.column("number") == [1, 4]
    assert report.counts == Counts(read=4, written=2, rejected=2)
    rejected = rejected_of(lake)
    assert [(row["_kafka_offset"], row["stage"]) for row in rejected] == [(1, "decode"), (2, "sql")]
    assert "three" in rejected[1]["error"]
    assert rejected[1]["error"].startswith("column number: ")


def test_a_bad_record_fails_the_run_with_its_place_where_it_shall(lake: Lake, topic_of: TopicOf) -> None:
    name = topic_of([*documents(3), '{"n": "x"}', *documents(2)])

    with pytest.raises(BadRecord) as caught:
        lake.land(name, sql=ALL, on_error="fail")

    assert (caught.value.partition, caught.value.offset) == (0, 3)
    assert caught.value.reason.startswith("column n: ")
    assert lake.has_nothing()


def test_null_in_a_required_column_is_a_bad_record(lake: Lake, topic_of: TopicOf) -> None:
    name = topic_of(['{"n": 1}', '{"s": "x"}', None])

    report = lake.land(name, sql=ALL, schema="n bigint not null, s string", tombstones="skip")

    assert report.counts == Counts(read=3, written=1, rejected=1, skipped=1)
    assert lake.table().schema().find_field("n").required
    rejected = [(row["_kafka_offset"], row["error"]) for row in rejected_of(lake)]
    assert rejected == [(1, "column n: NULL, and the column is required")]


def test_keys_and_headers_are_read_where_the_statement_asks_for_them(
    lake: Lake, topic: Topics, produce: Producing
) -> None:
    name, now = topic(partitions=1), time.time_ns() // 1_000_000
    headers = [[("kind", b"x"), ("kind", b"y")], []]
    produce(name, 0, ["a", "b"], keys=["k0", None], headers=headers, timestamps=[now, now + 1])
    sql = """SELECT key AS k, headers[-1].value AS kind, epoch_ms(event_timestamp) AS ms, len(headers) AS h
        FROM {{ input }}"""

    # on_error="fail": the reject table's own needs would read them anyway.
    lake.land(name, sql=sql, on_error="fail")

    rows = [(row["k"], row["kind"], row["ms"], row["h"]) for row in lake.records()]
    assert rows == [("k0", b"y", now, 2), (None, None, now + 1, None)]


def test_a_second_run_lands_nothing_and_another_statement_goes_on_behind_it(
    lake: Lake, ten: str, produce: Producing
) -> None:
    first = lake.land(ten, "a run", sql=EVEN)
    again = lake.land(ten, "a run", sql=EVEN)
    assert again.counts == first.counts
    assert again.snapshot_ids == first.snapshot_ids

    produce(ten, 0, documents(3))
    lake.land(ten, sql=ALL)
    assert lake.offsets() == at(0, [0, 2, 4, 6, 8, 10, 11, 12])


def test_a_run_that_filters_everything_is_done_with_it(lake: Lake, ten: str) -> None:
    report = lake.land(ten, sql=ALL + " WHERE false")
    assert report.counts == Counts(read=10, filtered=10)
    assert lake.land(ten, sql=ALL).counts == Counts()
    assert lake.records() == []


def test_an_interval_is_replaced_by_what_another_statement_makes_of_it(lake: Lake, ten: str) -> None:
    lake.land(ten, sql=ALL)
    replace: dict[str, Any] = {"mode": "ranges", "ranges": [[0, 2, 6]], "replace": True}

    # Rows whose records are filtered now go, too; Kafka still has these records, so nothing is lost.
    report = lake.land(ten, sql=EVEN, **replace)
    assert report.counts == Counts(read=4, written=2, filtered=2)
    assert lake.offsets() == at(0, [0, 1, 2, 4, 6, 7, 8, 9])
    assert lake.column("s")[2:4] == ["S2", "S4"]
    assert lake.entry(ten).counts == Counts(read=10, written=8, filtered=2)

    lake.land(ten, sql=ALL, **replace)
    assert lake.offsets() == at(0, range(10))
    assert lake.entry(ten).counts == Counts(read=10, written=10)


def test_a_statement_that_does_not_fit_the_table_changes_nothing(lake: Lake, ten: str, produce: Producing) -> None:
    lake.land(ten, sql=ALL)
    produce(ten, 0, documents(1))
    with pytest.raises(InvalidArgument, match=r"sql: it contradicts the table lake\.events: 'x' \(int\) is not in"):
        lake.land(ten, sql="SELECT 1 AS x FROM {{ input }}")
    assert len(lake.records()) == 10

    lake.land(ten, sql="SELECT 1 AS x, length(value)::INT AS n FROM {{ input }}", schema_evolution="add")
    assert [(row["n"], row["x"]) for row in lake.records()][9:] == [(9, None), (len(documents(1)[0]), 1)]


def test_records_go_to_the_tables_that_the_statement_chooses_for_them(lake: Lake, ten: str) -> None:
    sql = "SELECT CASE WHEN n < 3 THEN 'low' ELSE 'high' END AS band, n FROM {{ input }} WHERE n <> 5"
    lake.land(
        ten, table="lake.{band}", sql=sql, sql_input="decoded", schema="n bigint", new_tables="create", home_table=None
    )
    assert lake.table("lake.low").scan().to_arrow()["n"].to_pylist() == [0, 1, 2]
    assert sorted(lake.table("lake.high").scan().to_arrow()["n"].to_pylist()) == [3, 4, 6, 7, 8, 9]


def test_an_audit_does_not_call_filtered_records_missing_and_a_repair_asks_for_the_statement(
    lake: Lake, ten: str
) -> None:
    lake.land(ten, sql=EVEN)
    look = Audit(table=TABLE, consumer_group=GROUP, kafka=lake.kafka, full=True)
    result = look.run(lake.catalog())
    assert result.verdict is AuditVerdict.CLEAN, result.render()
    assert result.to_dict()["not_verifiable_by_count"] == [{"topic": ten, "skipped": 0, "filtered": 5}]
    assert "5 filtered records" in result.render()

    lake.table().append(lake.table().scan(row_filter="_kafka_offset = 4").to_arrow())
    with pytest.raises(InvalidArgument, match=r"sql: .* through SQL that reads raw records"):
        TableRepair(audit=look).run(lake.catalog())
    with pytest.raises(RecordsWithoutRow, match="1 are now filtered"):
        TableRepair(audit=look, sql=ALL + " WHERE json_value(value, '$.n') <> '4'").run(lake.catalog())
    assert TableRepair(audit=look, sql=EVEN).run(lake.catalog()).verdict is AuditVerdict.CLEAN
    assert lake.offsets() == at(0, range(0, 10, 2))
    assert lake.column("s") == ["S0", "S2", "S4", "S6", "S8"]


# Records that take more than they may

HOSTILE = """SELECT CASE kind
        WHEN 'repeat' THEN length(repeat(repeat(left(value, 1), 10000), n))
        WHEN 'format' THEN length(format('{:>{}}', value, n))
        WHEN 'printf' THEN length(printf('%*d', n, 5))
        WHEN 'regexp' THEN length(regexp_replace(repeat(value, n), 'e', repeat('y', 1000), 'g'))
        WHEN 'long' THEN list_sum(list_transform(range(n), lambda x: list_sum(list_transform(range(n), lambda y:
            list_sum(list_transform(range(n), lambda z: sin(x * y * z)))))))
        ELSE n END::BIGINT AS n
    FROM (SELECT value, json_value(value, '$.kind') AS kind, json_value(value, '$.n')::BIGINT AS n FROM {{ input }})"""
TOO_MUCH = {"repeat": 200_000, "format": 1_000_000_000, "printf": 1_000_000_000, "regexp": 1_000_000}
# 256 MB, and 512 MiB.
MOST_MIB = 244 + 512


def hostile_documents(count: int, bad: dict[str, int]) -> dict[int, str]:
    """Return so many records by their offsets, those among them that take too much at odd places."""
    records = {n: f'{{"kind": "plain", "n": {n}}}' for n in range(count)}
    for place, (kind, n) in zip((3, 4, 57, count - 1, count // 2), bad.items(), strict=False):
        records[place] = f'{{"kind": "{kind}", "n": {n}}}'
    return records


def assert_rejected_alone(lake: Lake, records: dict[int, str], bad: dict[str, int]) -> None:
    """Assert that of these records those that take too much were rejected by name, and all others landed."""
    hostile = {n: kind for n, text in records.items() for kind in bad if f'"{kind}"' in text}
    assert len(hostile) == len(bad)
    rows = lake.table().scan().to_arrow().select(["_kafka_offset", "n"]).to_pylist()
    assert {row["_kafka_offset"]: row["n"] for row in rows} == {n: n for n in records if n not in hostile}
    rejected = lake.table("lake.events__rejected").scan().to_arrow().to_pylist()
    assert {row["_kafka_offset"] for row in rejected} == hostile.keys()
    for row in rejected:
        bound = "10 seconds of a processor" if hostile[row["_kafka_offset"]] == "long" else "756 MiB of memory"
        assert row["error"].startswith(f"sql: for this record alone, it takes more than {bound}")
        assert (row["stage"], row["value"].decode()) == ("sql", records[row["_kafka_offset"]])


@pytest.mark.parametrize(("parallelism", "bad"), [(1, {"printf": 1_000_000_000, "long": 1_300}), (2, TOO_MUCH)])
def test_a_record_that_takes_more_than_it_may_is_rejected_alone_and_the_task_stays_small(
    lake: Lake, topic: Topics, produce: Producing, parallelism: int, bad: dict[str, int]
) -> None:
    name, records = topic(partitions=1), hostile_documents(400, bad)
    produce(name, 0, list(records.values()))
    report = ParallelRun(lake, name, {"parallelism": parallelism, "sql": HOSTILE}).land()
    assert (report["processes"], report["rows"], report["rejected"]) == (
        2 if parallelism == 2 else 0,
        400 - len(bad),
        len(bad),
    )
    assert_rejected_alone(lake, records, bad)
    assert report["peak_mib"] <= MOST_MIB


def pyspark_memory(what: str) -> dict[int, int]:
    """Return a figure of the kernel's, in MiB, of each Python process of Spark's."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        # Workers come and go.
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError, IndexError):
            if "pyspark" in " ".join(process.cmdline()):
                status = Path(f"/proc/{process.pid}/status").read_text()
                found[process.pid] = int(re.findall(rf"{what}:\s+(\d+)", status)[0]) // 1024
    return found


def test_spark_rejects_such_a_record_alone_and_its_workers_stay_small(
    lake: Lake, topic: Topics, produce: Producing, spark: SparkSession
) -> None:
    name, records = topic(partitions=1), hostile_documents(400, TOO_MUCH)
    produce(name, 0, list(records.values()))
    for pid in pyspark_memory("VmRSS"):
        # The kernel forgets the peak.
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    before = pyspark_memory("VmRSS")
    SparkRun(lake, name).run(spark, mode="ranges", ranges=[[0, 0, 400]], sql=HOSTILE)
    assert_rejected_alone(lake, records, TOO_MUCH)
    peaks = pyspark_memory("VmHWM")
    assert peaks
    # Workers that tests before this one have used keep some of what they took.
    assert max(peak - before.get(pid, 0) for pid, peak in peaks.items()) <= MOST_MIB


# The operator

DAG = '''
import pendulum
from airflow.sdk import DAG
from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator
from airflow_lakestream.operators.kafka_extract_group import kafka_extract_group

SQL = """SELECT json_value(value, '$.n')::BIGINT AS n, '{{ params.country }}' AS country
    FROM {{ input }} WHERE json_value(value, '$.n')::BIGINT < {{ params.below }}"""

with DAG("sql_dag", schedule=None, params={"topic": "", "country": "DE", "below": 4}):
    KafkaExtractOperator(task_id="land", topic="{{ params.topic }}", table="lake.t", sql=SQL)
    kafka_extract_group("shared", tasks=2, topic="{{ params.topic }}", table="lake.shared", sql=SQL)
'''


def test_a_dag_whose_statement_is_rendered_around_its_input(
    airflow: AirflowHome, connections: Connections, ten: str
) -> None:
    dag = airflow.dag(airflow.write("sql_dag", DAG))
    run = airflow.run(dag, {"topic": ten, "country": "FR"})

    assert run.errors == []
    told = run.task("land").xcom
    assert (told["read"], told["rows"], told["filtered"]) == (10, 4, 6)
    assert "'FR' AS country\n    FROM {{ input }} WHERE" in run.task("land").rendered["sql"]
    for table in ("lake.t", "lake.shared"):
        rows = connections.catalog.load_table(table).scan().to_arrow().sort_by("n")
        assert rows.select(["n", "country"]).to_pylist() == [{"n": n, "country": "FR"} for n in range(4)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sql": "SELECT value FROM records"}, r"it does not read from \{\{ input \}\}"),
        ({"sql": "SELECT value FROM {{ input }}", "sql_input": "cooked"}, "'cooked' is not one of"),
        ({"sql_input": "decoded"}, "goes with sql"),
    ],
)
def test_what_no_rendering_can_mend_fails_where_the_dag_is_parsed(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        KafkaExtractOperator(task_id="land", topic="t", table="lake.t", **arguments)
