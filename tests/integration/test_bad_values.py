"""Values that fit no row, with on_error="fail": the run names the first, commits nothing, and the process lives."""

from __future__ import annotations

import pytest

from airflow_lakestream.exceptions import BadRecord, Terminal
from tests.support.broker import Producing, TopicOf, Topics
from tests.support.lake import Lake
from tests.support.lake_reading import at

pytestmark = pytest.mark.integration

SCHEMA = "n bigint not null, s string, x double"
GOOD = '{"n": 1, "s": "a", "x": 0.5}'

# Each with what the reason has to speak of.
BAD = {
    "null": (b"null", "null, not an object"),
    "a tombstone for a required column": (None, "tombstone"),
    "empty": (b"", "empty"),
    "blank": (b" \n", "empty"),
    "two documents side by side": (b'{"n": 1}{"n": 2}', "more than one document"),
    "two documents on two lines": (b'{"n": 1}\n{"n": 2}', "more than one document"),
    "truncated": (b'{"n": 1, "s": "a', "truncated"),
    "truncated in the middle of a number": (b'{"n": 1', "truncated"),
    "an array": (b"[1]", "an array"),
    "a bare number": (b"7", "the number 7"),
    "invalid UTF-8": (b'{"n": 1, "s": "\xff"}', "UTF-8"),
    "NaN": (b'{"n": 1, "x": NaN}', "NaN"),
    "an integer of 20 digits": (b'{"n": 12345678901234567890}', "12345678901234567890"),
    "1.5 for an integer": (b'{"n": 1.5}', "1.5"),
    "a lone surrogate": (b'{"n": 1, "s": "\\ud83d"}', "lone surrogate"),
    "a string for an integer": (b'{"n": "1"}', "n: "),
    "a missing required field": (b'{"s": "a"}', "n: "),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_value_among_good_ones_fails_the_run_with_its_place_and_reason(
    lake: Lake, topic_of: TopicOf, case: str
) -> None:
    value, reason = BAD[case]
    name = topic_of([GOOD, GOOD, value, GOOD])

    with pytest.raises(BadRecord) as caught:
        lake.land(name, schema=SCHEMA, on_error="fail")

    bad = caught.value
    assert (bad.topic, bad.partition, bad.offset) == (name, 0, 2)
    assert reason in bad.reason
    assert str(bad).startswith(f"{name}[0] offset 2: {bad.reason}. Nothing of this batch was landed.")
    assert isinstance(bad, Terminal)
    assert lake.has_nothing()


@pytest.mark.parametrize("case", ["null", "two documents on two lines", "truncated", "invalid UTF-8", "NaN"])
def test_a_value_that_is_no_json_object_is_found_without_a_schema_too(lake: Lake, topic_of: TopicOf, case: str) -> None:
    value, reason = BAD[case]
    name = topic_of([GOOD, value])

    with pytest.raises(BadRecord) as caught:
        lake.land(name, on_error="fail")

    assert caught.value.offset == 1
    assert reason in caught.value.reason
    assert lake.has_nothing()


def thousands_with(*bad: tuple[int, bytes]) -> list[bytes | str]:
    values: list[bytes | str] = [f'{{"n": {n}, "s": "{n}"}}' for n in range(20_000)]
    for offset, value in bad:
        values[offset] = value
    return values


def test_the_first_of_several_is_named_in_the_middle_of_thousands(lake: Lake, topic_of: TopicOf) -> None:
    name = topic_of(thousands_with((12_345, b'{"n": 1.5}'), (12_346, b"null"), (19_999, b"")))

    with pytest.raises(BadRecord) as caught:
        lake.land(name, schema=SCHEMA, on_error="fail")

    assert (caught.value.partition, caught.value.offset) == (0, 12_345)
    assert "1.5" in caught.value.reason
    assert lake.has_nothing()


def test_of_two_partitions_one_of_the_two_first_bad_records_is_named(lake: Lake, topic_of: TopicOf) -> None:
    name = topic_of(thousands_with((9_000, b"null"), (9_001, b"")), thousands_with((15_000, b"[1]"), (16_000, b"")))

    with pytest.raises(BadRecord) as caught:
        lake.land(name, schema=SCHEMA, on_error="fail")

    # Across partitions there is no order; in each the first is the first.
    assert (caught.value.partition, caught.value.offset) in {(0, 9_000), (1, 15_000)}
    assert lake.has_nothing()


def test_a_table_that_is_there_stays_as_it_was(lake: Lake, topic: Topics, produce: Producing) -> None:
    name = topic(partitions=2)
    produce(name, 0, [GOOD])
    lake.land(name, schema=SCHEMA)
    files = sorted(lake.files())
    produce(name, 0, [GOOD] * 2_000)
    produce(name, 1, [*[GOOD] * 2_000, b'{"n": 1', *[GOOD] * 10])

    with pytest.raises(BadRecord) as caught:
        lake.land(name, schema=SCHEMA, on_error="fail")

    assert (caught.value.partition, caught.value.offset) == (1, 2_000)
    assert lake.offsets() == at(0, range(1))
    assert lake.landed(name) == {0: [(0, 1)]}
    assert sorted(lake.files()) == files


def test_what_was_committed_before_the_bad_record_stays_and_is_not_landed_again(
    lake: Lake, topic_of: TopicOf, produce: Producing
) -> None:
    name = topic_of([GOOD] * 5)
    lake.land(name, schema=SCHEMA, max_records=3)
    produce(name, 0, [b"null"])

    for _ in range(2):
        with pytest.raises(BadRecord, match="offset 5"):
            lake.land(name, schema=SCHEMA, on_error="fail")
    assert lake.offsets() == at(0, range(3))


def test_tombstones_are_rows_of_nulls_where_no_column_is_required(lake: Lake, topic_of: TopicOf) -> None:
    name = topic_of([None, '{"n": 1}', None])

    lake.land(name)

    assert lake.column("n") == [None, 1, None]


def test_tombstones_alone_can_be_landed_once_the_schema_is_given(lake: Lake, topic_of: TopicOf) -> None:
    name = topic_of([None, None])

    with pytest.raises(Exception, match="schema: it can't be inferred"):
        lake.land(name)
    assert lake.has_nothing()

    lake.land(name, schema="n bigint")
    assert lake.column("n") == [None, None]
