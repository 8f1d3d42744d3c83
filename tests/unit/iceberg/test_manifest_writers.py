"""One manifest fails while another is on its way: the clean-up leaves nothing, however late the other is."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
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


class OneFails(PyArrowFileIO):
    """Refuses the manifest of new files once the one of deleted files is late."""

    def __init__(self, late: Late, *, late_in_file: bool) -> None:
        super().__init__()
        self._late, self._late_in_file = late, late_in_file

    def new_output(self, location: str) -> PyArrowFile:
        made = super().new_output(location)
        task = {frame.name for frame in traceback.extract_stack()}
        if "_write_added_manifest" in task:
            assert self._late.is_there.wait(PATIENCE)
            raise OSError("no space left")
        if "_write_delete_manifest" in task and self._late_in_file:
            made.__class__ = LateFile
            made.late = self._late
        return made


class LateEntries(list[Any]):
    """Entries for a manifest, which the task that writes it gets late."""

    late: Late

    def __iter__(self) -> Iterator[Any]:
        self.late.wait()
        return super().__iter__()


class OneFailsCatalog(WrappedCatalog):
    def __init__(self, catalog: Any, io: OneFails) -> None:
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
    made.land(ranges((0, 0, 10)))
    clean_up, wait, deleted = (
        attempt.AppendAttempt.clean_up,
        manifest_writers.wait,
        snapshot._OverwriteFiles._deleted_entries,
    )

    def clean_up_first(self: Any, keep: int | None) -> None:
        clean_up(self, keep)
        late.may_go.set()

    def waited_for(*of: Any) -> Any:
        if late_in_file:
            late.may_go.set()
        return wait(*of)

    def late_entries(self: Any) -> list[Any]:
        entries = LateEntries(deleted(self))
        entries.late = late
        return entries

    monkeypatch.setattr(attempt.AppendAttempt, "clean_up", clean_up_first)
    monkeypatch.setattr(manifest_writers, "wait", waited_for)
    if not late_in_file:
        monkeypatch.setattr(snapshot._OverwriteFiles, "_deleted_entries", late_entries)
    run = made.through(OneFailsCatalog(made.catalog(), OneFails(late, late_in_file=late_in_file))).run()

    with pytest.raises(OSError, match="no space left"):
        run.replace(ranges((0, 0, 5)), "new")
    pool.shutdown(wait=True)
    monkeypatch.setattr(ExecutorFactory, "_instance", None)
    run.sink.discard()

    assert late.is_there.is_set()
    made.assert_whole()
