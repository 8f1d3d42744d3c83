"""Repair of a mirror's wrong rows, found by an audit: the rows of some keys leave, and right rows come in.

The audit has compared the rows of one head with one ledger, so any other head is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from airflow_lakestream.cdc.merge.entries import MirrorEntries
from airflow_lakestream.cdc.merge.files import FileRewriteTask, parts_of
from airflow_lakestream.cdc.merge.head import File, MirrorHead
from airflow_lakestream.cdc.merge.lookup import FileChange, with_numbers
from airflow_lakestream.cdc.merge.merge import MergeResult, is_rewritten
from airflow_lakestream.core.policies import MergeMode
from airflow_lakestream.exceptions import LakestreamError, Transient
from airflow_lakestream.tables.row_buffer import no_rows

if TYPE_CHECKING:
    from airflow_lakestream.tables.row_hashes import Hashes


class ChangedSinceAudit(LakestreamError, Transient):
    """The mirror has another head than the one that the audit compared with its topic."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"{table} was changed between the audit and the repair: another run landed in it, or rewrote its files. "
            "Nothing was repaired. Run the repair again, and pause the DAGs that land in the table meanwhile."
        )


@dataclass(kw_only=True)
class RowRepair:
    """Rows that leave a mirror, and rows that come in.

    :param head: the snapshot or version that the audit compared.
    :param key: the columns of the key.
    :param hashes: returns the hash of each row's key.
    :param out: the hashes of the keys whose rows leave, rising.
    :param rows: yields the new rows.
    :param deletions: yields entries for the mirror's memory.
    :param lost: the paths of files that are gone, to be removed from the table's metadata.
    :param rows_out: the number of rows removed at the last commit attempt, without rows of lost files.
    :param rows_in: the number of new rows at the last commit attempt.
    """

    head: int | None
    key: tuple[str, ...]
    hashes: Callable[[pa.Table], Hashes]
    out: Hashes
    rows: Callable[[], Iterable[pa.Table]]
    deletions: Callable[[], Iterable[pa.Table]] = tuple
    lost: Collection[str] = ()
    rows_out: int = field(default=0, init=False)
    rows_in: int = field(default=0, init=False)

    def make(self, head: MirrorHead, mode: MergeMode, entries: MirrorEntries) -> MergeResult:
        """Write the files of the repair, and the entries of the memory; return the files for the commit."""
        self.rows_out = self.rows_in = 0
        removed, new, deleted = list[File](), list[File](), list[tuple[File, File]]()
        for file in head.files():
            if head.path(file) in self.lost:
                removed.append(file)
            elif len((change := self._change(head, file)).out):
                self.rows_out += len(change.out)
                if is_rewritten(head, change, mode):
                    removed.append(file)
                    new += self._without(head, change)
                else:
                    assert head.delete is not None, "is_rewritten is true without delete files"
                    deleted.append((file, head.delete(file, change.out)))
        for part in parts_of(self.rows()):
            new += head.write(head.conform(part))
            self.rows_in += len(part)
        # A deletion is a fact of the source, also if the commit fails; see `cdc.merge.memory`.
        for part in self.deletions():
            entries.add(part)
        return MergeResult(removed, new, deleted, no_rows(pa.schema([])), no_rows(pa.schema([])))

    def _change(self, head: MirrorHead, file: File) -> FileChange:
        """Return the change of a file that deletes the rows of the keys in `out`."""
        numbers, live = [np.zeros(0, np.int64)], 0
        for rows, part in with_numbers(head.read(file, self.key)):
            numbers.append(np.flatnonzero(is_among(self.hashes(rows), self.out)) + part.start)
            live = part.stop
        out = np.concatenate(numbers)
        return FileChange(file, live, out, np.full(len(out), -1, np.int64), None)

    def _without(self, head: MirrorHead, change: FileChange) -> Iterator[File]:
        """Rewrite a file without the rows that leave."""
        nothing = no_rows(head.conform(no_rows(pa.schema([]))).schema)
        yield from FileRewriteTask(head, None, lambda _: nothing)([(change, None)])


def is_among(hashes: Hashes, wanted: Hashes) -> np.ndarray:
    """Return the mask of the hashes that are in `wanted`, which is sorted in ascending order."""
    if not len(wanted):
        return np.zeros(len(hashes), np.bool_)
    nearest = np.minimum(np.searchsorted(wanted, hashes), len(wanted) - 1)
    mask: np.ndarray = wanted[nearest] == hashes
    return mask
