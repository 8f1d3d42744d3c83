"""The words and numbers that parameters take."""

from __future__ import annotations

import pytest

from airflow_lakestream.core.names import check_table_name, check_topic
from airflow_lakestream.core.policies import OnDataLoss, StartOffset, choose, seconds, size_in_bytes
from airflow_lakestream.exceptions import InvalidArgument, UnknownValue


def test_a_choice_is_its_word() -> None:
    assert choose(StartOffset, "start_offset", "latest") is StartOffset.LATEST
    assert choose(OnDataLoss, "on_data_loss", OnDataLoss.RECORD) is OnDataLoss.RECORD


@pytest.mark.parametrize("value", ["LATEST", " latest", "", None, 0, "newest"])
def test_another_word_is_refused_with_the_known_ones(value: object) -> None:
    with pytest.raises(
        UnknownValue, match=r"^start_offset: .*'earliest', 'latest', 'timestamp', 'committed'"
    ) as caught:
        choose(StartOffset, "start_offset", value)
    assert caught.value.known == ("earliest", "latest", "timestamp", "committed")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (60, 60),
        (0, 0),
        (0.5, 0.5),
        ("60", 60),
        ("60s", 60),
        (" 5 m ", 300),
        ("5min", 300),
        ("500ms", 0.5),
        ("2h", 7200),
        ("1.5d", 129_600),
    ],
)
def test_seconds(value: object, expected: float) -> None:
    assert seconds("poll_timeout", value) == expected


@pytest.mark.parametrize(
    "value", ["", None, True, -1, "-1", "1w", "1 s s", "nan", "inf", float("nan"), "1e3", "1,5", []]
)
def test_what_is_no_number_of_seconds_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgument, match=r"^poll_timeout: ") as caught:
        seconds("poll_timeout", value)
    assert caught.value.argument == "poll_timeout"


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1, 1), ("1024", 1024), ("1k", 1024), ("256 MiB", 2**28), ("256MB", 2**28), ("2G", 2**31), ("7b", 7)],
)
def test_sizes(value: object, expected: int) -> None:
    assert size_in_bytes("max_batch_bytes", value) == expected


@pytest.mark.parametrize("value", ["", None, True, 0, "0", -1, "-1", 1.5, "1.5MiB", "1 TiB", "many", []])
def test_what_is_no_size_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgument, match=r"^max_batch_bytes: "):
        size_in_bytes("max_batch_bytes", value)


@pytest.mark.parametrize("topic", ["orders", "a.b_c-D9", "x" * 249])
def test_names_that_kafka_takes(topic: str) -> None:
    assert check_topic(topic) == topic


@pytest.mark.parametrize("topic", ["", ".", "..", "a b", "a/b", "é", "x" * 250, "a\n", None])
def test_names_that_kafka_does_not_take(topic: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^topic: "):
        check_topic(topic)


@pytest.mark.parametrize("table", ["lake.orders", "a.b.c", "lake.orders_v2"])
def test_names_of_tables(table: str) -> None:
    assert check_table_name(table) == table


@pytest.mark.parametrize("table", ["", "orders", "lake.", ".orders", "lake..orders", "lake.or ders", "lake.a/b", None])
def test_what_is_no_name_of_a_table(table: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^table: "):
        check_table_name(table)
