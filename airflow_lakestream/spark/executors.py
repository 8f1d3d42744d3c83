"""An executor's work on a share of a plan: read, decode and write, without a commit.

Sent to the executors by pickle. No pyspark and no catalog here: an outline describes the table to write for.
"""

from __future__ import annotations

import sys
import threading
import zipimport
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from airflow_lakestream.core.landing.batch import Batch, decode
from airflow_lakestream.core.landing.job import take
from airflow_lakestream.core.ports import RowSchema, or_discard
from airflow_lakestream.core.sharing.pieces import PlanShare
from airflow_lakestream.core.sharing.rounds import RoundAnswer, Undecided, UndecidedChunks
from airflow_lakestream.decode.rejected import RECORD_SCHEMA
from airflow_lakestream.decode.rows import RowDecoderFactory
from airflow_lakestream.exceptions import LakestreamError
from airflow_lakestream.iceberg.fan_out.share import FanOutOutline, FanOutShare
from airflow_lakestream.kafka.reader import KafkaReader
from airflow_lakestream.lakes import LakeFormat
from airflow_lakestream.runtime.processes import MMAP_THRESHOLD, TRIM_THRESHOLD, ChildFailure, tune_allocation
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.rejects.sink import RejectingSink

# Time, size and inode of an archive, by its importer: Spark has each task call `importlib.invalidate_caches`. Before
# Python 3.12 this call reads an archive's directory once for each package in the archive (python/cpython#103200). With
# pyspark.zip the reads took a third of the CPU time of the executors of a mirror.
_known_archives: WeakKeyDictionary[zipimport.zipimporter, tuple[int, int, int]] = WeakKeyDictionary()
_invalidate_caches = zipimport.zipimporter.invalidate_caches


def keep_directories() -> None:
    """Keep the cached directories of unchanged archives with modules, even if Spark invalidates Python's caches."""
    if sys.version_info < (3, 12):
        # mypy can't express that a class of the standard library gets another method.
        zipimport.zipimporter.invalidate_caches = _invalidate_if_changed  # type: ignore[assignment,method-assign]


def _invalidate_if_changed(importer: zipimport.zipimporter) -> None:
    """Let Python read an archive's index again if the archive's file was replaced or deleted."""
    try:
        status = Path(importer.archive).stat()
    except OSError:
        _known_archives.pop(importer, None)
        _invalidate_caches(importer)
        return
    archive = (status.st_mtime_ns, status.st_size, status.st_ino)
    if _known_archives.get(importer) != archive:
        _invalidate_caches(importer)
        _known_archives[importer] = archive


# Makes Arrow's allocator keep freed memory, too. The allocator reads its environment when it is loaded.
ENVIRONMENT = {"MIMALLOC_PURGE_DELAY": "-1"}
# Thresholds in bytes; for MMAP_THRESHOLD the greatest that mallopt() takes.
_KEPT_MEMORY = {TRIM_THRESHOLD: 256 * 2**20, MMAP_THRESHOLD: 32 * 2**20}


@dataclass(frozen=True)
class ExecutorTask:
    """The work of a landing's tasks on shares of a plan.

    :param kafka: librdkafka configuration, with no path of the driver's machine.
    :param where: name of the Kafka connection in errors.
    :param target: outline of the table with all columns that this landing adds.
    :param lake: format of the table.
    :param design: the table's design, without schema evolution: executors change no columns.
    :param folder: folder of the files, below the table's data.
    :param passes_over: whether records without a row are reported, too, because the files are to replace rows.
    """

    run_id: str
    consumer_group: str
    # repr=False: holds passwords.
    kafka: Mapping[str, Any] = field(repr=False)
    poll_timeout: float
    where: str
    target: Any
    lake: LakeFormat
    table: str
    design: TableDesign
    decoders: RowDecoderFactory
    folder: str
    passes_over: bool

    def __call__(self, share: PlanShare) -> RoundAnswer | ChildFailure:
        """Read a share, and return the answer; see `answer_of`."""
        return answer_of(lambda: self._read_share(share))

    def columns(self) -> RowSchema:
        """Return the payload's columns, as in the table's outline."""
        return self._sink().load(self.run_id).schema

    def _read_share(self, share: PlanShare) -> RoundAnswer:
        """Read and stage a share; chunks that need the driver's decision are left to the next round."""
        batch = Batch(share.plan)
        sink, left = self._sink(), UndecidedChunks()
        with or_discard(sink):
            table = sink.load(self.run_id)
            sink.write_below(self.folder)
            decoder = self.decoders(table.schema, None)
            assert decoder is not None, "the table exists, so it has a schema"
            # In this thread only: Spark gave the task one core.
            with closing(self._reader().read(batch.plan, threading.Event())) as chunks:
                for chunk in chunks:
                    try:
                        decoded = decode(decoder, chunk)
                    except Undecided as undecided:
                        left.add(chunk.covers, undecided)
                        if left.is_full:
                            break
                    else:
                        take(sink, sink, batch, decoded, passes_over=self.passes_over)
            return RoundAnswer(batch.piece(sink.hand_over()) if batch.covers_anything else None, left)

    def _reader(self) -> KafkaReader:
        return KafkaReader(
            self.kafka,
            self.consumer_group,
            poll_timeout=self.poll_timeout,
            where=self.where,
            parts=self.decoders.parts,
        )

    def _sink(self) -> RejectingSink:
        # The target has only the table's outline, and no ledger to change.
        group, target = self.consumer_group, self.target
        if isinstance(target, FanOutOutline):
            inner: Any = FanOutShare(target, group)
        else:
            inner = self.lake.part("sink")(target, self.table, group, self.design, allow_group_overlap=True)
        sink: RejectingSink = self.lake.part("rejecting")(inner, target, self.table, group, RECORD_SCHEMA)
        return sink


Answer = TypeVar("Answer")


def answer_of(work: Callable[[], Answer]) -> Answer | ChildFailure:
    """Do a task's work; return the result, or a ChildFailure with our own error for the driver to raise."""
    settle()
    try:
        return work()
    except LakestreamError as e:
        # If raised here, Spark would retry the task and bring back only the error's text.
        return ChildFailure(e)


def settle() -> None:
    """Configure an executor's process: freed memory is kept, and the directories of archives with modules.

    Getting each page from the system again costs a fault: that took 13 to 17% of a task's CPU time. 80 MiB are kept.
    """
    tune_allocation(_KEPT_MEMORY)
    keep_directories()
