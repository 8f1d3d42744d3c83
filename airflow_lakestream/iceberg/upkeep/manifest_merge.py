"""Rewrite of a table's manifests: small manifests become few, by a snapshot with the same files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import chain
from operator import attrgetter

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table, TableProperties

from airflow_lakestream.iceberg.commit.attempt import CommitAttempt, LandingTransaction
from airflow_lakestream.iceberg.commit.row_delta import FileExchange, has_files
from airflow_lakestream.iceberg.manifests import live_entries
from airflow_lakestream.iceberg.table_properties import number
from airflow_lakestream.iceberg.upkeep import ledger_edit
from airflow_lakestream.iceberg.upkeep.compaction_plan import bins

# Key in the summary: the number of manifests that were merged.
SUMMARY_MANIFESTS = "lakestream.manifests-merged"
# A rewrite that saves fewer manifests is not made.
LEAST_GAIN = 4
# A manifest below this share of the target size is small.
SMALL_SHARE = 0.75


def mergeable(table: Table) -> list[list[ManifestFile]]:
    """Return groups of small manifests of a table's head, each to be merged into one; empty if too little is gained.

    The manifests of a group have the same content (data or deletes) and partition spec.
    """
    head = table.current_snapshot()
    name, default = TableProperties.MANIFEST_TARGET_SIZE_BYTES, TableProperties.MANIFEST_TARGET_SIZE_BYTES_DEFAULT
    target = number(table.metadata.properties, name, default)
    alike = defaultdict[tuple[ManifestContent, int], list[ManifestFile]](list)
    for manifest in [] if head is None else head.manifests(table.io):
        if has_files(manifest) and manifest.manifest_length < SMALL_SHARE * target:
            alike[manifest.content, manifest.partition_spec_id].append(manifest)
    groups = chain.from_iterable(bins(small, target, attrgetter("manifest_length")) for small in alike.values())
    merges = [group for group in groups if len(group) > 1]
    return merges if saved(merges) >= LEAST_GAIN else []


def saved(merges: Sequence[Sequence[ManifestFile]]) -> int:
    """Return by how many manifests a table has fewer once each group is merged into one."""
    return sum(len(group) - 1 for group in merges)


def rewrite_manifests(catalog: Catalog, name: str) -> int:
    """Merge the small manifests of a table's head; return by how many they are fewer. Raises EditNotDone.

    A rewrite that gains too little is not made. Raises the errors of `fitness` for a table unfit for commits.
    """
    gained = 0

    def attempt() -> CommitAttempt | None:
        nonlocal gained
        table = ledger_edit.fit_table(catalog, name)
        if not (merges := mergeable(table)):
            return None
        gained = saved(merges)
        summary = {SUMMARY_MANIFESTS: str(sum(map(len, merges)))}
        return ledger_edit.attempt_at(catalog, table, summary, partial(_MergedManifests, merges))

    return 0 if ledger_edit.drive(name, attempt) is None else gained


class _MergedManifests(FileExchange):
    """Snapshot with the files of its parent, in fewer manifests."""

    def __init__(
        self, merges: Sequence[Sequence[ManifestFile]], transaction: LandingTransaction, summary: dict[str, str]
    ) -> None:
        super().__init__(transaction, summary)
        self._merges = merges

    def _manifests(self) -> list[ManifestFile]:
        base = self._transaction.table_metadata.snapshot_by_name(self._target_branch)
        manifests = () if base is None else base.manifests(self._io)
        merged = {manifest.manifest_path for manifest in chain.from_iterable(self._merges)}
        unmerged = [manifest for manifest in manifests if has_files(manifest) and manifest.manifest_path not in merged]
        return [*map(self._merge, self._merges), *unmerged]

    def _merge(self, group: Sequence[ManifestFile]) -> ManifestFile:
        is_data = group[0].content == ManifestContent.DATA
        opened = self.new_manifest_writer if is_data else self._new_delete_writer
        with opened(self.spec(group[0].partition_spec_id)) as writer:
            for entry in chain.from_iterable(live_entries(self._io, group)):
                writer.existing(entry)
        return writer.to_manifest_file()
