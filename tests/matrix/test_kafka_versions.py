"""What a landing asks of a broker, on each version of Kafka that can be had."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_lakestream.audit.result import AuditVerdict
from dev import jars
from dev.services.kafka import Kafka
from dev.stack import Stack
from tests.support.broker import Producing, Topics, poll_until
from tests.support.lake import Lake, events
from tests.support.lake_reading import at

pytestmark = [pytest.mark.integration, pytest.mark.own_parts]


@pytest.fixture(scope="module", params=[version for version in jars.KAFKAS if version != jars.KAFKA_VERSION])
def broker(request: pytest.FixtureRequest) -> Iterator[Kafka]:
    """Give a broker of another version than all other tests run on."""
    with Stack.owned("tests-versions") as stack:
        yield stack.up_kafka(version=request.param)


def test_a_landing_finds_all_that_it_asks_for(broker: Kafka, tmp_path: Path) -> None:
    """Identity, watermarks, times, transactions, records that are deleted, and the group's offsets."""
    admin = AdminClient({**broker.client_config(), "log_level": 2})
    topic, produce = Topics(admin)(partitions=2), Producing(broker.client_config())
    lake = Lake(tmp_path, broker.client_config())
    produce(topic, 0, events(0, 0, 40), timestamps=[1_700_000_000_000 + 1000 * n for n in range(40)])
    produce(topic, 1, events(1, 0, 10))

    # Partition 0 from a time on.
    first = lake.land(topic, start_offset="timestamp", start_timestamp="2023-11-14T22:13:40Z")
    assert first.counts.written == 20 + 10

    # A transaction that is aborted, and one that is not.
    sending = Producer({**broker.client_config(), "transactional.id": topic, "log_level": 2})
    sending.init_transactions(30)
    for value, ends in (
        (events(1, 10, 1)[0], sending.abort_transaction),
        (events(1, 12, 1)[0], sending.commit_transaction),
    ):
        sending.begin_transaction()
        sending.produce(topic, value, partition=1)
        sending.flush(30)
        ends(30)
    # The record, and the marker that comes a little after the commit was acknowledged.
    poll_until(lambda: lake.land(topic).remaining_lag == 0 and lake.landed(topic)[1] == [(0, 14)], "both transactions")

    # Retention, as far as nothing is lost.
    deleted = admin.delete_records([TopicPartition(topic, 0, 30)])
    for future in deleted.values():
        future.result(30)
    produce(topic, 0, events(0, 40, 5))
    assert lake.land(topic).counts.written == 5

    assert lake.offsets() == at(0, range(20, 45)) + at(1, [*range(10), 12])
    assert lake.committed_offsets(topic) == {0: 45, 1: 14}
    assert lake.audit(topic=topic).verdict is AuditVerdict.CLEAN
