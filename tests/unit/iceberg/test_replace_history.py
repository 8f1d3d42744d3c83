"""A replace in the table's history: the ledger follows rollback and expiry, random histories keep each record once."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.tables.takeout import NotReadAgain
from tests.support.lake import assert_files_are_whole, compact
from tests.support.replacing import TOPIC, HandMade, Row, append_foreign_rows, offsets_of, ranges


@pytest.fixture
def made(tmp_path: Path) -> HandMade:
    """Give a table of 30 records, one of which was filtered away."""
    made = HandMade(tmp_path)
    made.land(ranges((0, 0, 20)))
    made.land(ranges((0, 20, 30)), without=[(0, 25)], filtered=1)
    return made


def test_rolled_back_to_before_a_replace_the_ledger_has_the_old_counts(made: HandMade) -> None:
    before = made.table().current_snapshot()
    assert before is not None
    made.table().append(made.table().scan(row_filter="_kafka_offset = 3").to_arrow())
    made.replace(ranges((0, 0, 10)))
    assert made.ledger().counts == Counts(29, 28, filtered=1), "the doubled row was taken out, too"

    made.table().manage_snapshots().rollback_to_snapshot(before.snapshot_id).commit()

    assert made.ledger().counts == Counts(30, 29, filtered=1)
    assert made.ledger().landed == ranges((0, 0, 30))
    assert {version for _, _, version in made.rows()} == {"old"}
    # What was rolled back is no reason to stop.
    made.replace(ranges((0, 0, 10)), "again")
    assert made.ledger().counts == Counts(30, 29, filtered=1)
    assert [row for row in made.rows() if row[2] == "again"] == [(0, n, "again") for n in range(10)]


def test_the_ledger_outlives_the_snapshot_of_the_replace(made: HandMade) -> None:
    made.replace(ranges((0, 20, 30)), "new")
    assert made.ledger().counts == Counts(30, 30)
    for offset in range(30, 50):
        made.land(ranges((0, offset, offset + 1)))
    table = made.table()
    table.maintenance.expire_snapshots().by_ids([s.snapshot_id for s in table.snapshots()[:-1]]).commit()
    assert made.ledger().counts == Counts(50, 50)
    assert made.ledger().landed == ranges((0, 0, 50))
    made.replace(ranges((0, 0, 50)))
    assert made.ledger().counts == Counts(50, 50)


def range_sets() -> st.SearchStrategy[RangeSet]:
    parts = st.tuples(st.integers(0, 1), st.integers(0, 30), st.integers(1, 12))
    return st.lists(parts, min_size=1, max_size=3).map(
        lambda found: RangeSet(OffsetRange(TOPIC, p, start, start + width) for p, start, width in found)
    )


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("land"), range_sets()),
        st.tuples(st.just("replace"), range_sets()),
        st.tuples(st.just("replace"), range_sets()),
        st.tuples(st.just("forget"), range_sets()),
        st.tuples(st.sampled_from(["compact", "foreign"]), st.just(RangeSet())),
    ),
    max_size=8,
)


# Each example is a table with up to nine commits.
@settings(max_examples=settings.default.max_examples // 4, suppress_health_check=[HealthCheck.too_slow])
@given(ACTIONS, st.sampled_from([None, ("_kafka_partition",), ("truncate(8, _kafka_offset)",)]))
def test_any_files_and_any_ranges_give_the_rows_of_the_model(
    actions: list[tuple[str, RangeSet]], partition_by: tuple[str, ...] | None
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = HandMade(Path(folder), partition_by, ("_kafka_offset",))
        landed, gone, rows, foreign = ranges((0, 0, 5)), set[tuple[int, int]](), dict[tuple[int, int], str](), 0
        made.land(landed, "0")
        rows |= dict.fromkeys(offsets_of(landed), "0")
        for number, (action, drawn) in enumerate(actions, start=1):
            version = str(number)
            snapshots = len(made.table().snapshots())
            if action == "land" and (these := drawn - landed):
                made.land(these, version, without=gone)
                landed |= these
                rows |= {key: version for key in offsets_of(these) if key not in gone}
            elif action == "replace" and (these := drawn & landed):
                again = [key for key in offsets_of(these) if key not in gone]
                lost = sorted(gone & set(offsets_of(these)) & set(rows))
                if lost:
                    with pytest.raises(NotReadAgain) as caught:
                        made.run().replace(these, version, again)
                    assert offsets_of(caught.value.ranges) == lost
                else:
                    made.run().replace(these, version, again)
                    rows |= dict.fromkeys(again, version)
                assert len(made.table().snapshots()) == snapshots + (not lost)
            elif action == "forget":
                # Kafka has these records no more, landed or not.
                gone |= set(offsets_of(drawn)[:2])
            elif action == "compact":
                compact(made.table())
            elif action == "foreign":
                append_foreign_rows(made.table(), 1)
                foreign += 1
            expected: list[Row] = [(*key, version) for key, version in rows.items()]
            assert made.rows() == sorted(expected + [(None, None, "foreign-0")] * foreign, key=repr)
            assert made.ledger().landed == landed
            assert made.ledger().counts.written == len(rows)
        assert_files_are_whole(made.table())
