"""Where a group begins that another tool has left: every committed offset, against what its log really has."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from airflow_lakestream.audit.result import AuditVerdict
from airflow_lakestream.core.landing.plan import DataLoss
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.run.job import build_job
from dev.services.kafka import Kafka
from tests.support.broker import Producing, TopicOf, Topics, poll_until
from tests.support.delta_lake import EACH_FORMAT
from tests.support.lake import Lake, events
from tests.support.sensing import commit
from tests.support.spark import by_spark
from tests.support.transactions import Transaction

pytestmark = [pytest.mark.integration, EACH_FORMAT]

SCHEMA = "id bigint, name string, score double"
PARTITIONS = 3
Position = tuple[int, int]


@pytest.fixture
def group() -> str:
    """Give a group of this test alone: Kafka's groups outlive tests."""
    return f"g-{uuid.uuid4().hex[:12]}"


@dataclass
class Known:
    """A partition as the test has made it: which offsets can be read, now and once its transaction is over."""

    low: int = 0
    stable: int = 0
    end: int = 0
    readable: list[int] = field(default_factory=list)
    later: list[int] = field(default_factory=list)


def rows(lake: Lake, name: str) -> list[Position]:
    found = lake.rows(name)
    return list(zip(found["_kafka_partition"].to_pylist(), found["_kafka_offset"].to_pylist(), strict=True))


def lost(lake: Lake, group: str) -> list[tuple[int, int, int]]:
    (entry,) = lake.ledger(group).topics.values()
    return [(r.partition, r.from_offset, r.until_offset) for r in entry.lost]


def origin(lake: Lake, group: str) -> dict[int, int]:
    (entry,) = lake.ledger(group).topics.values()
    return dict(entry.origin)


def assert_clean(lake: Lake, group: str) -> None:
    result = lake.audit(group=group)
    assert result.verdict is AuditVerdict.CLEAN, result.render()


@pytest.mark.parametrize("seed", range(8))
def test_a_group_begins_where_it_committed_or_is_refused(
    seed: int, lake: Lake, group: str, kafka: Kafka, topic: Topics, produce: Producing, admin: AdminClient
) -> None:
    chance = random.Random(seed)
    name = topic(PARTITIONS)
    known: dict[int, Known] = {}
    transactions = []
    for p in range(PARTITIONS):
        one = known[p] = Known()
        count = chance.randint(0, 6)
        produce(name, p, events(p, 0, count))
        one.stable = one.end = count
        one.low = chance.randint(0, count)
        if one.low:
            where = TopicPartition(name, p, one.low)
            admin.delete_records([where])[where].result(30)
        one.readable = list(range(one.low, count))
        if chance.random() < 0.5:
            # Still open when the group is taken over.
            more = chance.randint(1, 4)
            transactions.append(Transaction(kafka, admin))
            transactions[-1].begin(name, p, events(p, count, more))
            one.end += more
            one.later = list(range(count, count + more))
    beyond = seed % 2
    committed = {p: chance.randint(0, one.end + 3 * beyond) for p, one in known.items() if chance.random() < 0.8}
    # One at least, at an edge; or beyond it, by little or by much.
    edges = [known[0].end + 1, known[0].end + 99] if beyond else [0, known[0].low, known[0].stable, known[0].end]
    committed[0] = chance.choice(edges)
    commit(admin, group, name, committed)
    given: dict[str, Any] = {"consumer_group": group, "start_offset": "committed", "schema": SCHEMA}

    ahead = {p for p, offset in committed.items() if offset > known[p].end}
    gone = [(p, offset, known[p].low) for p, offset in sorted(committed.items()) if offset < known[p].low]
    begins = {p: committed.get(p, one.low) for p, one in known.items()}
    if ahead:
        for on_data_loss in ("fail", "record"):
            with pytest.raises(InvalidArgument, match=r"^start_offset: .*not in the log yet") as caught:
                lake.land(name, on_data_loss=on_data_loss, **given)
            assert all((f"{name}[{p}] " in str(caught.value)) == (p in ahead) for p in known)
        assert lake.has_nothing()
    elif gone:
        with pytest.raises(DataLoss) as lost_some:
            lake.land(name, **given)
        assert [(r.partition, r.from_offset, r.until_offset) for r in lost_some.value.ranges] == gone
        assert lake.has_nothing()
    if not ahead:
        lake.land(name, on_data_loss="record", **given)
        assert lost(lake, group) == gone
        assert origin(lake, group) == begins
        assert rows(lake, name) == [(p, o) for p in known for o in known[p].readable if o >= begins[p]]
        assert_clean(lake, group)
    for transaction in transactions:
        transaction.commit()
    if not ahead:
        lake.land(name, **given)
        assert rows(lake, name) == [
            (p, o) for p, one in known.items() for o in [*one.readable, *one.later] if o >= begins[p]
        ]
        assert_clean(lake, group)
    else:
        refused_until_set_anew(known, committed, str(caught.value), lake, group, name, given, produce, admin)


def refused_until_set_anew(
    known: dict[int, Known],
    committed: dict[int, int],
    said: str,
    lake: Lake,
    group: str,
    name: str,
    given: dict[str, Any],
    produce: Producing,
    admin: AdminClient,
) -> None:
    """Assert that a log which has grown past refused offsets does not make them right, and that setting them does."""
    ahead = {p: offset for p, offset in committed.items() if offset > known[p].end}
    for p, offset in ahead.items():
        known[p].readable = produce(name, p, events(p, known[p].end, offset - known[p].end + 2))
    with pytest.raises(InvalidArgument) as again:
        lake.land(name, on_data_loss="record", **given)
    assert str(again.value) == said
    assert lake.has_nothing()
    commit(admin, group, name, committed)
    lake.land(name, on_data_loss="record", **given)
    assert origin(lake, group) == {p: committed.get(p, one.low) for p, one in known.items()}
    landed = rows(lake, name)
    for p, offset in ahead.items():
        assert [o for of, o in landed if of == p] == [o for o in known[p].readable if o >= offset]
    assert_clean(lake, group)


def test_a_refusal_that_can_not_be_noted_says_so_and_a_dry_look_notes_nothing(
    lake: Lake, group: str, kafka: Kafka, topic_of: TopicOf, admin: AdminClient
) -> None:
    name = topic_of(events(0, 0, 4))
    commit(admin, group, name, {0: 60})
    settings = lake.settings(name, consumer_group=group, start_offset="committed")

    def refusal(dry: bool) -> str:
        source = build_job(settings, lake.kafka, lake.catalog(), run_id="r", dry=dry).source
        with pytest.raises(InvalidArgument, match="not in the log yet") as caught:
            source.starts(source.look())
        return str(caught.value)

    def metadata() -> str:
        answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(30)
        return answer.topic_partitions[0].metadata or ""

    assert "could not be noted" not in refusal(dry=True)
    assert not metadata()
    # A group that somebody is in takes offsets from its members only.
    member = Consumer({**kafka.client_config(), "group.id": group})
    member.subscribe([name])
    poll_until(lambda: member.poll(0.1) is not None or bool(member.assignment()), "a member of the group")
    assert "could not be noted" in refusal(dry=False)
    assert not metadata()
    member.close()
    assert "could not be noted" not in refusal(dry=False)
    assert "at 4" in metadata()


def test_spark_begins_where_the_group_committed_or_refuses(
    lake: Lake,
    group: str,
    kafka: Kafka,
    topic: Topics,
    produce: Producing,
    admin: AdminClient,
    spark: SparkSession,
) -> None:
    name = topic(PARTITIONS)
    for p in range(PARTITIONS):
        produce(name, p, events(p, 0, 5))
    transaction = Transaction(kafka, admin)
    transaction.begin(name, 1, events(1, 5, 3))
    where = TopicPartition(name, 0, 2)
    admin.delete_records([where])[where].result(30)
    run = by_spark(lake, name, {"consumer_group": group, "start_offset": "committed", "schema": SCHEMA}, spark)

    commit(admin, group, name, {0: 99, 1: 9, 2: 4})
    with pytest.raises(InvalidArgument, match=r"not in the log yet .*\[0\] 99 .*\[1\] 9 "):
        run(on_data_loss="record")
    assert lake.has_nothing()
    produce(name, 0, events(0, 5, 200))
    with pytest.raises(InvalidArgument, match=r"not in the log yet .*\[0\] 99 \(its log ended at 5\)"):
        run(on_data_loss="record")
    assert lake.has_nothing()
    # One that lies below what retention left, one inside the open transaction.
    commit(admin, group, name, {0: 1, 1: 7, 2: 4})
    with pytest.raises(DataLoss, match=r"\[0\] \[1,2\)"):
        run()
    assert lake.has_nothing()
    run(on_data_loss="record")
    assert (lost(lake, group), origin(lake, group)) == ([(0, 1, 2)], {0: 1, 1: 7, 2: 4})
    of_first = [(0, o) for o in range(2, 205)]
    assert rows(lake, name) == [*of_first, (2, 4)]
    transaction.commit()
    run()
    assert rows(lake, name) == [*of_first, (1, 7), (2, 4)]
    assert_clean(lake, group)
