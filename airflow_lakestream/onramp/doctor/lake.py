"""Checks of the catalog and the store by a commit to a scratch table, or by a scratch file; both are removed again."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.update import AssertRefSnapshotId, SetPropertiesUpdate

from airflow_lakestream.core.printable import counted
from airflow_lakestream.iceberg import fitness
from airflow_lakestream.iceberg.commit.new_table import make_namespace
from airflow_lakestream.onramp.doctor.finding import DoctorFinding, PartHealth
from airflow_lakestream.stores.folders import open_folder

CATALOG, STORE, CLOCK = "catalog", "store", "clock"
_SCRATCH = "lakestream_doctor_"
# Allowed difference between the clocks of this machine and of a store.
_SKEW_SECONDS = 60
_ROWS = pa.table({"id": pa.array([1], pa.int64())})


def check_catalog(
    open_catalog: Callable[[], Catalog], table: str | None, *, read_only: bool
) -> Iterator[DoctorFinding]:
    """Open the catalog, check the table, and commit to a scratch table, unless `read_only`.

    The table may be missing. Raises the errors of catalog and store, and of a catalog or table that is unfit for
    commits.
    """
    catalog = open_catalog()
    namespaces = catalog.list_namespaces()
    kind = type(catalog).__name__
    fitness.check_catalog(catalog, table or "any.table")
    known = counted(len(namespaces), "namespace")
    if table is not None:
        try:
            fitness.check(catalog, fitness.load_table(catalog, table))
            known += f", {table} can be read"
        except NoSuchTableError:
            known += f", {table} is not there yet"
    yield DoctorFinding(CATALOG, PartHealth.OK, f"{kind} answers: {known}.")
    if read_only:
        text = "whether a commit works is not tried with --read-only."
        yield DoctorFinding(CATALOG, PartHealth.NOTE, text)
        return
    yield from _with_scratch_table(catalog, table)


def _with_scratch_table(catalog: Catalog, table: str | None) -> Iterator[DoctorFinding]:
    """Create a scratch table, commit, read back, remove the table, and yield the findings.

    The scratch table is in the table's namespace, whose rights and store it needs; or in a namespace of its own.
    """
    scratch = f"{_SCRATCH}{uuid.uuid4().hex[:8]}"
    namespace = table.rpartition(".")[0] if table is not None else scratch
    name = f"{namespace}.{scratch}"
    made_namespace = make_namespace(catalog, name)
    made: Table | None = None
    left = False
    try:
        made = catalog.create_table(name, _ROWS.schema)
        made.append(_ROWS)
        read_back = catalog.load_table(name).scan().to_arrow() == _ROWS
        compared = _compare_and_set(catalog, name)
    finally:
        if made is not None:
            left = _remove(catalog, made, name)
        if made_namespace:
            catalog.drop_namespace(namespace)
    yield compared
    if not read_back:
        yield DoctorFinding(STORE, PartHealth.WRONG, f"{made.location()}: a row that was written was not read back.")
    elif left:
        text = f"files can be written and read, and those of {made.location()} are still there"
        yield DoctorFinding(
            STORE, PartHealth.NOTE, f"{text}. Delete them; without the right to delete, orphan files stay."
        )
    else:
        # The folder above the scratch table, or above the namespace that was made for the table.
        folder = made.location().partition(f"/{scratch}")[0]
        yield DoctorFinding(STORE, PartHealth.OK, f"{folder}: files can be written, read and deleted.")


def _compare_and_set(catalog: Catalog, name: str) -> DoctorFinding:
    """Try a commit for a head that the table does not have, and return the finding.

    With a catalog that accepts such a commit, runs would overwrite each other's rows.
    """
    stale = (AssertRefSnapshotId.model_validate({"ref": "main", "snapshot-id": 1}),)
    try:
        change = (SetPropertiesUpdate(updates={"lakestream.doctor": "stale"}),)
        fitness.commit_table(catalog, catalog.load_table(name), stale, change)
    except CommitFailedException:
        return DoctorFinding(
            CATALOG, PartHealth.OK, "commits work, and one for an older head is refused (compare and set)."
        )
    remedy = "Use a REST, Glue, SQL or Hive catalog that checks requirements."
    return DoctorFinding(
        CATALOG, PartHealth.WRONG, f"a commit for an older head was taken: runs would lose rows. {remedy}"
    )


def _remove(catalog: Catalog, made: Table, name: str) -> bool:
    """Remove the scratch table with its files; return whether files are left."""
    try:
        catalog.purge_table(name)
    except NotImplementedError:
        # Some catalogs of PyIceberg can only drop a table: its files are left, which the caller reports.
        catalog.drop_table(name)
    left = bool(made.io.new_input(made.metadata_location).exists())
    location = urlsplit(made.location())
    if location.scheme in ("", "file"):
        # On a disk empty folders are left, of the table and maybe of its namespace. No other program has these names.
        folder = Path(url2pathname(location.path))
        shutil.rmtree(folder, ignore_errors=True)
        if folder.parent.name.removesuffix(".db") == folder.name:
            folder.parent.rmdir()
        return folder.exists()
    return left


def check_store(location: str, properties: Mapping[str, str] | None, *, read_only: bool) -> Iterator[DoctorFinding]:
    """Create a scratch file only if it is missing, read and delete the file, and compare the store's clock.

    A Delta commit and a checkpoint's lease need the same operations. Folders that are made for the file are removed,
    too. Raises the store's errors.

    :param location: a path or a URI.
    :param properties: settings of an object store; see `stores.folders.open_folder`.
    :param read_only: only list the location.
    """
    folder = open_folder(location, properties)
    folder.names()
    if read_only:
        yield DoctorFinding(STORE, PartHealth.OK, f"{location} can be listed; writing is not tried with --read-only.")
        return
    name, content = f".{_SCRATCH}{uuid.uuid4().hex}", uuid.uuid4().bytes
    missing = _missing_folders(location)
    try:
        created = folder.create(name, content)
        written_at = time.time()
        created_again = folder.create(name, b"another")
        if not created or created_again or folder.read(name) != content:
            remedy = "Use a store with conditional writes: a disk, S3, or one that is as strict."
            text = f"{location}: a file that was there could be created again: commits could overwrite each other."
            yield DoctorFinding(STORE, PartHealth.WRONG, f"{text} {remedy}")
            return
        modified = folder.modified(name)
        yield DoctorFinding(STORE, PartHealth.OK, f"{location}: files can be created once, read and deleted.")
    finally:
        folder.remove(name)
        for path in missing:
            path.rmdir()
    if modified is not None:
        yield _clock(location, modified - written_at)


def _clock(location: str, ahead: float) -> DoctorFinding:
    """Return the finding about the store's clock, which is `ahead` seconds ahead of this machine's."""
    if abs(ahead) <= _SKEW_SECONDS:
        return DoctorFinding(
            CLOCK, PartHealth.OK, f"the time of {location} is this machine's, within {_SKEW_SECONDS} s."
        )
    way = "ahead of" if ahead > 0 else "behind"
    return DoctorFinding(
        CLOCK, PartHealth.WRONG, f"the time of {location} is {abs(ahead):.0f} s {way} this machine's. Set it."
    )


def _missing_folders(location: str) -> list[Path]:
    """Return the folders of a location that are missing on a disk, the innermost first; none for an object store."""
    scheme, _, rest = location.partition(":")
    if rest and "/" not in scheme and scheme != "file":
        return []
    path = Path("/" + rest.lstrip("/")) if scheme == "file" and rest else Path(location)
    return [folder for folder in (path, *path.parents) if not folder.exists()]
