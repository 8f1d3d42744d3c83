"""What a table's history says of snapshots that are no landings, by their summaries alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from airflow_lakestream.cli.ledger import history_text
from airflow_lakestream.core.ledger import Ledger
from airflow_lakestream.core.policies import MergeMode
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.commit import retention
from airflow_lakestream.iceberg.commit.attempt import LandingTransaction, overwriting
from airflow_lakestream.iceberg.replace.takeout import live_files, read_rows
from airflow_lakestream.iceberg.upkeep.compaction import compact
from airflow_lakestream.iceberg.upkeep.expiry import ExpiryRule, expire, prepare
from airflow_lakestream.iceberg.upkeep.ledger_edit import rename
from airflow_lakestream.iceberg.upkeep.reads import live_rows
from airflow_lakestream.iceberg.write.deletes import delete_rows, with_deletes
from airflow_lakestream.iceberg.write.files import write_data_files
from airflow_lakestream.watching.causes import StreamCause
from airflow_lakestream.watching.freshness import FreshnessConditions, FreshnessFacts, measure_freshness
from airflow_lakestream.watching.streams.landings import look_back
from tests.support.given_records import GROUP
from tests.support.mirroring import Event, HandMirror
from tests.unit.maintenance.test_compaction import RULE, lake_of, land


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Give a table of twenty rows in two files, three of them deleted in place."""
    mirror = HandMirror(tmp_path, modes=[MergeMode.MERGE_ON_READ])
    for start in (0, 10):
        mirror.land([Event("c", key, ("n", "X"), 1, key, offset=key) for key in range(start, start + 10)])
    mirror.land([Event("d", key, None, 2, key, offset=100 + key) for key in (1, 2, 11)])
    return mirror.table()


def exchange(table: Table, out: Sequence[DataFile], new: Sequence[DataFile]) -> None:
    """Put files in the place of others, in one overwrite of another writer."""
    transaction = LandingTransaction(table)
    with overwriting(transaction, {}, []) as producer:
        for file in out:
            producer.delete_data_file(file)
        for file in new:
            producer.append_data_file(file)
    transaction.commit_transaction()


def rewritten(table: Table, rows: pa.Table) -> None:
    """Put these rows in the place of all files, delete files included."""
    exchange(table, with_deletes(live_files(table)), write_data_files(table.metadata, table.io, rows, "new"))


def test_an_overwrite_that_takes_deletes_out_with_their_rows_is_a_compaction(table: Table) -> None:
    rewritten(table, table.scan().to_arrow())
    [seen] = look_back(table, "g").since
    assert (seen.operation, seen.is_compaction) == ("overwrite", True)


def test_one_that_loses_a_row_or_brings_a_deleted_one_back_is_another_writers(table: Table) -> None:
    rows = table.scan().to_arrow()
    rewritten(table, rows.slice(1))
    rewritten(table, pa.concat_tables([rows.slice(1), rows.slice(0, 1)]))
    assert [seen.is_compaction for seen in look_back(table, "g").since] == [False, False]


def test_one_that_rewrites_a_file_and_deletes_rows_of_another_is_another_writers(table: Table) -> None:
    one, other = live_files(table)
    rows = pa.concat_tables(read_rows(table.metadata, table.io, one))
    new = write_data_files(table.metadata, table.io, rows, "new")
    deletes = delete_rows(table.metadata, table.io, other, np.array([0]))
    exchange(table, with_deletes([one]), [*new, deletes])
    [seen] = look_back(table, "g").since
    assert (seen.operation, seen.is_compaction) == ("overwrite", False)


def test_rows_that_are_there_are_counted_whatever_the_totals_say(table: Table) -> None:
    assert live_rows(table) == 17
    # As Spark does it: the delete files stay, and are of no file any more.
    files = [task.file for task in live_files(table)]
    exchange(table, files, write_data_files(table.metadata, table.io, table.scan().to_arrow(), "new"))
    head = table.current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert (head.summary["total-records"], head.summary["total-position-deletes"]) == ("17", "3")
    assert live_rows(table) == 17


@pytest.mark.parametrize("expires", ["at once", "prepared for Spark"])
def test_the_time_of_a_topics_last_landing_outlives_its_snapshot(tmp_path: Path, expires: str) -> None:
    lake, rule = lake_of(tmp_path), ExpiryRule(0)
    at_ms = lake.iceberg().metadata.snapshots[-1].timestamp_ms
    compact(lake.catalog(), lake.name, RULE)
    while found := prepare(lake.catalog(), lake.name, rule) if "Spark" in expires else ():
        lake.iceberg().maintenance.expire_snapshots().by_ids(found).commit()
    while expires == "at once" and expire(lake.catalog(), lake.name, rule).snapshots:
        pass
    history = look_back(lake.iceberg(), GROUP, topic="given")
    assert (history.newest, history.expired, history.landed_ms) == (None, True, at_ms)
    conditions = FreshnessConditions(table=lake.name, max_age="1h")
    late = measure_freshness(conditions, FreshnessFacts(history), at_ms + 7_200_000)
    assert (late.fresh, late.age, late.reasons[0].cause) == (False, 7200, StreamCause.STOPPED_CONSUMER)
    assert measure_freshness(conditions, FreshnessFacts(history), at_ms + 1000).fresh
    ledger = ledger_store.read_ledger(lake.iceberg(), GROUP)
    rename(lake.catalog(), lake.name, GROUP, "new", lambda _: {"new": ledger, GROUP: Ledger(GROUP)})
    assert look_back(lake.iceberg(), "new", topic="given").landed_ms == at_ms
    # The journal of a table with landings of many groups may no longer have any of this one.
    assert "all landings of given have expired: `lakestream ledger show`" in history_text([], ledger)
    assert history_text([], Ledger(GROUP)) == "no landings"


def test_landings_that_remove_snapshots_note_the_time_of_the_newest(tmp_path: Path) -> None:
    lake = lake_of(tmp_path)
    snapshots = lake.iceberg().metadata.snapshots
    lake.iceberg().transaction().set_properties({retention.KEEP: "2"}).commit_transaction()
    land(lake, [{"n": 99}])
    metadata = lake.iceberg().metadata
    gone = {one.snapshot_id for one in snapshots} - {one.snapshot_id for one in metadata.snapshots}
    newest = max(one.timestamp_ms for one in snapshots if one.snapshot_id in gone)
    assert ledger_store.expired_landings(metadata, GROUP) == {"given": newest}
    assert look_back(lake.iceberg(), GROUP).landed_ms == metadata.snapshots[-1].timestamp_ms
