"""Giving a table a long past without living through it: snapshots, ledger and manifests as so many landings leave them.

Only the metadata is made up, by the package's own encoding; each snapshot has a manifest list of its own.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot, SnapshotLogEntry, Summary

from airflow_lakestream.core import codec
from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.core.lineage import LedgerReading
from airflow_lakestream.iceberg import ledger_store


def seed_snapshots(
    table: Table, catalog: Catalog, consumer_group: str, landings: Sequence[Landing], age: int = 0
) -> None:
    """Let the catalog have the table with one more snapshot for each landing; `age` is how many came before them."""
    head = table.current_snapshot()
    assert head is not None
    assert head.summary is not None
    reading = ledger_store.read(table, consumer_group)
    snapshots, parent = [head], head
    for number, landing in enumerate(landings, start=1):
        own = codec.encode_summary(consumer_group, landing)
        parent = Snapshot(
            snapshot_id=head.snapshot_id - number,
            parent_snapshot_id=parent.snapshot_id,
            sequence_number=(head.sequence_number or 0) + age + number,
            timestamp_ms=head.timestamp_ms + number,
            manifest_list=_copy_of(head.manifest_list, f"seeded-{number:05d}"),
            summary=Summary(head.summary.operation, **{**head.summary.additional_properties, **own}),
            schema_id=head.schema_id,
        )
        snapshots.append(parent)
        value = reading.property_after(parent.snapshot_id, landing)
        reading = LedgerReading(value.base_id, value.base, value.journal)
    key = codec.property_key(consumer_group)
    entry = codec.encode_property(codec.LedgerProperty(reading.base_id, reading.base, reading.path))
    metadata = table.metadata
    log = [SnapshotLogEntry(snapshot_id=s.snapshot_id, timestamp_ms=s.timestamp_ms) for s in snapshots]
    main = metadata.refs[MAIN_BRANCH].model_copy(update={"snapshot_id": parent.snapshot_id})
    _register(
        table,
        catalog,
        {
            "snapshots": snapshots,
            "snapshot_log": log,
            "refs": {**metadata.refs, MAIN_BRANCH: main},
            "current_snapshot_id": parent.snapshot_id,
            "last_sequence_number": parent.sequence_number,
            "properties": {**metadata.properties, key: entry},
        },
    )


def seed_files(table: Table, count: int, per_manifest: int) -> None:
    """Let the head's manifest list name so many data files more, in manifests as large as merging makes them."""
    head = table.current_snapshot()
    assert head is not None
    (own,) = head.manifests(table.io)
    (entry,) = own.fetch_manifest_entry(table.io)
    manifests = [own, _manifest(table, "rest", entry, count % per_manifest)]
    if count >= per_manifest:
        full = _manifest(table, "full", entry, per_manifest)
        manifests += [_renamed(full, f"full-{number:05d}") for number in range(count // per_manifest)]
    _write_list(table.io, head, manifests)


def _manifest(table: Table, name: str, entry: ManifestEntry, files: int) -> ManifestFile:
    output = table.io.new_output(f"{table.location()}/metadata/{name}.avro")
    with write_manifest(2, table.spec(), table.schema(), output, entry.snapshot_id, "deflate") as writer:
        for data_file in _files(entry.data_file, files):
            writer.existing(
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.EXISTING,
                    snapshot_id=entry.snapshot_id,
                    sequence_number=1,
                    file_sequence_number=1,
                    data_file=data_file,
                )
            )
    return writer.to_manifest_file()


def _files(like: DataFile, count: int) -> Iterator[DataFile]:
    folder, _, name = like.file_path.rpartition("/")
    for number in range(count):
        data_file = copy.copy(like)
        data_file._data = list(like._data)
        data_file[1] = f"{folder}/{number:08x}{name[8:]}"  # file_path
        yield data_file


def _renamed(manifest: ManifestFile, name: str) -> ManifestFile:
    new = copy.copy(manifest)
    new._data = list(manifest._data)
    new[0] = _copy_of(manifest.manifest_path, name)  # manifest_path
    return new


def _write_list(io: FileIO, head: Snapshot, manifests: Sequence[ManifestFile]) -> None:
    Path(head.manifest_list.removeprefix("file://")).unlink()
    output = io.new_output(head.manifest_list)
    with write_manifest_list(2, output, head.snapshot_id, None, head.sequence_number, "deflate") as writer:
        writer.add_manifests(list(manifests))


def _copy_of(location: str, name: str) -> str:
    path = Path(location.removeprefix("file://"))
    target = path.with_name(f"{name}-{path.name}")
    shutil.copyfile(path, target)
    return f"file://{target}"


def _register(table: Table, catalog: Catalog, changes: dict[str, object]) -> None:
    location = f"{table.location()}/metadata/00001-seeded.metadata.json"
    metadata = table.metadata.model_copy(update=changes)
    ToOutputFile.table_metadata(metadata, table.io.new_output(location))
    catalog.drop_table(table.name())
    catalog.register_table(table.name(), location)
