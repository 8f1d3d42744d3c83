"""JSON values that engines read differently: each row is what the extract makes of it, or is named before it shows."""

from __future__ import annotations

import os
import re

import pytest

from airflow_lakestream.audit.result import AuditVerdict
from airflow_lakestream.connect.proof import proof_of as proof_of_connect
from airflow_lakestream.core.publishing.refusals import RecordDoubted, RowsDiffer
from airflow_lakestream.flink.formats.proof import Reads
from airflow_lakestream.flink.formats.proof import proof_of as proof_of_flink
from airflow_lakestream.kafka.reader import KafkaReader
from tests.support.broker import Producing, Topics, poll_until
from tests.support.connecting import PATIENCE, Sinks
from tests.support.flink import FlinkLanding
from tests.support.lake import GROUP, Lake
from tests.support.odd_values import COLUMNS, REPEATED, Odd, Verdicts, records

pytestmark = pytest.mark.integration

# Random records beside the odd ones.
RECORDS = int(os.environ.get("LAKESTREAM_RECORDS", "300"))
SEED = int(os.environ.get("LAKESTREAM_SEED", "0"))
KEPT = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}

# What the engines are known to make something else of.
_CONNECTS = ('{"i":3000000000}', '{"l":1.9}', '{"m":1.005}', '{"b":"yes"}', '{"d":1e400}', '{"s":"late"}')
_FLINKS = (REPEATED, '{"b":"yes"}', '{"m":1.005}', '{"s":{"b":1.10}}', '{"s":"late"}')


def _produce(produce: Producing, topic: str, odd: list[Odd]) -> None:
    stamps, keys = [one.timestamp for one in odd], [one.key for one in odd]
    produce(topic, 0, [one.text for one in odd], timestamps=stamps, keys=keys)


def _reader(lake: Lake) -> KafkaReader:
    return KafkaReader(lake.kafka, "verdicts", poll_timeout=30, where="the broker")


def test_by_connect(sinks: Sinks, lake: Lake, topic: Topics, produce: Producing) -> None:
    name, odd = topic(1, **KEPT), records(SEED, RECORDS, "connect")
    assert len(odd) - RECORDS >= 60
    rows_wanted = sum(one.text is not None for one in odd)
    lake.land(name, schema=COLUMNS)
    _produce(produce, name, odd)
    sinks.driving(name).begin()
    branch = sinks.sink(name).branch

    def is_written() -> bool:
        rows = lake.table().scan(snapshot_id=lake.table().refs()[branch].snapshot_id).to_arrow()
        status = sinks.client.status(sinks.name)
        assert not status.failed, status.failed[0].trace
        return len(rows) >= rows_wanted

    poll_until(is_written, "the sink's rows", PATIENCE, every=1)
    sinks.client.stop(sinks.name)
    rows = lake.table().scan(snapshot_id=lake.table().refs()[branch].snapshot_id).to_arrow()
    proof = proof_of_connect(sinks.sink(name).config, lambda: _reader(lake), 1.0)
    assert proof is not None
    refused = Verdicts(lake, name, rows, proof).check(odd)
    assert [one for one in _CONNECTS if not refused[one]] == []

    # All of them together: nothing shows, and what the error says lands them.
    head = lake.table().current_snapshot()
    driving = sinks.driving(name)
    driving.begin()
    with pytest.raises((RowsDiffer, RecordDoubted), match="Run KafkaExtractOperator once with the same group") as told:
        sinks.follow_until(driving, lambda _: False)
    assert re.search(rf"{name}\[0\] offset \d+: ", str(told.value))
    assert (lake.table().current_snapshot(), lake.offsets()) == (head, [])
    report = lake.land(name, schema=COLUMNS, tombstones="skip", max_rejected="1.0")
    assert report.counts.read == len(odd)
    produce(name, 0, ['{"i":7}'] * 5)
    sinks.run(name, report.rows + 5)
    assert lake.landed(name) == {0: [(0, len(odd) + 5)]}
    assert lake.audit().verdict is AuditVerdict.CLEAN


def test_by_flink(landing: FlinkLanding, topic: Topics, produce: Producing) -> None:
    lake, odd = landing.lake, records(SEED, RECORDS, "flink")
    assert len(odd) - RECORDS >= 60
    landing.topic = name = topic(1, **KEPT)
    landing.config = {"columns": COLUMNS}
    _produce(produce, name, odd)
    driver = landing.start()
    assert driver.wait(PATIENCE) == 1, landing.log
    assert "JobEnded" not in landing.log, landing.jobs.manager.causes(landing.note.job if landing.note else "")
    assert re.search(rf"{name}\[0\] offset \d+: ", landing.log), landing.log
    assert "Run KafkaExtractOperator once with the same group" in landing.log
    assert (lake.offsets(), lake.landed(name)) == ([], {})
    config = landing.configured()
    rows = lake.table().scan(snapshot_id=lake.table().refs()[config.on_branch].snapshot_id).to_arrow()
    reads = Reads("json", begins={0: 0})
    columns = config.source_columns
    proof = proof_of_flink(columns, reads, lambda *_: _reader(lake), None, compares=True, share=1.0)
    refused = Verdicts(lake, name, rows, proof).check(odd)
    assert [one for one in _FLINKS if not refused[one]] == []

    # What the error says.
    report = lake.land(name, schema=COLUMNS, tombstones="skip", max_rejected="1.0")
    assert report.counts.read == len(odd)
    produce(name, 0, ['{"i":7}'] * 5)
    landing.start()
    landing.await_landed({0: len(odd) + 5})
    landing.stop()
    assert lake.audit(group=GROUP).verdict is AuditVerdict.CLEAN
