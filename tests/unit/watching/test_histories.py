"""What a table's history says of snapshots that are no landings, by their summaries alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from airflow_lakestream.core.policies import MergeMode
from airflow_lakestream.iceberg.commit.attempt import LandingTransaction, overwriting
from airflow_lakestream.iceberg.replace.takeout import live_files, read_rows
from airflow_lakestream.iceberg.upkeep.reads import live_rows
from airflow_lakestream.iceberg.write.deletes import delete_rows, with_deletes
from airflow_lakestream.iceberg.write.files import write_data_files
from airflow_lakestream.watching.streams.landings import look_back
from tests.support.mirroring import Event, HandMirror


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
