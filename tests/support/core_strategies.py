"""Random values of the core's vocabulary."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from airflow_lakestream.core.ledger import (
    Counts,
    Landing,
    Ledger,
    NotedLandings,
    PublicationMarker,
    StreamBatch,
    TopicEntry,
    TopicIdentity,
)
from airflow_lakestream.core.ranges import OffsetRange, RangeSet, coalesce

TOPIC = "orders"
IDENTITY = TopicIdentity(TOPIC, "topic-id", "cluster-id")
PARTITIONS = range(3)


@st.composite
def range_sets(draw: st.DrawFn, topic: str = TOPIC) -> RangeSet:
    parts = draw(st.lists(st.tuples(st.sampled_from(PARTITIONS), st.integers(0, 30), st.integers(1, 8)), max_size=6))
    return RangeSet(OffsetRange(topic, p, start, start + width) for p, start, width in parts)


def by_partition() -> st.SearchStrategy[dict[int, int]]:
    return st.dictionaries(st.sampled_from(PARTITIONS), st.integers(0, 40))


def counts() -> st.SearchStrategy[Counts]:
    some = st.integers(0, 10**12)
    return st.tuples(some, some, some, some).map(lambda parts: Counts(sum(parts), *parts))


def covered() -> st.SearchStrategy[tuple[tuple[int, int], ...]]:
    some = st.tuples(st.integers(-(10**6), 10**13), st.integers(1, 10**7))
    return st.lists(some, max_size=4).map(lambda parts: coalesce((start, start + width) for start, width in parts))


@st.composite
def entries(draw: st.DrawFn, topic: str = TOPIC) -> TopicEntry:
    entry = draw(_entries(topic))
    if draw(st.booleans()):
        return entry
    return replace(entry, replaced=draw(range_sets(topic).filter(bool)), removed=draw(counts()))


def _entries(topic: str) -> st.SearchStrategy[TopicEntry]:
    return st.builds(
        TopicEntry,
        landed=range_sets(topic),
        lost=range_sets(topic),
        counts=counts(),
        origin=by_partition(),
        epochs=by_partition(),
        covered=covered(),
        forgotten=range_sets(topic),
        adopted=range_sets(topic),
        unproven=range_sets(topic),
        streamed=st.none() | st.builds(StreamBatch, st.text(max_size=3), st.integers(0, 9), st.integers(0, 99)),
        published=st.dictionaries(
            st.text(max_size=3),
            st.builds(PublicationMarker, st.integers(), st.integers(0, 99), by_partition()),
            max_size=2,
        ),
    )


@st.composite
def topics(draw: st.DrawFn) -> dict[TopicIdentity, TopicEntry]:
    name = st.text("ab.-_é", min_size=1, max_size=4)
    identities = draw(st.lists(st.builds(TopicIdentity, name, st.text(max_size=3), st.text(max_size=3)), max_size=3))
    return {identity: draw(entries(identity.topic)) for identity in identities}


def landings() -> st.SearchStrategy[Landing]:
    return st.builds(Landing, st.text(min_size=1, max_size=8), st.text(max_size=8), topics(), noted=st.booleans())


def ledgers(group: str = "g") -> st.SearchStrategy[Ledger]:
    noted = st.builds(
        NotedLandings, st.lists(st.text("ab", min_size=1, max_size=3), max_size=3).map(tuple), st.booleans()
    )
    return st.builds(Ledger, st.just(group), topics(), noted)


def offsets(ranges: RangeSet) -> set[tuple[int, int]]:
    return {(r.partition, offset) for r in ranges for offset in range(r.from_offset, r.until_offset)}
