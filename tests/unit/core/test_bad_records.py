"""How many bad records a run may have, decided before each commit; and what is told of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_lakestream.config.arguments import reject_limit
from airflow_lakestream.core.bad_records import MOST_KINDS, USUAL, BadRecords, ReasonKind, RejectLimit, TooManyRejected
from airflow_lakestream.core.codec import decode_summary, encode_summary
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.batch import RunLimits
from airflow_lakestream.core.landing.report import LandingReport
from airflow_lakestream.core.ledger import Counts, Landing, TopicEntry, TopicIdentity
from airflow_lakestream.core.records import DecodedBatch, RawBatch
from airflow_lakestream.core.sharing.pieces import SharePiece
from airflow_lakestream.exceptions import Terminal
from tests.unit.core.test_landing import GROUP, IDENTITY, TABLE, TOPIC, FakeTable, FakeTopic, job, span

CAUSE = "the values look like JSON"
FEW = st.integers(0, 40)
LIMITS = st.one_of(
    st.just(USUAL),
    st.builds(RejectLimit, count=FEW),
    st.builds(RejectLimit, share=st.integers(0, 100).map(lambda percent: percent / 100), least=st.integers(0, 20)),
)


def too_many(limit: RejectLimit, read: int, bad: int) -> bool:
    """Tell, by fractions, whether a run with so many bad records may not commit."""
    if limit.count is not None:
        return bad > limit.count
    assert limit.share is not None
    return bad >= max(1, limit.least) and Fraction(bad) > Fraction(str(limit.share)) * read


@given(LIMITS, FEW, FEW)
@example(RejectLimit(share=0.29), 71, 29)
@example(USUAL, 10, 10)
@example(USUAL, 9, 10)
@example(USUAL, 0, 9)
@example(USUAL, 0, 10)
def test_a_run_may_commit_while_no_more_than_the_limit_is_bad(limit: RejectLimit, good: int, bad: int) -> None:
    assert limit.allows(good + bad, bad, at_commit=True) is not too_many(limit, good + bad, bad)
    # In between, a count is all that can be told.
    assert limit.allows(good + bad, bad, at_commit=False) is (limit.count is None or bad <= limit.count)


@given(FEW, FEW)
def test_all_of_them_may_be_bad_where_max_rejected_is_one_as_a_share(good: int, bad: int) -> None:
    for written in ("1.0", 1.0, "100%"):
        assert reject_limit("max_rejected", written).allows(good + bad, bad, at_commit=True)
    assert reject_limit("max_rejected", 1) == RejectLimit(count=1)


@dataclass
class Judge:
    """Decodes records of which it is told whether they are bad, in the order of their offsets."""

    bad: Sequence[bool]
    skips: bool

    def decode(self, batch: RawBatch) -> DecodedBatch:
        rows = [(batch.partition, offset) for offset in batch.offsets if not self.bad[offset]]
        count = len(batch) - len(rows)
        counts = Counts(len(batch), len(rows), 0 if self.skips else count, count if self.skips else 0)
        return DecodedBatch(rows, counts, bad=BadRecords(count))


@given(
    st.lists(st.booleans(), min_size=1, max_size=80),
    LIMITS,
    st.integers(1, 12),
    st.booleans(),
    st.integers(0, 80),
)
def test_a_run_counts_what_it_read_so_far_before_each_commit_and_keeps_what_it_committed(
    bad: list[bool], limit: RejectLimit, chunk: int, skips: bool, before: int
) -> None:
    """Each chunk is a commit. The first try takes some records, the second one the rest."""
    topic, table = FakeTopic({0: (0, len(bad))}, chunk_size=chunk), FakeTable()
    limits = RunLimits(max_batch_bytes=1, max_rejected=limit)
    judge = Judge(bad, skips)

    def decoders(schema: object, first: RawBatch | None) -> Judge:
        return judge

    def run(most: int | None) -> None:
        land(job(topic, table, decoders=decoders, limits=replace(limits, max_records=most)))

    landed = 0
    failed = False
    ends = sorted({*range(chunk, min(before, len(bad)) + 1, chunk), min(before, len(bad))} - {0}) if before else []
    start = ends[-1] if ends else 0
    ends += [*range(start + chunk, len(bad), chunk), len(bad)]
    for end in dict.fromkeys(ends):
        if any(bad[landed:end]) and too_many(limit, end, sum(bad[:end])):
            failed = True
            break
        landed = end

    def both() -> None:
        if before:
            run(min(before, len(bad)))
        run(None)

    if failed:
        with pytest.raises(TooManyRejected) as caught:
            both()
        assert isinstance(caught.value, Terminal)
        assert (caught.value.landed, caught.value.bad.count) == (landed, sum(bad[: caught.value.read]))
    else:
        both()
    assert table.landed == (span(0, landed) if landed else span(0, 0))
    assert table.rows == [(0, offset) for offset in range(landed) if not bad[offset]]


KINDS = st.lists(
    st.builds(ReasonKind, st.sampled_from(["decode", "sql"]), st.sampled_from("abcdefgh"), st.integers(1, 99)),
    max_size=5,
)
BAD = st.builds(
    BadRecords,
    st.integers(0, 10**9),
    KINDS.map(tuple),
    st.dictionaries(st.sampled_from(["", CAUSE, "another"]), st.integers(1, 50)),
)


@given(st.lists(BAD, max_size=6))
def test_sums_count_each_record_stay_small_and_travel_as_json(parts: list[BadRecords]) -> None:
    total = sum(parts, BadRecords())
    assert total.count == sum(part.count for part in parts)
    assert len(total.kinds) <= MOST_KINDS
    assert [kind.count for kind in total.kinds] == sorted((kind.count for kind in total.kinds), reverse=True)
    assert BadRecords.from_dict(json.loads(json.dumps(total.to_dict()))) == total
    piece = SharePiece(IDENTITY, span(0, 9), {0: Counts(9, 9)}, {}, {"files": []}, total)
    assert SharePiece.from_dict(json.loads(json.dumps(piece.to_dict()))) == piece
    assert SharePiece.from_dict(json.loads(json.dumps(piece.to_dict()))).bad == total


def test_a_cause_is_told_where_it_explains_most() -> None:
    assert BadRecords(9, causes={CAUSE: 5, "": 4}).likely_cause == CAUSE
    assert BadRecords(9, causes={CAUSE: 4, "": 4}).likely_cause is None
    assert BadRecords(9, causes={"": 9}).likely_cause is None
    assert BadRecords(9).likely_cause is None


def test_the_error_names_the_reasons_by_how_many_there_are_the_cause_and_what_to_do() -> None:
    few, many = ReasonKind("sql", "b", 2, ("t[0] offset 7: b",)), ReasonKind("decode", "a", 10, ("t[0] offset 5: a 1",))
    bad = BadRecords(14, (many, few), {CAUSE: 12, "": 2})
    with pytest.raises(TooManyRejected) as caught:
        USUAL.check(TABLE, 20, bad, 4, at_commit=True)
    text = str(caught.value)
    assert text.startswith(f"{TABLE}: 14 of 20 records of this run are bad, more than 50% of them, and max_rejected is")
    assert "10 at stage decode: t[0] offset 5: a 1; 2 at stage sql: t[0] offset 7: b; 2 others" in text
    assert f"Likely cause: {CAUSE}." in text
    assert "The 4 records that it committed before stay landed." in text
    assert "1.0 for any number" in text
    with pytest.raises(TooManyRejected, match=r"more than max_rejected=12\.5%\."):
        RejectLimit(share=0.125).check(TABLE, 20, bad, 0, at_commit=True)
    with pytest.raises(TooManyRejected, match=r"more than max_rejected=3\."):
        RejectLimit(count=3).check(TABLE, 20, bad, 0, at_commit=False)


@pytest.mark.parametrize(("counts", "bad", "told"), [((9, 0, 0, 9), 5, "5"), ((9, 0, 9), 9, None)])
def test_a_snapshot_tells_how_many_of_the_skipped_were_bad(counts: Sequence[int], bad: int, told: str | None) -> None:
    entry = replace(FakeTable().ledgers[GROUP].entry(IDENTITY), counts=Counts(*counts))
    summary = encode_summary(GROUP, Landing("id", "run", {IDENTITY: entry}, bad=BadRecords(bad)))
    assert summary.get("lakestream.bad") == told
    landing = decode_summary(summary, GROUP, "snapshot 1")
    assert landing is not None
    assert landing.bad == (None if told is None else BadRecords(bad))


def test_bad_records_of_another_topic_that_the_same_run_landed_do_not_count() -> None:
    theirs = TopicIdentity("another", "id", "cluster-id")
    entry = TopicEntry(counts=Counts(15, 0, 15))
    report = LandingReport(TOPIC, TABLE, GROUP)
    report.recover([(1, Landing("one", "run", {theirs: entry}, bad=BadRecords(15)))])
    assert (report.counts.read, report.bad) == (0, BadRecords())
    # An earlier version has not told how many of the skipped were bad.
    report.recover([(2, Landing("two", "run", {IDENTITY: entry}))])
    assert (report.counts.read, report.bad.count) == (15, 15)
