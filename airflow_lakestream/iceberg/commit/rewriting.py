"""A commit that takes files out of a table and puts others in: made for one head, and made anew for another."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from airflow_lakestream.iceberg.commit.attempt import AppendAttempt, append_files, overwriting
from airflow_lakestream.iceberg.commit.guard import HeadGuard
from airflow_lakestream.iceberg.commit.transaction import LandingTransaction
from airflow_lakestream.iceberg.write.files import delete_files

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rewrite:
    """The files that go out, and those that come in."""

    out: Sequence[DataFile]
    new: Sequence[DataFile]


class RewriteAttempt(AppendAttempt):
    """A landing that changes which files an existing table has.

    :param rewrite: decides for one head after the other, and writes the new files.
    :param written: all files that `rewrite` has written, for whatever head; it grows.
    """

    def __init__(
        self,
        catalog: Catalog,
        name: str,
        guard: HeadGuard,
        summary: Mapping[str, str],
        rewrite: Callable[[Table], Rewrite],
        written: Sequence[DataFile],
    ) -> None:
        super().__init__(catalog, name, guard, summary)
        self._rewrite, self._written = rewrite, written
        self._new: dict[int, Sequence[DataFile]] = {}
        self._io: FileIO | None = None

    def clean_up(self, keep: int | None) -> None:
        """Delete the manifests and files of tries that were not applied."""
        super().clean_up(keep)
        if self._io is None:
            return
        kept = {file.file_path for file in self._new.get(keep, ())} if keep is not None else set()
        unneeded = [path for file in self._written if (path := file.file_path) not in kept]
        for path in delete_files(self._io, unneeded):
            log.warning("An uncommitted data file could not be deleted: %s", path)

    def _stage(self, transaction: LandingTransaction, table: Table, files: Sequence[DataFile]) -> None:
        self._io = table.io
        rewrite = self._rewrite(table)
        new, summary = [*rewrite.new, *files], self._summary | transaction.notes
        if not rewrite.out:
            append_files(transaction, new, summary, self._producers)
            self._new[self._producers[-1].snapshot_id] = rewrite.new
            return
        with overwriting(transaction, summary, self._producers) as producer:
            self._new[producer.snapshot_id] = rewrite.new
            for file in rewrite.out:
                producer.delete_data_file(file)
            for file in new:
                producer.append_data_file(file)
