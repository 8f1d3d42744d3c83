"""One manifest fails while another is on its way: the clean-up leaves nothing, however late the other is."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.table import TableProperties
from pyiceberg.table.update import snapshot
from pyiceberg.utils.concurrent import ExecutorFactory

from airflow_lakestream.iceberg.commit import attempt, manifest_writers
from tests.support.faults import WrappedCatalog
from tests.support.replacing import ranges
from tests.support.table_formats import IcebergTable

# Long enough for any machine; a test that waits so long has failed.
PATIENCE = 60


class Late:
    """Something that goes on when it is let go, and says that it is there."""

    def __init__(self) -> None:
        self.is_there, self.may_go = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.is_there.set()
        assert self.may_go.wait(PATIENCE)


class LateFile(PyArrowFile):
    """A file whose writer is late."""

    late: Late

    def create(self, overwrite: bool = False) -> Any:
        self.late.wait()
        return super().create(overwrite)


class LateFiles(PyArrowFileIO):
    """Makes files that are late, for the tasks that are marked."""

    def __init__(self, late: Late) -> None:
        super().__init__()
        self._late, self.is_for = late, threading.local()

    def new_output(self, location: str) -> PyArrowFile:
        made = super().new_output(location)
        if getattr(self.is_for, "this_task", False):
            made.__class__ = LateFile
            made.late = self._late
        return made


class LateFilesCatalog(WrappedCatalog):
    def __init__(self, catalog: Any, io: LateFiles) -> None:
        super().__init__(catalog)
        self._io = io

    def load_table(self, identifier: Any) -> Any:
        table = self.real.load_table(identifier)
        table.io = self._io
        return table


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> ThreadPoolExecutor:
    """Give PyIceberg a pool of its own, whose tasks can be waited for."""
    made = ThreadPoolExecutor(4)
    monkeypatch.setattr(ExecutorFactory, "_instance", made)
    monkeypatch.setattr(ExecutorFactory, "_instance_pid", os.getpid())
    return made


@pytest.mark.parametrize("late_in_file", [True, False], ids=["about to create its file", "not begun"])
def test_a_manifest_that_is_late_leaves_no_file_when_another_has_failed(
    empty: IcebergTable, monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor, late_in_file: bool
) -> None:
    made, late = empty, Late()
    for batch in range(4):
        made.land(ranges((0, 10 * batch, 10 * batch + 10)))
    merge_in_pairs(made)
    io = LateFiles(late)
    clean_up, wait = attempt.CommitAttempt.clean_up, manifest_writers.wait
    merge = snapshot._ManifestMergeManager._create_manifest

    def clean_up_first(self: Any, keep: int | None) -> None:
        clean_up(self, keep)
        late.may_go.set()

    def waited_for(*of: Any) -> Any:
        if late_in_file:
            late.may_go.set()
        return wait(*of)

    def merge_late(self: Any, spec: int, manifests: Any) -> Any:
        if any(one.added_snapshot_id == self._snapshot_producer.snapshot_id for one in manifests):
            assert late.is_there.wait(PATIENCE)
            raise OSError("no space left")
        io.is_for.this_task = late_in_file
        if not late_in_file:
            late.wait()
        return merge(self, spec, manifests)

    monkeypatch.setattr(attempt.CommitAttempt, "clean_up", clean_up_first)
    monkeypatch.setattr(manifest_writers, "wait", waited_for)
    monkeypatch.setattr(snapshot._ManifestMergeManager, "_create_manifest", merge_late)
    run = made.through(LateFilesCatalog(made.catalog(), io)).run()

    with pytest.raises(OSError, match="no space left"):
        run.replace(ranges((0, 0, 5)), "new")
    pool.shutdown(wait=True)
    monkeypatch.setattr(ExecutorFactory, "_instance", None)
    run.sink.discard()

    assert late.is_there.is_set()
    made.assert_whole()


def merge_in_pairs(made: IcebergTable) -> None:
    """Let the next commit merge two manifests at a time."""
    table = made.table()
    head = table.current_snapshot()
    assert head is not None
    size = max(one.manifest_length for one in head.manifests(table.io))
    with table.transaction() as transaction:
        transaction.set_properties(
            {
                TableProperties.MANIFEST_MERGE_ENABLED: "true",
                TableProperties.MANIFEST_MIN_MERGE_COUNT: "2",
                TableProperties.MANIFEST_TARGET_SIZE_BYTES: str(int(2.5 * size)),
            }
        )
