"""What Kafka's Java client, of versions 3.9 and 4.x, says of a damaged batch, as engines pass it on."""

from __future__ import annotations

import pytest

from airflow_lakestream.connect.judging import culprit_of
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.kafka.damage import MOST_LOOKED_AT, JavaDamage, first_offsets

FETCHING = "KafkaException: Received exception when fetching the next record from a-b.c-3. If needed, please seek past"
TEXTS = {
    "checksum": (
        f"org.apache.kafka.common.{FETCHING} the record to continue consumption.\n\tat x\nCaused by: "
        "org.apache.kafka.common.KafkaException: Record batch for partition a-b.c-3 at offset 20 is invalid, cause: "
        "Record is corrupt (stored crc = 1, computed crc = 2)",
        ("a-b.c", 3, 20),
    ),
    "checksum, shaded": (
        "org.apache.flink.kafka.shaded.org.apache.kafka.common.KafkaException: Record for partition a-b.c-3 at offset "
        "20 is invalid, cause: Record is corrupt",
        ("a-b.c", 3, 20),
    ),
    "decompression": (
        f"org.apache.kafka.common.{FETCHING} the record to continue consumption.\n\tat x\nCaused by: "
        "org.apache.kafka.common.KafkaException: java.io.IOException: FAILED_TO_UNCOMPRESS(5)",
        ("a-b.c", 3, -1),
    ),
    "lengths": (
        f"{FETCHING} the record to continue consumption.\nCaused by: org.apache.kafka.common.InvalidRecordException: "
        "Incorrect declared batch size, records still remaining in file",
        ("a-b.c", 3, -1),
    ),
    "refused by the broker": (
        "KafkaException: Encountered corrupt message when fetching offset 20 for topic-partition a-b.c-3",
        ("a-b.c", 3, 20),
    ),
    "nothing whole": (
        "KafkaException: Failed to make progress reading messages at a-b.c-3=20. Received a non-empty fetch response",
        ("a-b.c", 3, 20),
    ),
    "format": (
        "org.apache.kafka.common.errors.CorruptRecordException: Invalid magic found in record: 9",
        ("", -1, -1),
    ),
    "size": (
        "CorruptRecordException: Record size 3 is less than the minimum record overhead (14)",
        ("", -1, -1),
    ),
}
OTHERS = (
    "",
    "ConnectException: the table is away",
    "Error deserializing key/value for partition a-b.c-3 at offset 20. If needed, please seek past the record",
    "DataException: An error occurred converting record, topic: orders, partition, 3, offset: 55",
    "org.apache.kafka.common.errors.TimeoutException: Timeout of 60000ms expired before the position for partition a-3",
)


@pytest.mark.parametrize("name", TEXTS)
def test_place_and_line_are_found(name: str) -> None:
    text, place = TEXTS[name]
    told = JavaDamage.of(f"java.lang.RuntimeException: One or more fetchers\n\tat y\nCaused by: {text}\n\tat z")
    assert told is not None
    assert (told.topic, told.partition, told.offset) == place
    assert told.line in text
    if told.topic:
        # The whole batch is at fault: no record is to be skipped for it.
        assert culprit_of(text) is None


@pytest.mark.parametrize("text", OTHERS)
def test_what_is_no_damage_is_none(text: str) -> None:
    assert JavaDamage.of(text) is None


def test_where_to_look() -> None:
    ranges = RangeSet.of("t", 0, 5, 60) | RangeSet.of("t", 1, 5, 60)
    assert JavaDamage("", "t", 1, 20).within(ranges) == RangeSet.of("t", 1, 20, 60)
    assert JavaDamage("", "t", 1).within(ranges) == RangeSet.of("t", 1, 5, 60)
    assert JavaDamage("").within(ranges) == ranges
    assert not JavaDamage("", "control", 0, 7).within(ranges)
    assert first_offsets(RangeSet.of("t", 0, 5, 10**9)) == RangeSet.of("t", 0, 5, 5 + MOST_LOOKED_AT)
