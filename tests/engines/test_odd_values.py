"""Records that engines read differently: each row is what the extract makes of it, or is named before it shows.

One topic is read by all engines. `make soak-values N=20000 SEED=1` reads long ones.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from airflow_lakestream.audit.result import AuditVerdict
from airflow_lakestream.connect.publishing import proof_of as proof_of_connect
from airflow_lakestream.core.names import RecordPart
from airflow_lakestream.core.publishing.refusals import RecordDoubted, RowsDiffer
from airflow_lakestream.driver.lease import request_stop
from airflow_lakestream.flink.formats.proof import proof_of as proof_of_flink
from airflow_lakestream.kafka.reader import KafkaReader
from airflow_lakestream.registry.client import RegistryClient
from dev.services.kafka import Kafka
from tests.support.avro_orders import ORDER
from tests.support.broker import Producing, Topics, poll_until
from tests.support.connecting import PATIENCE, Sinks
from tests.support.flink import FlinkLanding
from tests.support.lake import GROUP, Lake
from tests.support.odd_values import REPEATED
from tests.support.one_topic import KEPT, KINDS, NOT_CONNECTS, NOT_FLINKS, OneTopic, Verdicts
from tests.support.shared_run import SharedRun, read
from tests.support.spark import SparkRun

pytestmark = pytest.mark.integration

# Random records beside the odd ones.
RECORDS = int(os.environ.get("LAKESTREAM_RECORDS", "300"))
SEED = int(os.environ.get("LAKESTREAM_SEED", "0"))

# What the engines are known to make something else of.
_CONNECTS = ('{"i":3000000000}', '{"l":1.9}', '{"m":1.005}', '{"b":"yes"}', '{"d":1e400}', '{"s":"late"}')
_FLINKS = (REPEATED, '{"b":"yes"}', '{"m":1.005}', '{"s":{"b":1.10}}', '{"s":"late"}')
# Of which both make whole numbers.
_CUT_OFF = ('{"l":1.9}', '{"l":2}', '{"l":3.0}')
_REMEDY = "Run KafkaExtractOperator once with the same group"


@pytest.fixture(scope="module", params=KINDS, ids=str)
def one(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    kafka: Kafka,
    topic: Topics,
    produce: Producing,
) -> OneTopic:
    """Give a topic of each kind of records, which the extract has landed."""
    kind, name, lake = request.param, topic(4, **KEPT), Lake(tmp_path_factory.mktemp("lake"), kafka.client_config())
    registry: Any = request.getfixturevalue("registry") if kind.format == "avro" else None
    schema_id = registry.register(f"{name}-value", json.dumps(ORDER)) if registry else 0
    made = kind.make(random.Random(SEED), RECORDS, schema_id)
    one = OneTopic(kind, name, made, lake, produce, registry.url if registry else "", schema_id)
    for partition, records in enumerate(made):
        one.send(partition, records)
    counts = lake.land(name, **one.landing).counts
    assert counts.read == sum(map(len, made)) == counts.written + counts.rejected + counts.skipped
    assert counts.written > RECORDS // 3
    assert counts.rejected > 0
    return one


@pytest.fixture
def connects(one: OneTopic, request: pytest.FixtureRequest) -> Iterator[Sinks]:
    """Give a sink of this test."""
    if one.kind.format != "json":
        pytest.skip("Connect compares rows of JsonConverter only; the audit reports other rows as not proven.")
    return request.getfixturevalue("sinks")


def test_by_group(one: OneTopic, lake: Lake) -> None:
    run, plan, pieces = read(SharedRun(lake, one.name, one.landing), 3)
    assert len(plan.shares) > 1
    run.commit(plan, pieces)
    one.assert_same(lake)


def test_by_spark(one: OneTopic, lake: Lake, spark: SparkSession) -> None:
    SparkRun(lake, one.name, one.landing).run(spark)
    one.assert_same(lake)


def test_by_connect(one: OneTopic, connects: Sinks) -> None:
    sinks, lake, name = connects, connects.lake, one.name
    one.land_first(lake, NOT_CONNECTS)
    landed, partitions = lake.landed(name), (0, 1)
    sinks.driving(name).begin()
    branch, wanted = sinks.sink(name).branch, len(one.with_rows(partitions))

    def is_written() -> bool:
        status = sinks.client.status(sinks.name)
        assert not status.failed, status.failed[0].trace
        return len(_of(lake, branch, partitions)) >= wanted

    poll_until(is_written, "the sink's rows", PATIENCE, every=1)
    sinks.client.stop(sinks.name)
    proof = proof_of_connect(sinks.sink(name).config, lambda: _reader(lake), 1.0)
    assert proof is not None
    refused = Verdicts(one, lake, _of(lake, branch, partitions), proof).check(partitions)
    assert [value for value in _CONNECTS if not refused[value]] == []

    # All of them together: nothing shows, and what the error says lands them.
    head = lake.table().current_snapshot()
    driving = sinks.driving(name)
    driving.begin()
    with pytest.raises((RowsDiffer, RecordDoubted), match=_REMEDY) as told:
        sinks.follow_until(driving, lambda _: False)
    assert re.search(rf"{name}\[[01]\] offset \d+: ", str(told.value))
    assert (lake.table().current_snapshot(), lake.landed(name)) == (head, landed)
    lake.land(name, **one.landing)
    one.send_more()
    sinks.run(name, len(one.lake.offsets()))
    one.assert_same(lake, whole=False)
    assert lake.audit().verdict is AuditVerdict.CLEAN


def test_by_flink(one: OneTopic, landing: FlinkLanding) -> None:
    lake, partitions = landing.lake, (0, 2)
    landing.topic, landing.config = one.name, one.by_flink
    one.land_first(lake, NOT_FLINKS)
    landed = lake.landed(one.name)
    config, wanted = landing.configured(), len(one.with_rows(partitions))
    driver = landing.start(publish_interval=3600.0)
    landing.until(lambda: len(_of(lake, config.on_branch, partitions)) >= wanted, "the job's rows")
    assert request_stop(landing.location, "the test")
    assert driver.wait(PATIENCE) == 1, landing.log
    assert re.search(rf"{one.name}\[[02]\] offset \d+: ", landing.log), landing.log
    assert _REMEDY in landing.log
    assert lake.landed(one.name) == landed
    registry = RegistryClient(config.registry_config) if config.registry else None
    reads = landing.jobs.newest_job_format()
    proof = proof_of_flink(
        config.source_columns, reads, lambda *w: _reader(lake, *w), registry, compares=True, share=1.0
    )
    refused = Verdicts(one, lake, _of(lake, config.on_branch, partitions), proof).check(partitions)
    if one.kind.format == "json":
        assert [value for value in _FLINKS if not refused[value]] == []

    # What the error says.
    lake.land(one.name, **one.landing)
    one.send_more()
    landing.start()
    landing.until(lambda: lake.landed(one.name) == one.ends(), "the rest to be landed")
    landing.stop()
    one.assert_same(lake, whole=False)
    assert lake.audit(group=GROUP).verdict is AuditVerdict.CLEAN


def test_what_nobody_compares_is_told_by_connect(sinks: Sinks, topic: Topics, produce: Producing) -> None:
    name = topic(1)
    sinks.lake.land(name, schema="l bigint")
    produce(name, 0, _CUT_OFF)
    sinks.run(name, len(_CUT_OFF), share=0.0)
    _assert_taken_unproven(sinks.lake, name)


def test_what_nobody_compares_is_told_by_flink(landing: FlinkLanding, produce: Producing) -> None:
    landing.config = {"columns": "l bigint", "prove": "off"}
    produce(landing.topic, 0, _CUT_OFF)
    landing.start()
    landing.await_landed({0: len(_CUT_OFF)})
    landing.stop()
    _assert_taken_unproven(landing.lake, landing.topic)


def _assert_taken_unproven(lake: Lake, name: str) -> None:
    """Assert that the rows are as the engine makes them, and that the audit tells of it."""
    assert lake.column("l") == [1, 2, 3]
    for full in (True, False):
        audit = lake.audit(full=full)
        assert audit.verdict is AuditVerdict.CLEAN
        (note,) = (note for note in audit.notes if note.endswith("their values are not proven."))
        assert note.startswith(f"{name}[0] [0,3): ")


def _of(lake: Lake, branch: str, partitions: tuple[int, ...]) -> pa.Table:
    """Return the rows that a branch has of partitions; none without the branch."""
    table = lake.table()
    if branch not in (refs := table.refs()):
        return pa.table({})
    found = table.scan(snapshot_id=refs[branch].snapshot_id).to_arrow()
    return found.filter(pc.is_in(found["_kafka_partition"], value_set=pa.array(partitions, pa.int32())))


def _reader(lake: Lake, *parts: RecordPart) -> KafkaReader:
    return KafkaReader(lake.kafka, "verdicts", poll_timeout=30, where="the broker", parts=frozenset(parts))
