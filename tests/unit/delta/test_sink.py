"""One Delta table as a sink: rows and ledger in one version, once each, whatever happens around the commit."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_lakestream.core.ports import LedgerConflict, StaleFiles
from airflow_lakestream.delta.commit import committing
from airflow_lakestream.delta.commit.committing import CommitOutcomeUnknown, CommitRefused
from tests.support.delta_table import (
    GROUP,
    TOPIC,
    Fault,
    a_sink,
    after,
    append_foreign_row,
    applied,
    applied_and_taken,
    each_file,
    expected,
    land,
    landed,
    landing,
    rows,
    rows_of,
    stray_files,
    unapplied,
    versions,
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "clicks"


def test_a_landing_is_one_version_with_rows_ledger_and_transaction(table: Path) -> None:
    assert [land(table, 0, 5), land(table, 5, 8)] == [0, 1]

    assert rows_of(table) == expected((0, 8))
    assert landed(table) == "clicks[0] [0,8)"
    for number, actions in enumerate(versions(table)):
        assert {next(iter(action)) for action in actions} >= {"commitInfo", "metaData", "txn", "add"}
        assert {"appId": f"lakestream.{GROUP}", "version": number + 1} in [action.get("txn") for action in actions]
    assert DeltaTable(str(table)).to_pyarrow_table().num_rows == 8


def test_text_that_looks_like_the_end_of_a_line_does_not_cut_the_log(table: Path) -> None:
    # The log has the least and the greatest value of each column, and JSON lets these characters stand in a text.
    odd = rows(0, 3)
    names = pa.array(["\u2028", "a\u0085b", "\u2029z"], odd["name"].type)
    sink = a_sink(table)
    sink.load("odd")
    sink.write(odd.set_column(odd.column_names.index("name"), odd.schema.field("name"), names), TOPIC)
    sink.commit(landing(0, 3))
    land(table, 3, 5)
    assert landed(table) == "clicks[0] [0,5)"


def test_what_was_landed_is_refused_and_leaves_no_file(table: Path) -> None:
    land(table, 0, 5)
    sink = a_sink(table)
    sink.load("other")
    sink.write(rows(3, 7), TOPIC)
    with pytest.raises(LedgerConflict, match=r"clicks\[0\] \[3,5\)"):
        sink.commit(landing(3, 7))
    sink.discard()
    assert rows_of(table) == expected((0, 5))
    assert not stray_files(table)


@pytest.mark.parametrize("is_new", [True, False], ids=["no table yet", "table there"])
def test_of_runs_at_once_with_the_same_ranges_one_lands(table: Path, is_new: bool) -> None:
    first = 0 if is_new else land(table, 0, 5) + 5
    barrier = threading.Barrier(4)

    def run(number: int) -> bool:
        sink = a_sink(table)
        sink.load(f"run-{number}")
        sink.write(rows(first, first + 5), TOPIC)
        barrier.wait(60)
        try:
            sink.commit(landing(first, first + 5))
        except (LedgerConflict, StaleFiles):
            sink.discard()
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(run, range(4))) == [False, False, False, True]
    assert rows_of(table) == expected((0, first + 5))
    assert not stray_files(table)


def test_runs_at_once_with_other_ranges_all_land_with_the_whole_ledger(table: Path) -> None:
    land(table, 0, 5)
    barrier = threading.Barrier(4)

    def run(partition: int) -> int:
        sink = a_sink(table)
        sink.load(f"run-{partition}")
        sink.write(rows(0, 3, partition), TOPIC)
        barrier.wait(60)
        return sink.commit(landing(0, 3, partition))

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(run, range(1, 5))) == [1, 2, 3, 4]
    assert landed(table) == "clicks[0] [0,5), " + ", ".join(f"clicks[{p}] [0,3)" for p in range(1, 5))
    assert len(rows_of(table)) == 5 + 4 * 3


@pytest.mark.parametrize("is_new", [True, False], ids=["no table yet", "table there"])
@pytest.mark.parametrize(
    "fault",
    [applied(OSError("time-out")), unapplied(OSError("time-out")), applied_and_taken],
    ids=["applied, reported failed", "not applied", "applied, then told it is taken"],
)
def test_a_commit_without_an_answer_lands_once(
    table: Path, faults: Callable[..., None], fault: Fault, is_new: bool
) -> None:
    first = 0 if is_new else land(table, 0, 5) + 5
    faults(fault)
    version = land(table, first, first + 4)
    assert version == len(versions(table)) - 1
    assert rows_of(table) == expected((0, first + 4))
    assert landed(table) == f"clicks[0] [0,{first + 4})"
    assert not stray_files(table)


def test_a_request_that_is_applied_late_is_found_before_another_is_sent(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(table, 0, 5)
    real, late = committing.put_commit, list[tuple[object, int, object]]()

    def put(store: object, version: int, actions: list[dict[str, object]]) -> bool:
        if not late:
            late.append((store, version, actions))
            raise OSError("time-out")
        # The first request arrives only now, and the second comes too late.
        assert real(*late[0])
        return real(store, version, actions)

    monkeypatch.setattr(committing, "put_commit", put)
    assert land(table, 5, 9) == 1
    assert rows_of(table) == expected((0, 9))
    assert not stray_files(table)


def test_a_store_that_never_answers_leaves_the_files_since_the_commit_may_be_there(
    table: Path, faults: Callable[..., None]
) -> None:
    land(table, 0, 5)
    faults(*[unapplied(OSError("down"))] * committing.COMMIT_TRIES)
    sink = a_sink(table)
    sink.load("r")
    sink.write(rows(5, 7), TOPIC)
    with pytest.raises(CommitOutcomeUnknown):
        sink.commit(landing(5, 7))
    sink.discard()
    assert len(stray_files(table)) == 1
    assert landed(table) == "clicks[0] [0,5)"


def test_a_foreign_append_before_the_commit_stays_and_the_landing_goes_on_top(
    table: Path, faults: Callable[..., None]
) -> None:
    land(table, 0, 5)
    faults(after(lambda: append_foreign_row(table)))
    assert land(table, 5, 7) == 2
    assert len(rows_of(table)) == 8
    assert landed(table) == "clicks[0] [0,7)"


def test_a_writer_that_is_always_first_ends_in_an_error_without_a_trace(
    table: Path, faults: Callable[..., None]
) -> None:
    land(table, 0, 5)
    faults(*[after(lambda: append_foreign_row(table))] * committing.COMMIT_TRIES)
    sink = a_sink(table)
    sink.load("r")
    sink.write(rows(5, 7), TOPIC)
    with pytest.raises(CommitRefused):
        sink.commit(landing(5, 7))
    sink.discard()
    assert not stray_files(table)


def test_a_schema_that_another_changed_between_look_and_commit_is_refused(
    table: Path, faults: Callable[..., None]
) -> None:
    land(table, 0, 5)
    wider = pa.table({"id": pa.array([-1], pa.int64()), "name": ["foreign"], "more": [1.5]})
    faults(after(lambda: write_deltalake(str(table), wider, mode="append", schema_mode="merge")))
    sink = a_sink(table)
    sink.load("r")
    sink.write(rows(5, 7), TOPIC)
    with pytest.raises(StaleFiles, match="the schema was changed"):
        sink.commit(landing(5, 7))
    sink.discard()
    assert not stray_files(table)
    assert land(table, 5, 7) == 2


def test_another_group_may_not_land_the_same_offsets_unless_it_says_so(table: Path) -> None:
    land(table, 0, 5)
    sink = a_sink(table, consumer_group="other")
    assert sink.load("r").others[GROUP].entry(TOPIC).landed
    sink.write(rows(0, 5), TOPIC)
    with pytest.raises(LedgerConflict):
        sink.commit(landing(0, 5))
    sink.discard()
    land(table, 0, 5, consumer_group="other", allow_group_overlap=True)
    assert len(rows_of(table)) == 10
    assert landed(table) == landed(table, "other") == "clicks[0] [0,5)"


def test_a_retry_finds_all_landings_of_its_run_with_their_counts(table: Path) -> None:
    # More of them than the journal in the property has.
    made = [land(table, n, n + 1, run_id="the run") for n in range(20)]
    land(table, 20, 21, run_id="another")
    found = a_sink(table).load("the run").landed_by_run
    assert [version for version, _ in found] == made
    assert [one.by_partition[TOPIC][0].written for _, one in found] == [1] * 20


def test_a_log_that_was_cleaned_up_leaves_the_ledger(table: Path) -> None:
    land(table, 0, 5)
    for n in range(5, 12):
        land(table, n, n + 1)
    delta = DeltaTable(str(table))
    delta.create_checkpoint()
    for file in sorted((table / "_delta_log").glob("0*.json"))[:-1]:
        file.unlink()
    assert landed(table) == "clicks[0] [0,12)"
    assert land(table, 12, 14) == 8
    assert DeltaTable(str(table)).to_pyarrow_table().num_rows == 14


def test_checkpoints_are_written_as_the_table_asks(table: Path) -> None:
    for n in range(7):
        land(table, n, n + 1, table_properties={"delta.checkpointInterval": "3"})
    found = sorted(path.name[:20].lstrip("0") for path in (table / "_delta_log").glob("*.checkpoint.parquet"))
    assert found == ["3", "6"]
    assert DeltaTable(str(table)).to_pyarrow_table().num_rows == 7


def test_compaction_by_delta_rs_leaves_the_ledger(table: Path) -> None:
    land(table, 0, 5)
    land(table, 5, 9)
    DeltaTable(str(table)).optimize.compact()
    land(table, 9, 12)
    assert rows_of(table) == expected((0, 12))
    assert landed(table) == "clicks[0] [0,12)"


def test_vacuum_takes_only_what_no_version_needs(table: Path) -> None:
    land(table, 0, 5)
    land(table, 5, 9)
    DeltaTable(str(table)).optimize.compact()
    DeltaTable(str(table)).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert rows_of(table) == expected((0, 9))
    assert landed(table) == "clicks[0] [0,9)"
    land(table, 9, 12)
    assert rows_of(table) == expected((0, 12))


def test_nothing_is_made_before_the_first_commit(table: Path) -> None:
    sink = a_sink(table)
    sink.load("r")
    sink.write(rows(0, 5), TOPIC)
    sink.discard()
    assert not list(each_file(table))
