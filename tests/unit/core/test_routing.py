"""Templates of table names, regexes of topics: what they stand for, and what is refused before anything is read."""

from __future__ import annotations

import pytest

from airflow_lakestream.core.routing import (
    MAX_NAME,
    NamePlaceholder,
    PlaceholderOrigin,
    TableTemplate,
    Unroutable,
    check_topic_or_pattern,
    colliding_topics,
    matching,
    near_names,
    sanitized,
)
from airflow_lakestream.exceptions import InvalidArgument

parse = TableTemplate.parse


@pytest.mark.parametrize(
    ("text", "placeholder"),
    [
        ("lake.{topic}", NamePlaceholder(PlaceholderOrigin.TOPIC)),
        ("lake.{key}", NamePlaceholder(PlaceholderOrigin.KEY)),
        ("lake.{header:type}", NamePlaceholder(PlaceholderOrigin.HEADER, "type")),
        ("lake.{header:event.type}", NamePlaceholder(PlaceholderOrigin.HEADER, "event.type")),
        ("lake.{event}", NamePlaceholder(PlaceholderOrigin.FIELD, "event")),
        ("lake.{field:topic}", NamePlaceholder(PlaceholderOrigin.FIELD, "topic")),
    ],
)
def test_each_placeholder_says_where_its_value_comes_from(text: str, placeholder: NamePlaceholder) -> None:
    assert parse(text).placeholders == (placeholder,)


def test_a_plain_name_has_no_placeholders_and_stays_as_it_is() -> None:
    assert parse("lake.Orders-2").placeholders == ()
    assert parse("lake.Orders-2").of_topic("t").text == "lake.Orders-2"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{event}",
        "lake",
        "lake.",
        "lake.{}",
        "lake.{event",
        "lake.event}",
        "lake.{{event}}",
        "lake.{a b}",
        "lake.{user.country}",
        "lake.{header}x{header:}",
        "lake.{key:x}",
        "lake.{offset:1}",
        "{event}.t",
        "{header:a}.x{topic}",
    ],
)
def test_a_bad_template_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse(text)
    assert refused.value.argument == "table"


def test_the_topic_is_in_place_before_any_record() -> None:
    template = parse("raw_{topic}.{topic}_{event}").of_topic("Orders.v1")
    assert template.namespace == "raw_orders_v1"
    assert template.by_record == (NamePlaceholder(PlaceholderOrigin.FIELD, "event"),)
    assert template.table(["Page View"]) == "raw_orders_v1.orders_v1_page_view"
    assert parse(template.text) == template


def test_values_stand_in_the_order_of_their_placeholders() -> None:
    assert parse("lake.{header:type}_of_{key}").table(["a", "b"]) == "lake.a_of_b"


@pytest.mark.parametrize(
    ("value", "name"), [("click", "click"), ("Page-View", "page_view"), ("a.b/c", "a_b_c"), ("Größe 2", "gr__e_2")]
)
def test_values_become_parts_of_names(value: str, name: str) -> None:
    assert sanitized(value) == name


@pytest.mark.parametrize("value", ["", "_", "--", "日本", "../.."])
def test_a_value_without_letter_or_digit_names_nothing(value: str) -> None:
    with pytest.raises(Unroutable):
        sanitized(value)


def test_names_have_a_longest_length() -> None:
    template = parse("lake.{key}")
    assert len(template.table(["x" * (MAX_NAME - 5)])) == MAX_NAME
    with pytest.raises(Unroutable):
        template.table(["x" * (MAX_NAME - 4)])
    with pytest.raises(InvalidArgument):
        parse("lake.{topic}").of_topic("x" * MAX_NAME)


def test_a_regex_matches_whole_names_and_no_internal_topic() -> None:
    topics = ["orders-eu", "orders-us", "orders", "my-orders-eu", "__consumer_offsets"]
    assert matching("^orders-.*", topics) == ["orders-eu", "orders-us"]
    assert matching("^orders", topics) == ["orders"]
    assert "__consumer_offsets" not in matching("^.*", topics)


def test_near_names_put_those_first_that_the_regex_begins() -> None:
    assert near_names("^order", ["aaa", "orders-eu", "__x"])[0] == "orders-eu"
    assert "__x" not in near_names("^order", ["aaa", "orders-eu", "__x"])


@pytest.mark.parametrize("pattern", ["^(", "^[a", "^*"])
def test_a_bad_regex_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        check_topic_or_pattern(pattern)
    assert refused.value.argument == "topic"


def test_topics_of_one_table_name_are_rivals() -> None:
    assert colliding_topics(parse("lake.{topic}"), ["a.b", "a-b", "c", "---"]) == {"a.b": "a-b", "a-b": "a.b"}
    assert colliding_topics(parse("lake.all"), ["a.b", "a-b"]) == {}


@pytest.mark.parametrize("value", ["x__rejected", "X--Deleted", "__home"])
def test_names_of_tables_that_stand_beside_others_are_not_to_be_had(value: str) -> None:
    with pytest.raises(Unroutable, match="next to other tables"):
        parse("lake.{key}").table([value])
    with pytest.raises(InvalidArgument, match="next to other tables"):
        parse("lake.{key}__rejected")
    assert parse("lake.{key}__rejected_ones").table([value]).endswith("_ones")
