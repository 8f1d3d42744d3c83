"""Random histories of a table: landings, replaces and what others do keep each record once."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.tables.takeout import NotReadAgain
from tests.support.replacing import ORDERS, TOPIC, Row, offsets_of, ranges
from tests.support.table_formats import FORMATS


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
@pytest.mark.long
@settings(max_examples=settings.default.max_examples // 4, suppress_health_check=[HealthCheck.too_slow])
@given(ACTIONS, st.integers(0, 2))
@pytest.mark.parametrize("form", FORMATS)
def test_any_files_and_any_ranges_give_the_rows_of_the_model(
    form: str, actions: list[tuple[str, RangeSet]], way: int
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        columns = (None, ("_kafka_partition",), FORMATS[form].partitions)
        made = FORMATS[form](Path(folder), patch, partition_by=columns[way], sort_order=("_kafka_offset",))
        landed, gone, rows, foreign = ranges((0, 0, 5)), set[tuple[int, int]](), dict[tuple[int, int], str](), 0
        made.land(landed, "0")
        rows |= dict.fromkeys(offsets_of(landed), "0")
        for number, (action, drawn) in enumerate(actions, start=1):
            version = str(number)
            commits = len(made.commits())
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
                assert len(made.commits()) == commits + (not lost)
            elif action == "forget":
                # Kafka has these records no more, landed or not.
                gone |= set(offsets_of(drawn)[:2])
            elif action == "compact":
                made.compact()
            elif action == "foreign":
                made.append_foreign("foreign")
                foreign += 1
            expected: list[Row] = [(*key, version) for key, version in rows.items()]
            assert made.rows() == sorted(expected + [(None, None, "foreign")] * foreign, key=repr)
            assert made.ledger().entry(ORDERS).landed == landed
            assert made.ledger().entry(ORDERS).counts.written == len(rows)
        made.assert_whole()
