"""The text of ledgers and landings: it comes back as it was, and what is not understood is refused."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.core.codec import (
    SUMMARY_ENGINE,
    SUMMARY_STREAM,
    SUMMARY_TOPICS,
    SUMMARY_VERSION,
    VERSION,
    JournalEntry,
    LedgerProperty,
    UnreadableLedger,
    decode_property,
    decode_summary,
    encode_property,
    encode_ranges,
    encode_summary,
)
from airflow_lakestream.core.ledger import (
    Counts,
    FunctionRows,
    Landing,
    LandingEngine,
    Ledger,
    StreamBatch,
    TopicEntry,
    TopicIdentity,
)
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from tests.support.core_strategies import landings, ledgers

snapshot_ids = st.integers(1, 2**63 - 1)


@st.composite
def properties(draw: st.DrawFn) -> LedgerProperty:
    journal = draw(st.lists(st.builds(JournalEntry, snapshot_ids, st.none() | landings()), max_size=3))
    return LedgerProperty(draw(st.none() | snapshot_ids), draw(ledgers()), tuple(journal))


@given(landings())
def test_a_landing_comes_back_from_a_summary_as_it_was(landing: Landing) -> None:
    summary = encode_summary("g", landing)
    assert all(isinstance(value, str) for value in summary.values())
    assert decode_summary(summary, "g", "snapshot 1") == landing


@given(properties())
def test_a_property_comes_back_as_it_was(value: LedgerProperty) -> None:
    assert decode_property(encode_property(value), "g") == value


@given(landings())
def test_another_groups_landing_is_no_landing_of_this_group(landing: Landing) -> None:
    assert decode_summary(encode_summary("other", landing), "g", "snapshot 1") is None


def test_a_summary_without_our_keys_is_no_landing() -> None:
    assert decode_summary({"operation": "append", "total-records": "5"}, "g", "snapshot 1") is None


LANDING = Landing("id", "run", {TopicIdentity("t", "i", "c"): TopicEntry(counts=Counts(2, 2))})


@pytest.mark.parametrize("engine", [None, *LandingEngine])
def test_a_summary_says_which_engine_landed(engine: LandingEngine | None) -> None:
    landing = decode_summary(encode_summary("g", replace(LANDING, engine=engine)), "g", "snapshot 1")
    assert landing is not None
    assert landing.engine is engine


@pytest.mark.parametrize("made", [None, FunctionRows("sessions:by_user", 7)])
def test_a_summary_says_which_function_made_rows_without_positions(made: FunctionRows | None) -> None:
    landing = decode_summary(encode_summary("g", replace(LANDING, made=made)), "g", "snapshot 1")
    assert landing is not None
    assert landing.made == made
    assert landing.rows == (2 if made is None else 9)


def test_a_summary_says_to_people_which_batch_of_a_query_it_is_and_how_far_it_read() -> None:
    landed = RangeSet([OffsetRange("t", 0, 5, 9), OffsetRange("t", 1, 0, 4)])
    entry = TopicEntry(landed, streamed=StreamBatch("q", 3, 17))
    summary = encode_summary("g", replace(LANDING, topics={TopicIdentity("t", "i", "c"): entry}))
    assert json.loads(summary[SUMMARY_STREAM]) == {"query": "q", "batch": 3, "watermark": 17, "ends": "0:9;4"}
    assert SUMMARY_STREAM not in encode_summary("g", LANDING)


def test_an_engine_of_a_newer_version_is_unknown_and_no_error() -> None:
    landing = decode_summary({**encode_summary("g", LANDING), SUMMARY_ENGINE: "another"}, "g", "snapshot 1")
    assert landing == LANDING
    assert landing.engine is None


@pytest.mark.parametrize("version", [VERSION + 1, 999, "2.1", "x", "", -1, None])
def test_a_newer_or_unknown_version_is_refused_with_the_remedy(version: object) -> None:
    summary = {**encode_summary("g", LANDING), SUMMARY_VERSION: str(version)}
    with pytest.raises(UnreadableLedger, match=r"snapshot 5: .*Upgrade airflow-lakestream"):
        decode_summary(summary, "g", "snapshot 5")

    text = json.loads(encode_property(LedgerProperty(None, Ledger("g"), ())))
    with pytest.raises(UnreadableLedger, match=r"table property lakestream\.ledger\.g: .*Upgrade"):
        decode_property(json.dumps({**text, "version": version}), "g")


def test_a_newer_version_is_refused_whatever_else_it_holds() -> None:
    with pytest.raises(UnreadableLedger, match="Upgrade"):
        decode_property('{"version": 2, "something": "else"}', "g")


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "null", "7", '{"version":1}', '{"version":1,"base":null,"ledger":[{}],"journal":[]}', "\x00"],
)
def test_a_damaged_property_is_refused_and_named(text: str) -> None:
    with pytest.raises(UnreadableLedger, match=r"lakestream\.ledger\.g"):
        decode_property(text, "g")


@pytest.mark.parametrize("topics", ["", "{", '[{"topic":"t"}]', '[{"topic":"t","id":"i","cluster":"c","landed":"x"}]'])
def test_a_damaged_summary_is_refused_and_named(topics: str) -> None:
    with pytest.raises(UnreadableLedger, match="snapshot 5"):
        decode_summary({**encode_summary("g", LANDING), SUMMARY_TOPICS: topics}, "g", "snapshot 5")


def test_counts_that_do_not_add_up_do_not_come_back_from_a_text() -> None:
    text = encode_property(LedgerProperty(None, Ledger("g", LANDING.topics), ())).replace("[2,2,", "[3,2,")
    with pytest.raises(Exception, match="add up"):
        decode_property(text, "g")


def test_ranges_are_written_as_gap_and_width() -> None:
    ranges = RangeSet.of("t", 0, 1500, 1980) | RangeSet.of("t", 0, 2000, 2005) | RangeSet.of("t", 3, 0, 1)
    assert encode_ranges(ranges, "t") == "0:1500+480,20+5;3:0+1"
    with pytest.raises(ValueError, match="in the ledger entry of 'u'"):
        encode_ranges(ranges, "u")


def test_the_books_of_200_partitions_take_less_than_2_500_characters_for_each_landing() -> None:
    rng = random.Random(1)
    ranges = [OffsetRange("t", p, at := rng.randrange(10**8, 10**9), at + rng.randrange(500, 5000)) for p in range(200)]
    landed = RangeSet(ranges)
    entry = TopicEntry(landed=landed, epochs={p: rng.randrange(5, 9) for p in range(200)})
    big = Landing("a" * 32, "run", {TopicIdentity("t", "id", "cluster"): entry})
    summary = encode_summary("g", big)
    # With the 600 to 700 of any snapshot: about 3 MB of metadata for a thousand of them.
    assert sum(map(len, (*summary, *summary.values()))) < 2_500
    assert decode_summary(summary, "g", "snapshot 1") == big


def test_a_packed_summary_that_is_damaged_is_an_error_of_ours() -> None:
    with pytest.raises(UnreadableLedger):
        decode_summary({**encode_summary("g", LANDING), SUMMARY_TOPICS: "zlib85:c-rlj"}, "g", "snapshot 5")
