"""A commit that takes files out and puts others in: whatever it is given, its manifests say what happened."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import ValidationException
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField
from pyiceberg.utils.concurrent import ExecutorFactory

from airflow_lakestream.iceberg import manifests as manifests_module
from airflow_lakestream.iceberg.commit.attempt import overwriting
from airflow_lakestream.iceberg.manifests import live_entries
from airflow_lakestream.iceberg.replace.takeout import live_files
from airflow_lakestream.iceberg.write.files import referenced
from tests.support.table_formats import sqlite_catalog

DATA, DELETES = DataFileContent.DATA, DataFileContent.POSITION_DELETES


@dataclass(frozen=True)
class Step:
    """A commit.

    :param out: which of the live files go, by place.
    :param data: how many data files come; `deletes`: how many delete files.
    :param repartitions: whether the table has another partition spec from here on.
    """

    out: Sequence[int]
    data: int
    deletes: int
    repartitions: bool


STEPS = st.builds(
    Step,
    out=st.lists(st.integers(0, 40), max_size=6),
    data=st.integers(0, 3),
    deletes=st.integers(0, 2),
    repartitions=st.sampled_from([*[False] * 4, True]),
)
# Each manifest that changes stays one of its own, two come together, or all.
SIZES = st.sampled_from(["1", "10000", "8388608"])
NAMES = itertools.count()
# Seconds; a test that waits so long has failed.
PATIENCE = 60


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    catalog = load_catalog("row_delta", **sqlite_catalog(tmp_path_factory.mktemp("lake")))
    catalog.create_namespace("lake")
    return catalog


@pytest.fixture(autouse=True)
def hardly_any_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the entries of two manifests or so, so that others go."""
    monkeypatch.setattr(manifests_module, "_kept", manifests_module._EntryCache(10_000))


def create(catalog: Catalog, **properties: str) -> Table:
    schema = Schema(*(NestedField(number, name, LongType()) for number, name in ((1, "a"), (2, "b"))))
    return catalog.create_table(f"lake.t{next(NAMES)}", schema, properties=properties)


def new_file(table: Table, content: DataFileContent) -> DataFile:
    number = next(NAMES)
    file = DataFile.from_args(
        content=content,
        file_path=f"{table.location()}/data/{number}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(*(number % 3 for _ in table.spec().fields)),
        record_count=1 + number,
        file_size_in_bytes=100,
    )
    file.spec_id = table.spec().spec_id
    return file


def commit(table: Table, out: Sequence[DataFile], new: Sequence[DataFile]) -> None:
    with table.transaction() as transaction, overwriting(transaction, {}, []) as producer:
        for file in out:
            producer.delete_data_file(file)
        for file in new:
            producer.append_data_file(file)


def repartition(table: Table) -> None:
    with table.update_spec() as update:
        if table.spec().fields:
            update.remove_field(table.spec().fields[0].name)
        else:
            update.add_identity("ab"[len(table.specs()) % 2])


def read(table: Table) -> Iterator[tuple[ManifestFile, Sequence[ManifestEntry]]]:
    """Yield the head's manifests as they lie in the files."""
    head = table.current_snapshot()
    assert head is not None
    for manifest in head.manifests(table.io):
        yield manifest, manifest.fetch_manifest_entry(table.io, discard_deleted=False)


def counts(entries: Sequence[ManifestEntry], status: ManifestEntryStatus) -> tuple[int, int]:
    files = [entry.data_file for entry in entries if entry.status == status]
    return len(files), sum(file.record_count for file in files)


@settings(max_examples=max(5, settings.default.max_examples // 2))
@given(steps=st.lists(STEPS, min_size=1, max_size=7), size=SIZES, merges=st.booleans())
def test_the_manifests_say_which_files_are_there_since_when_and_which_have_gone(
    catalog: Catalog, steps: Sequence[Step], size: str, merges: bool
) -> None:
    table = create(
        catalog,
        **{
            TableProperties.MANIFEST_TARGET_SIZE_BYTES: size,
            TableProperties.MANIFEST_MERGE_ENABLED: str(merges).lower(),
            TableProperties.MANIFEST_MIN_MERGE_COUNT: "3",
        },
    )
    # By file: the snapshot that brought it, and its sequence number.
    live: dict[DataFile, tuple[int, int]] = {}
    for step in steps:
        if step.repartitions:
            repartition(table)
        out = list({list(live)[place]: None for place in step.out if place < len(live)})
        new = [new_file(table, DATA) for _ in range(step.data)] + [
            new_file(table, DELETES) for _ in range(step.deletes)
        ]
        if not out and not new:
            continue
        commit(table, out, new)
        head = table.current_snapshot()
        assert head is not None
        assert head.sequence_number is not None
        live = {file: seen for file, seen in live.items() if file not in out}
        live |= dict.fromkeys(new, (head.snapshot_id, head.sequence_number))

        found, gone = dict[DataFile, tuple[int, int]](), list[DataFile]()
        for manifest, entries in read(table):
            tallies = [counts(entries, status) for status in ManifestEntryStatus]
            assert tallies == [
                (manifest.existing_files_count, manifest.existing_rows_count),
                (manifest.added_files_count, manifest.added_rows_count),
                (manifest.deleted_files_count, manifest.deleted_rows_count),
            ]
            for entry in entries:
                assert entry.data_file.spec_id == manifest.partition_spec_id
                assert (entry.data_file.content == DATA) is (manifest.content == 0)
                if entry.status != ManifestEntryStatus.DELETED:
                    assert entry.data_file not in found
                    found[entry.data_file] = entry.snapshot_id, entry.sequence_number
                elif entry.snapshot_id == head.snapshot_id:
                    gone.append(entry.data_file)
                else:
                    assert any(one.status != ManifestEntryStatus.DELETED for one in entries), (
                        "it tells of the past only"
                    )
        assert found == live
        assert Counter(gone) == Counter(out)
        assert [file.spec_id for file in found] == [next(one.spec_id for one in live if one == file) for file in found]
        assert {task.file for task in live_files(table)} == {file for file in live if file.content == DATA}
        assert head.summary is not None
        totals = [int(head.summary[f"total-{kind}-files"] or 0) for kind in ("data", "delete")]
        assert totals == [sum(file.content == content for file in live) for content in (DATA, DELETES)]


def test_a_file_that_is_not_there_can_not_be_taken_out(catalog: Catalog) -> None:
    table = create(catalog)
    files = [new_file(table, DATA), new_file(table, DELETES)]
    commit(table, [], files)
    before = table.metadata
    for file in (new_file(table, DATA), new_file(table, DELETES)):
        with pytest.raises(ValidationException, match=f"Missing required files to delete: {file.file_path}"):
            commit(table, [file], [new_file(table, DATA)])
    assert table.refresh().metadata == before
    with pytest.raises(ValidationException, match="Missing required files"):
        commit(create(catalog), files[:1], [])


def test_manifests_that_change_come_together_up_to_the_size_that_the_table_wants(catalog: Catalog) -> None:
    for size, expected in (("8388608", 1), ("1", 4)):
        table = create(catalog, **{TableProperties.MANIFEST_TARGET_SIZE_BYTES: size})
        files = [[new_file(table, DATA), new_file(table, DATA)] for _ in range(4)]
        for some in files:
            commit(table, [], some)
        commit(table, [some[0] for some in files], [])
        assert len(list(read(table))) == expected


def test_a_manifest_is_read_once(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    table = create(catalog)
    files = [new_file(table, DATA) for _ in range(3)]
    for file in files:
        commit(table, [], [file])
    reads, fetch = Counter[str](), ManifestFile.fetch_manifest_entry

    def counted(self: ManifestFile, *args: object, **kwargs: object) -> list[ManifestEntry]:
        reads[self.manifest_path] += 1
        return fetch(self, *args, **kwargs)

    monkeypatch.setattr(manifests_module, "_kept", manifests_module._EntryCache(manifests_module.MOST_BYTES))
    monkeypatch.setattr(ManifestFile, "fetch_manifest_entry", counted)
    assert {task.file for task in live_files(table)} == set(files)
    commit(table, files[:1], [new_file(table, DATA)])
    assert len(live_files(table)) == 3
    # Those of the base, and the one that the commit has written.
    assert sorted(reads.values()) == [1, 1, 1, 1]


def test_tasks_of_the_pool_that_reads_manifests_may_ask_which_files_are_referenced(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(catalog)
    files = [new_file(table, DATA) for _ in range(3)]
    for file in files:
        commit(table, [], [file])
    # As a fan-out's tables are swept: each thread of the pool is busy with one.
    with ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(ExecutorFactory, "_instance", pool)
        monkeypatch.setattr(ExecutorFactory, "_instance_pid", os.getpid())
        paths = [file.file_path for file in files]
        assert pool.submit(referenced, table, [*paths, "another"]).result(PATIENCE) == set(paths)


def test_what_was_not_used_for_the_longest_time_goes(catalog: Catalog) -> None:
    table = create(catalog)
    for _ in range(6):
        commit(table, [], [new_file(table, DATA)])
    head = table.current_snapshot()
    assert head is not None
    of_head = head.manifests(table.io)
    expected = [manifest.fetch_manifest_entry(table.io) for manifest in of_head]
    for _ in range(3):
        assert list(live_entries(table.io, of_head)) == expected
    kept = manifests_module._kept
    assert 0 < sum(kept.get(manifest.manifest_path) is not None for manifest in of_head) < 6
