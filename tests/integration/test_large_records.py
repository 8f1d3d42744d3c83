"""Records of a mebibyte, of ten, and of more than the client takes: they land whole, or the error names the limit."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from confluent_kafka import Producer

from airflow_lakestream.exceptions import Terminal
from airflow_lakestream.kafka.errors import BatchTooLarge
from dev.services.kafka import Kafka
from tests.support.broker import Topics
from tests.support.lake import TABLE, Lake

pytestmark = pytest.mark.integration

MIB = 2**20
LARGEST = 32 * MIB


@pytest.fixture
def lake(tmp_path: Path, kafka: Kafka) -> Lake:
    return Lake(tmp_path, kafka.client_config())


def large_topic(topic: Topics, kafka: Kafka, size: int, count: int) -> tuple[str, dict[int, str]]:
    """Return a topic of two partitions with such records, and what is in each, by id."""
    name = topic(partitions=2, max_message_bytes=LARGEST)
    producer = Producer({**kafka.client_config(), "message.max.bytes": LARGEST, "log_level": 2})
    texts = {}
    for number in range(count):
        # Different in every part, so that no two places could be mistaken for each other, and hard to compress.
        blocks = (hashlib.sha256(b"%d %d" % (number, block)).hexdigest() for block in range(size // 64))
        texts[number] = "".join(blocks)
        producer.produce(name, json.dumps({"id": number, "text": texts[number]}), partition=number % 2)
        assert producer.flush(30) == 0
    return name, texts


@pytest.mark.parametrize(("size", "count"), [(MIB, 24), (10 * MIB, 6)], ids=["1 MiB", "10 MiB"])
def test_large_records_land_whole(lake: Lake, topic: Topics, kafka: Kafka, size: int, count: int) -> None:
    name, texts = large_topic(topic, kafka, size, count)
    report = lake.land(name, schema="id bigint not null, text string not null")
    rows = lake.table(TABLE).scan(selected_fields=("id", "text")).to_arrow().to_pylist()
    assert report.counts.written == count
    # Compared by key: pytest would print megabytes of a difference.
    assert sorted(row["id"] for row in rows) == list(range(count))
    assert [row["id"] for row in rows if row["text"] != texts[row["id"]]] == []


def test_records_larger_than_the_client_takes_name_the_limit_to_raise(lake: Lake, topic: Topics, kafka: Kafka) -> None:
    name, texts = large_topic(topic, kafka, 3 * MIB, 4)
    lake.kafka |= {"fetch.max.bytes": MIB, "receive.message.max.bytes": 2 * MIB}
    with pytest.raises(BatchTooLarge) as caught:
        lake.land(name)
    assert isinstance(caught.value, Terminal)
    assert caught.value.positions == {0: 0, 1: 0}
    assert f"at one of {name}[0] offset 0, {name}[1] offset 0" in str(caught.value)
    assert "Raise receive.message.max.bytes" in str(caught.value)

    lake.kafka |= {"receive.message.max.bytes": 4 * MIB}
    assert lake.land(name).counts.written == len(texts)
