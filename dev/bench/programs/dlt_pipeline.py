"""A dlt pipeline from Kafka to Iceberg; runs in the environment of the peers.

It reads as dlt's own Kafka source does: batches of 3,000 messages, each a dict with the record's place, up to the ends
of the partitions at the start. The value is parsed here, so that it gets columns.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dlt
from confluent_kafka import Consumer, Message, TopicPartition
from dlt.destinations import filesystem

from dev.bench.programs.measured import CommitClock, Work, write_result

BATCH = 3_000
BATCH_TIMEOUT_S = 3
TABLE = "clicks"


def main() -> None:
    """Run the pipeline once."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    args = parser.parse_args()
    clock = CommitClock().start()
    with Work() as work:
        pipeline = dlt.pipeline(
            "bench",
            pipelines_dir=str(args.folder / "pipelines"),
            destination=filesystem(bucket_url=f"file://{args.folder}/warehouse"),
            dataset_name="bench",
        )
        messages = kafka_messages(args.bootstrap, args.topic, args.records)
        pipeline.run(dlt.resource(messages, name=TABLE, table_format="iceberg"))
    write_result(args.result, {**work.told(), "commits": clock.seconds})


def kafka_messages(bootstrap: str, topic: str, most: int) -> Iterator[list[dict[str, Any]]]:
    """Yield the topic's first records, in batches."""
    config = {"bootstrap.servers": bootstrap, "group.id": "dlt", "enable.auto.commit": False}
    with closing(Consumer(config)) as consumer:
        partitions = consumer.list_topics(topic).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        left = most
        while left:
            messages = consumer.consume(min(BATCH, left), BATCH_TIMEOUT_S)
            if not messages:
                raise AssertionError(f"{left} records of {topic} did not come")
            left -= len(messages)
            yield [as_row(message) for message in messages]


def as_row(message: Message) -> dict[str, Any]:
    """Return a record with its place."""
    if message.error():
        raise AssertionError(message.error())
    _, at = message.timestamp()
    place = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": datetime.fromtimestamp(at / 1000, UTC),
    }
    row: dict[str, Any] = json.loads(message.value())
    row["_kafka"] = place
    return row


if __name__ == "__main__":
    main()
