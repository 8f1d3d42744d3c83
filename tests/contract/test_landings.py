"""A landing: rows and ledger in one commit, once each, whatever comes between two of them."""

from __future__ import annotations

import pytest

from airflow_lakestream.core.landing.unaccounted import ForeignRowQuery
from airflow_lakestream.core.ledger import Counts, TopicEntry, TopicIdentity
from airflow_lakestream.core.ports import LedgerConflict
from tests.support.replacing import GROUP, ORDERS, TOPIC, offsets_of, ranges, versions
from tests.support.table_formats import FormatTable


def test_each_landing_is_one_commit_of_rows_and_ledger(empty: FormatTable) -> None:
    commits = [empty.land(ranges((0, 0, 5))), empty.land(ranges((0, 5, 8), (1, 0, 2)))]

    assert empty.commits() == commits
    assert empty.rows() == versions(((0, 0, 8), "old"), ((1, 0, 2), "old"))
    assert empty.ledger().entry(ORDERS).landed == ranges((0, 0, 8), (1, 0, 2))
    assert empty.ledger().entry(ORDERS).counts == Counts(10, 10)
    empty.assert_whole()


def test_nothing_is_there_before_the_first_commit(empty: FormatTable) -> None:
    run = empty.run()
    assert not run.state.exists
    assert run.state.schema.names == ["version", "score", "at"]
    run.write(offsets_of(ranges((0, 0, 5))), "old", ORDERS)
    run.sink.discard()
    assert not [path for path in empty.folder.rglob("*") if path.is_file() and path.name != "catalog.db"]


def test_the_next_run_resumes_and_is_refused_what_is_landed(made: FormatTable) -> None:
    run = made.run()
    assert run.state.exists
    assert run.state.ledger.entry(ORDERS).landed == ranges((0, 0, 30))
    with pytest.raises(LedgerConflict) as caught:
        run.land(ranges((0, 25, 35)), "again")
    assert caught.value.ranges == ranges((0, 25, 30))
    assert made.rows() == versions(((0, 0, 30), "old"))
    made.assert_whole()
    run.land(ranges((0, 30, 35)))
    assert made.rows() == versions(((0, 0, 35), "old"))


def test_one_sink_lands_again_and_again(empty: FormatTable) -> None:
    run = empty.run()
    commits = [run.land(ranges((0, n, n + 2)), str(n)) for n in (0, 2, 4)]
    assert empty.commits() == commits
    assert empty.rows() == versions(((0, 0, 2), "0"), ((0, 2, 4), "2"), ((0, 4, 6), "4"))
    assert empty.ledger().entry(ORDERS).counts == Counts(6, 6)


def test_a_landing_of_records_that_are_no_rows_is_in_the_ledger(made: FormatTable) -> None:
    made.land(ranges((0, 30, 34)), without=offsets_of(ranges((0, 30, 34))), filtered=4)
    assert made.ledger().entry(ORDERS).landed == ranges((0, 0, 34))
    assert made.ledger().entry(ORDERS).counts == Counts(34, 30, filtered=4)
    assert made.rows() == versions(((0, 0, 30), "old"))


def test_ranges_out_of_order_leave_what_is_between_them_to_be_landed(empty: FormatTable) -> None:
    for start in (30, 10):
        empty.land(ranges((0, start, start + 10)))
    assert empty.ledger().entry(ORDERS).landed == ranges((0, 10, 20), (0, 30, 40))
    empty.land(ranges((0, 20, 30)))
    assert empty.ledger().entry(ORDERS).landed == ranges((0, 10, 40))


def test_lost_offsets_covered_time_and_epochs_are_summed_in_the_ledger(empty: FormatTable) -> None:
    run = empty.run()
    run.commit(TopicEntry(lost=ranges((0, 0, 5)), origin={0: 3}, epochs={0: 1, 1: 7}, covered=((0, 10),)))
    run.commit(TopicEntry(landed=ranges((0, 5, 6)), origin={0: 9, 1: 2}, epochs={0: 2}, covered=((10, 20), (30, 40))))
    entry = empty.ledger().entry(ORDERS)
    assert (entry.lost, entry.landed) == (ranges((0, 0, 5)), ranges((0, 5, 6)))
    assert (entry.origin, entry.epochs, entry.covered) == ({0: 3, 1: 2}, {0: 2, 1: 7}, ((0, 20), (30, 40)))
    with pytest.raises(LedgerConflict):
        empty.land(ranges((0, 4, 5)))


def test_another_group_may_not_land_the_same_offsets_unless_it_says_so(made: FormatTable) -> None:
    other = made.run("other")
    assert other.state.other_ledgers[GROUP].entry(ORDERS).landed == ranges((0, 0, 30))
    with pytest.raises(LedgerConflict) as caught:
        other.land(ranges((0, 28, 33)))
    assert caught.value.ranges == ranges((0, 28, 30))
    made.run("other", overlap=True).land(ranges((0, 28, 33)), "other")
    assert made.ledger("other").entry(ORDERS).landed == ranges((0, 28, 33))
    assert made.ledger().entry(ORDERS).landed == ranges((0, 0, 30))
    assert len(made.rows()) == 35


def test_a_topic_created_anew_has_books_of_its_own(made: FormatTable) -> None:
    anew = TopicIdentity(TOPIC, "id-2", "cluster")
    made.land(ranges((0, 0, 5)), "new", identity=anew)
    assert made.ledger().entry(anew).landed == ranges((0, 0, 5))
    assert made.ledger().other_incarnations(TOPIC, anew) == (ORDERS,)
    assert len(made.rows()) == 35


def test_another_try_of_a_run_finds_what_the_run_has_landed_with_its_counts(empty: FormatTable) -> None:
    # More landings than the journal in the table's properties has.
    run = empty.run(run_id="the run")
    landed = [run.land(ranges((0, n, n + 1))) for n in range(20)]
    empty.run(run_id="another").land(ranges((0, 20, 21)))
    found = empty.run(run_id="the run").state.landed_by_run
    assert [commit for commit, _ in found] == landed
    assert [one.by_partition[ORDERS][0].written for _, one in found] == [1] * 20


def test_a_roll_back_takes_the_ledger_along_and_the_offsets_land_again(made: FormatTable) -> None:
    first, *_ = made.commits()
    made.roll_back(first)
    run = made.run()
    assert run.state.ledger.entry(ORDERS).landed == ranges((0, 0, 10))
    assert [commit for commit, _ in run.state.landed_by_run] == [first]
    run.land(ranges((0, 10, 12)), "new")
    assert made.rows() == versions(((0, 0, 10), "old"), ((0, 10, 12), "new"))
    assert made.ledger().entry(ORDERS).counts == Counts(12, 12)


def test_a_roll_back_to_before_a_groups_first_landing_leaves_it_nothing(made: FormatTable) -> None:
    before = made.commits()[-1]
    made.run("late").land(ranges((1, 0, 3)))
    made.roll_back(before)
    assert not made.ledger("late").topics
    made.run("late").land(ranges((1, 0, 3)), "new")
    assert made.ledger("late").entry(ORDERS).landed == ranges((1, 0, 3))
    assert made.rows() == versions(((0, 0, 30), "old"), ((1, 0, 3), "new"))


def test_the_ledger_outlives_the_history_of_the_table_and_its_compaction(made: FormatTable) -> None:
    for n in range(30, 50):
        made.land(ranges((0, n, n + 1)))
    made.compact()
    made.forget_history()
    assert made.ledger().entry(ORDERS).landed == ranges((0, 0, 50))
    assert made.ledger().entry(ORDERS).counts == Counts(50, 50)
    with pytest.raises(LedgerConflict):
        made.land(ranges((0, 3, 4)))
    made.land(ranges((0, 50, 51)))
    assert made.rows() == versions(((0, 0, 51), "old"))


def test_rows_that_no_ledger_accounts_for_are_found(made: FormatTable) -> None:
    # The ledger of a group that is not asked about does not account for them.
    asked = ForeignRowQuery(TOPIC, known=ranges((0, 0, 10)), begins={0: 15})
    found = made.run().state.look_for_rows(asked)
    assert sum(box.rows for box in found.in_the_way) == 15
    assert found.foreign_rows == 5
    made.compact()
    found = made.run().state.look_for_rows(asked)
    assert (sum(box.rows for box in found.in_the_way), found.foreign_rows) == (15, 5)
    assert not made.run().state.look_for_rows(ForeignRowQuery(TOPIC, known=ranges((0, 0, 30)))).in_the_way
    assert not made.run().state.look_for_rows(ForeignRowQuery("another")).in_the_way
