"""A replace: in one commit the rows of ranges go out, and those read again come in; or nothing changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pyarrow.compute as pc
import pytest

from airflow_lakestream.core.ledger import Counts, TopicEntry, TopicIdentity
from airflow_lakestream.core.ports import CannotReplace, Conflict, RangesNotLanded, ReplacedMeanwhile, StaleFiles
from airflow_lakestream.tables.takeout import NotReadAgain
from tests.contract.conftest import FAULTS, WITH_AND_WITHOUT_RETRIES
from tests.support.faults import Fault, before
from tests.support.replacing import ORDERS, TOPIC, offsets_of, ranges, versions
from tests.support.table_formats import FormatTable

WHOLE = ((0, 0, 30), "old")
# Of three files one lies inside, one reaches across, one is untouched.
PART = (0, 5, 20)


def test_rows_in_the_ranges_go_and_the_others_stay(made: FormatTable) -> None:
    commit, landing = made.replace(ranges(PART))

    assert len(made.commits()) == 4
    assert made.commits()[-1] == commit
    assert made.rows() == versions(WHOLE, (PART, "new"))
    assert landing.topics[ORDERS].removed == Counts(15, 15)
    assert made.ledger().entry(ORDERS).landed == ranges((0, 0, 30))
    assert made.ledger().entry(ORDERS).counts == Counts(30, 30)
    made.assert_whole()


@pytest.mark.parametrize("part", [(0, 10, 11), (0, 19, 20), (0, 9, 11), (0, 19, 21), (0, 15, 16), (0, 10, 20)])
def test_the_ends_of_a_file_are_in_it(made: FormatTable, part: tuple[int, int, int]) -> None:
    made.replace(ranges(part))
    assert made.rows() == versions(WHOLE, (part, "new"))


def test_ranges_apart_from_each_other_go_in_one_commit(made: FormatTable) -> None:
    made.land(ranges((1, 0, 10)))
    parts = [(0, 2, 4), (0, 17, 23), (1, 9, 10)]
    made.replace(ranges(*parts))
    assert made.rows() == versions(WHOLE, ((1, 0, 10), "old"), *((part, "new") for part in parts))
    assert len(made.commits()) == 5


def test_fewer_rows_read_again_are_fewer_rows_in_the_ledger(empty: FormatTable) -> None:
    # Three offsets are markers of transactions: never rows, not the first time and not now.
    holes = [(0, 3), (0, 4), (0, 5)]
    empty.land(ranges((0, 0, 10)), without=holes)
    again = [key for key in offsets_of(ranges((0, 2, 8))) if key not in holes]
    _, landing = empty.replace(ranges((0, 2, 8)), again=again)
    assert landing.topics[ORDERS].removed == Counts(3, 3)
    assert empty.ledger().entry(ORDERS).counts == Counts(7, 7)
    assert [row for row in empty.rows() if row[2] == "new"] == [(*key, "new") for key in again]


def test_a_record_that_was_there_twice_is_there_once(made: FormatTable) -> None:
    made.append(made.read().filter(pc.less(pc.field("_kafka_offset"), 5)))
    made.replace(ranges((0, 0, 10)))
    assert made.rows() == versions(WHOLE, ((0, 0, 10), "new"))


def test_ranges_without_a_row_are_replaced_by_rows(empty: FormatTable) -> None:
    # Records that were filtered away the first time.
    empty.land(ranges((0, 0, 10)), without=offsets_of(ranges((0, 4, 8))), filtered=4)
    _, landing = empty.replace(ranges((0, 4, 8)))
    assert landing.topics[ORDERS].removed == Counts(4, filtered=4)
    assert empty.rows() == versions(((0, 0, 10), "old"), ((0, 4, 8), "new"))


def test_ranges_without_a_row_before_and_after(empty: FormatTable) -> None:
    empty.land(ranges((0, 0, 10)), without=offsets_of(ranges((0, 4, 8))))
    empty.replace(ranges((0, 4, 8)), again=[])
    assert empty.ledger().entry(ORDERS).counts == Counts(6, 6)
    assert len(empty.rows()) == 6


def test_another_topic_and_another_partition_keep_their_rows(made: FormatTable) -> None:
    made.land(ranges((1, 0, 10)))
    made.land(ranges((0, 0, 10), topic="orders2"), identity=TopicIdentity("orders2", "id-2", "cluster"))
    made.compact()
    made.replace(ranges((0, 0, 10)))
    others = [(0, n, "old") for n in range(10)]
    assert made.rows() == sorted([*versions(WHOLE, ((0, 0, 10), "new"), ((1, 0, 10), "old")), *others], key=repr)


@pytest.mark.parametrize("partition_by", [("_kafka_partition",), ("version", "_kafka_topic")])
def test_a_partitioned_and_sorted_table(empty: FormatTable, partition_by: tuple[str, ...]) -> None:
    design = {"partition_by": partition_by, "sort_order": ("_kafka_offset desc",)}
    empty.run(**design).land(ranges((0, 0, 20), (1, 0, 20)))
    empty.append_foreign("foreign")
    empty.run(**design).replace(ranges((0, 3, 14), (1, 19, 20)))
    rows = [((p, 0, 20), "old") for p in (0, 1)]
    assert empty.rows() == versions(*rows, ((0, 3, 14), "new"), ((1, 19, 20), "new"), foreign=("foreign",))
    empty.assert_whole()


def test_rows_from_elsewhere_stay_through_any_number_of_replaces_and_compactions(made: FormatTable) -> None:
    made.append_foreign("one", "two")
    for part in ((0, 0, 10), (0, 0, 30), (0, 4, 6)):
        made.replace(ranges(part), "new")
        made.compact()
    assert made.rows() == versions(((0, 0, 30), "new"), foreign=("one", "two"))


def test_a_record_that_became_no_row_takes_its_row_out(made: FormatTable) -> None:
    run = made.run(rejects=True)
    _, landing = run.replace(ranges((0, 3, 7)), bad=[(0, 5)])
    assert made.rows() == [row for row in versions(WHOLE, ((0, 3, 7), "new")) if row[:2] != (0, 5)]
    assert landing.topics[ORDERS].removed == Counts(4, 4)
    assert made.ledger().entry(ORDERS).counts == Counts(30, 29, rejected=1)


def test_one_run_replaces_one_range_after_the_other(made: FormatTable) -> None:
    run = made.run()
    for part in (PART, (0, 0, 7), PART):
        run.replace(ranges(part))
    assert made.rows() == versions(WHOLE, ((0, 0, 20), "new"))


def test_what_was_handed_over_and_adopted_takes_the_place_of_rows(made: FormatTable) -> None:
    worker, run = made.run(), made.run()
    worker.write(offsets_of(ranges((0, 3, 7))), "handed", ORDERS)
    run.sink.adopt(worker.sink.hand_over())
    run.replace(ranges((0, 3, 7)), again=[])
    worker.sink.let_go()
    worker.sink.discard()
    assert made.rows() == versions(WHOLE, ((0, 3, 7), "handed"))


# What can't be replaced


@pytest.fixture
def unchanged(made: FormatTable) -> Callable[[], None]:
    """Give an assertion that the table is what it was at the first call, with no file more."""
    before: list[object] = []

    def check() -> None:
        now = (made.commits(), made.rows())
        before.append(now)
        assert now == before[0]
        made.assert_whole()

    return check


Unchanged = Callable[[], None]


def test_a_landing_that_also_lands_ranges_is_no_replace(made: FormatTable, unchanged: Unchanged) -> None:
    unchanged()
    run = made.run()
    replaced = TopicEntry(replaced=ranges(PART))
    mixed = {ORDERS: TopicEntry(replaced=ranges(PART), landed=ranges((0, 30, 31)))}
    other = {TopicIdentity("orders2", "id-2", "cluster"): TopicEntry(landed=ranges((0, 0, 1), topic="orders2"))}
    for topics in (mixed, {ORDERS: replaced, **other}, {ORDERS: TopicEntry(landed=ranges((0, 30, 31)))}):
        with pytest.raises(AssertionError, match="is not one that replaces ranges of one topic only"):
            run.sink.replace(run.landing(topics))
        run.sink.discard()
    unchanged()


def test_a_table_without_metadata_columns(empty: FormatTable) -> None:
    empty.run(metadata=("topic",)).land(ranges((0, 0, 10)))
    with pytest.raises(CannotReplace, match="keeps no _kafka_partition, _kafka_offset: "):
        empty.run(metadata=("topic",)).replace(ranges((0, 0, 5)))
    assert len(empty.rows()) == 10
    empty.assert_whole()


def test_rows_that_were_landed_without_their_coordinates(made: FormatTable, unchanged: Unchanged) -> None:
    made.run(metadata=()).land(ranges((0, 30, 40)))
    unchanged()
    with pytest.raises(CannotReplace, match=r"without values in _kafka_topic.*40 rows were landed and 30 rows have"):
        made.replace(ranges((0, 0, 5)))
    unchanged()


def test_rows_of_an_earlier_topic_of_that_name(made: FormatTable, unchanged: Unchanged) -> None:
    made.land(ranges((0, 0, 10)), identity=TopicIdentity(TOPIC, "id-0", "cluster"))
    unchanged()
    with pytest.raises(CannotReplace, match="an earlier topic of the name 'orders'"):
        made.replace(ranges((0, 0, 5)))
    unchanged()


def test_rows_that_another_group_landed(made: FormatTable, unchanged: Unchanged) -> None:
    made.run("other", overlap=True).land(ranges((0, 0, 10)))
    unchanged()
    with pytest.raises(CannotReplace, match="group 'other' landed"):
        made.replace(ranges((0, 0, 5)))
    unchanged()


def test_rows_that_were_not_read_again(made: FormatTable, unchanged: Unchanged) -> None:
    made.land(ranges((1, 0, 10)))
    unchanged()
    again = [key for key in offsets_of(ranges((0, 2, 9), (1, 0, 4))) if key not in {(0, 2), (0, 3), (0, 6), (1, 3)}]
    with pytest.raises(NotReadAgain) as caught:
        made.replace(ranges((0, 2, 9), (1, 0, 4)), again=again)
    assert caught.value.ranges == ranges((0, 2, 4), (0, 6, 7), (1, 3, 4))
    assert "orders[0] [2,4), orders[0] [6,7), orders[1] [3,4)" in str(caught.value)
    unchanged()


def test_ranges_that_were_never_landed(made: FormatTable, unchanged: Unchanged) -> None:
    unchanged()
    with pytest.raises(RangesNotLanded) as caught:
        made.replace(ranges((0, 25, 35)))
    assert caught.value.ranges == ranges((0, 30, 35))
    unchanged()


def test_a_table_that_is_not_there(empty: FormatTable) -> None:
    with pytest.raises(RangesNotLanded):
        empty.replace(ranges((0, 5, 15)))
    empty.assert_whole()


# Other writers


def foreign_append(made: FormatTable) -> list[object]:
    made.append_foreign("foreign")
    return versions(WHOLE, (PART, "new"), foreign=("foreign",))


def compaction(made: FormatTable) -> list[object]:
    made.compact()
    return versions(WHOLE, (PART, "new"))


def another_landing(made: FormatTable) -> list[object]:
    made.land(ranges((1, 0, 5)), "other")
    return versions(WHOLE, (PART, "new"), ((1, 0, 5), "other"))


def another_replace(made: FormatTable) -> list[object]:
    others = (0, 0, 5), (0, 20, 21)
    made.replace(ranges(*others), "other")
    return versions(WHOLE, (PART, "new"), *((part, "other") for part in others))


@WITH_AND_WITHOUT_RETRIES
@pytest.mark.parametrize("late", [False, True], ids=["before the attempt", "before the commit"])
@pytest.mark.parametrize("change", [foreign_append, compaction, another_landing, another_replace])
def test_a_change_by_others(made: FormatTable, change: Callable[[FormatTable], list[object]], late: bool) -> None:
    expected: list[object] = []
    if late:
        made.meet(before(lambda: expected.extend(change(made))))
    run = made.run()
    if not late:
        expected += change(made)
    commit, landing = run.replace(ranges(PART))
    assert made.rows() == expected
    assert made.commits()[-1] == commit
    assert landing.topics[ORDERS].removed == Counts(15, 15)
    assert made.ledger().entry(ORDERS).counts.written == len([row for row in expected if row[0] is not None])  # type: ignore[index]
    made.assert_whole()


def test_a_changed_schema_is_planned_anew(made: FormatTable) -> None:
    made.meet(before(lambda: made.add_column("more")))
    run = made.run()
    with pytest.raises(StaleFiles, match="the schema was changed"):
        run.replace(ranges(PART))
    assert made.rows() == versions(WHOLE)
    made.assert_whole()
    run.sink.load("run")
    run.replace(ranges(PART))
    assert made.rows() == versions(WHOLE, (PART, "new"))


@pytest.mark.parametrize("again", [False, True], ids=["at once", "after planning anew"])
@pytest.mark.parametrize("late", [False, True], ids=["before the attempt", "before the commit"])
def test_the_same_ranges_replaced_meanwhile(made: FormatTable, late: bool, again: bool) -> None:
    # Whatever made the run plan anew: its rows may still be older than those of the other.
    overlap = (0, 19, 22)
    if late:
        made.meet(before(lambda: made.replace(ranges(overlap), "newer")))
    run = made.run()
    if not late:
        made.replace(ranges(overlap), "newer")
    if again and not late:
        run.sink.load("run")
    with pytest.raises(ReplacedMeanwhile) as caught:
        run.replace(ranges(PART))
    assert caught.value.ranges == ranges((0, 19, 20))
    assert not isinstance(caught.value, Conflict), "a conflict would be planned anew"
    assert made.rows() == versions(WHOLE, (overlap, "newer"))
    made.assert_whole()
    # A run that begins now knows of it.
    made.replace(ranges(PART))
    assert made.rows() == versions(WHOLE, (overlap, "newer"), (PART, "new"))


def test_two_replaces_at_once(made: FormatTable) -> None:
    parts = [(0, 0, 15), (0, 15, 30), (0, 10, 20)]
    runs, barrier = [made.run() for _ in parts], threading.Barrier(3, timeout=60)

    def replace(number: int) -> bool:
        barrier.wait()
        try:
            runs[number].replace(ranges(parts[number]), f"run {number}")
        except ReplacedMeanwhile:
            return False
        return True

    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(replace, range(3)))
    # The third has offsets with both of the others, which have none in common.
    assert done in ([True, True, False], [False, False, True], [True, False, False], [False, True, False])
    replaced = [(parts[n], f"run {n}") for n in range(3) if done[n]]
    assert made.rows() == versions(WHOLE, *replaced)
    made.assert_whole()


@pytest.mark.parametrize("late", [False, True], ids=["before the attempt", "before the commit"])
def test_a_table_rolled_back_meanwhile(made: FormatTable, late: bool) -> None:
    second = made.commits()[1]
    if late:
        made.meet(before(lambda: made.roll_back(second)))
    run = made.run()
    if not late:
        made.roll_back(second)
    with pytest.raises(RangesNotLanded) as caught:
        run.replace(ranges((0, 5, 25)))
    assert caught.value.ranges == ranges((0, 20, 25))
    assert made.rows() == versions(((0, 0, 20), "old"))
    made.assert_whole()


def test_rolled_back_to_before_a_replace_the_ledger_has_the_old_counts(made: FormatTable) -> None:
    made.land(ranges((0, 30, 40)), without=[(0, 35)], filtered=1)
    landed = versions((WHOLE[0], "old"), ((0, 30, 35), "old"), ((0, 36, 40), "old"))
    before_it = made.commits()[-1]
    made.append(made.read().filter(pc.equal(pc.field("_kafka_offset"), 3)))
    made.replace(ranges((0, 0, 10)))
    assert made.ledger().entry(ORDERS).counts == Counts(39, 38, filtered=1), "the doubled row was taken out, too"
    made.roll_back(before_it)
    assert made.ledger().entry(ORDERS).counts == Counts(40, 39, filtered=1)
    assert made.ledger().entry(ORDERS).landed == ranges((0, 0, 40))
    assert made.rows() == landed
    # What was rolled back is no reason to stop.
    made.replace(ranges((0, 0, 10)), "again")
    assert made.ledger().entry(ORDERS).counts == Counts(40, 39, filtered=1)
    assert [row for row in made.rows() if row[2] == "again"] == versions(((0, 0, 10), "again"))


# What the history still tells


def land_many(made: FormatTable) -> None:
    """Land more often than the journal holds."""
    run = made.run()
    for offset in range(20):
        run.land(ranges((1, offset, offset + 1)))


def test_the_ledger_outlives_the_commit_of_a_replace(made: FormatTable) -> None:
    made.land(ranges((0, 30, 40)), without=[(0, 35)], filtered=1)
    made.replace(ranges((0, 30, 40)))
    land_many(made)
    made.forget_history()
    assert made.ledger().entry(ORDERS).counts == Counts(60, 60)
    assert made.ledger().entry(ORDERS).landed == ranges((0, 0, 40), (1, 0, 20))
    made.replace(ranges((0, 0, 40)))
    assert made.ledger().entry(ORDERS).counts == Counts(60, 60)


def test_a_replace_that_is_long_past_in_the_journal(made: FormatTable) -> None:
    run = made.run()
    made.replace(ranges(PART), "newer")
    land_many(made)
    with pytest.raises(ReplacedMeanwhile):
        run.replace(ranges(PART))


def test_a_history_that_does_not_tell_any_more(made: FormatTable) -> None:
    run = made.run()
    land_many(made)
    made.forget_history()
    with pytest.raises(CannotReplace, match="it is unknown whether another run replaced"):
        run.replace(ranges(PART))
    assert len(made.rows()) == 50
    made.replace(ranges(PART))


@WITH_AND_WITHOUT_RETRIES
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
@pytest.mark.parametrize("compacted", [False, True], ids=["alone", "after a compaction"])
def test_a_replace_without_an_answer_is_done_once(made: FormatTable, fault: Fault, compacted: bool) -> None:
    made.meet(*[before(made.compact)] * compacted, fault)
    commit, landing = made.replace(ranges(PART))
    assert landing.topics[ORDERS].removed == Counts(15, 15)
    assert made.commits()[-1] == commit
    assert made.rows() == versions(WHOLE, (PART, "new"))
    assert len(made.commits()) == 4 + compacted
    assert made.ledger().entry(ORDERS).counts == Counts(30, 30)
    made.assert_whole()


def test_a_table_that_others_change_all_the_time(made: FormatTable) -> None:
    made.meet(*[before(lambda: made.append_foreign("busy"))] * made.commit_tries)
    with pytest.raises(made.refused):
        made.replace(ranges(PART))
    assert made.rows() == versions(WHOLE, foreign=("busy",) * made.commit_tries)
    made.assert_whole()


def test_files_that_stay_are_not_read_or_written_again(made: FormatTable) -> None:
    # Others commit each time that the replace tries to, but for the last.
    there: list[set[object]] = []

    def land_elsewhere() -> None:
        there.append(set(made.folder.rglob("*.parquet")))
        made.land(ranges((1, len(there), len(there) + 1)))

    made.meet(*[before(land_elsewhere)] * (made.commit_tries - 1))
    made.replace(ranges(PART))
    # One file more with each landing, and none of the replace after the first try.
    assert [len(files) for files in there] == [len(there[0]) + n for n in range(made.commit_tries - 1)]
    assert made.rows() == versions(WHOLE, (PART, "new"), ((1, 1, made.commit_tries), "old"))
    made.assert_whole()
