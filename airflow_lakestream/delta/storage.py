"""Storage of Delta tables: location as an absolute path or a URI, object store, and storage options."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from obstore.exceptions import BaseError
from obstore.store import LocalStore

from airflow_lakestream.core.names import BESIDE
from airflow_lakestream.core.printable import nearest
from airflow_lakestream.delta.head import DeltaTableHead
from airflow_lakestream.delta.protocol import unreadable
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal
from airflow_lakestream.stores.folders import open_folder
from airflow_lakestream.stores.object_store import PlaceNotWritable, check_folder, open_store
from airflow_lakestream.tables.row_buffer import is_of_rows

LOG = "_delta_log"
_LAST = f"{LOG}/_last_checkpoint"
_FILE = re.compile(r"(\d{20})\.(?:json|checkpoint\.(?:[\w.-]+\.)?(?:parquet|json))")
_BACKUP = "Put it back from a backup, or from the store's own older versions of the file."
_ELSEWHERE = "Without one, land in another table."
# Folders with a near name that are checked for a table, each by a listing.
_NEAR_FOLDERS = 5


class DamagedLog(LakestreamError, Terminal):
    """Missing or incomplete file of a table's log."""

    def __init__(self, table: str, file: str, problem: str, remedy: str) -> None:
        self.table, self.file = table, file
        super().__init__(f"{table}: {file} {problem}. Nothing was read or written. {remedy}")


@dataclass(frozen=True)
class _LogFiles:
    """Sizes of a log's files: of versions, and of the parts of checkpoints by version."""

    commits: Mapping[int, int]
    checkpoints: Mapping[int, Mapping[str, int]]

    @property
    def newest(self) -> int:
        """The newest version."""
        return max([*self.commits, *self.checkpoints], default=-1)

    def is_whole_from(self, base: int) -> bool:
        """Return whether every version after `base` exists."""
        return self.newest >= 0 and all(version in self.commits for version in range(base + 1, self.newest + 1))


def check_log(store: Any, table: str) -> None:
    """Refuse a log with an empty version: readers would skip all files of the version. Raises DamagedLog.

    Only versions after the last checkpoint count, since readers begin there.

    :param store: the store of the table's folder.
    """
    base = _last_checkpoint(store)
    log = _listed(store, f"{LOG}/{max(0, base):020}")
    for version, size in sorted(log.commits.items()):
        if not size and version > base:
            raise DamagedLog(table, _commit(version), "is empty", _of_commit(version))


def find_damage(store: Any, table: str, error: str = "") -> DamagedLog | None:
    """Return the damage of an unreadable log, or None if no damage is found.

    :param error: the error of delta-rs.
    """
    log, base = _listed(store), _last_checkpoint(store)
    if base >= 0 and base not in log.checkpoints:
        return DamagedLog(table, _LAST, f"names a checkpoint of version {base}, which is missing", _hint(log, base))
    base = max(log.checkpoints, default=-1)
    for file in log.checkpoints.get(base, ()):
        if not _is_whole(store, file):
            return DamagedLog(table, file, "is not a whole checkpoint: it was cut, or damaged", _hint(log, base))
    for version in range(base + 1, log.newest + 1):
        if version not in log.commits:
            return DamagedLog(table, _commit(version), "is missing", _of_commit(version))
        if not _is_whole(store, _commit(version)):
            return DamagedLog(table, _commit(version), "was cut, or damaged", _of_commit(version))
    if any(text in error for text in ("No table metadata", "No protocol")):
        problem = "has no version with the table's columns, or none with its protocol"
        return DamagedLog(table, LOG, problem, f"{_BACKUP} {_ELSEWHERE}")
    return None


def _transaction(read: Callable[[str], int | None], table: str, app: str) -> int | None:
    """Return the number of an application's last transaction, or None. Raises UnfitTable, and OSError of a store."""
    try:
        return read(app)
    except DeltaError as e:
        raise (OSError(str(e)) if _OF_A_STORE.search(str(e)) else unreadable(table, str(e))) from e


def _hint(log: _LogFiles, base: int) -> str:
    """Return the remedy for a missing or damaged checkpoint of the version `base`."""
    # The checkpoint is not needed if the log has all versions after an older checkpoint, or from the first version on.
    older_checkpoints = [older for older in log.checkpoints if older < base]
    if any(log.is_whole_from(older) for older in (*older_checkpoints, -1)):
        return (
            f"Delete {_LAST}, and what is there of the checkpoint of version {base}: the log has all versions without "
            "it, and the next checkpoint is written in time."
        )
    return f"{_BACKUP} The versions that it replaces are no longer there. {_ELSEWHERE}"


def _of_commit(version: int) -> str:
    """Return the remedy for a damaged file of a version in the log."""
    if version == 0:
        return f"{_BACKUP} {_ELSEWHERE}"
    return (
        f"{_BACKUP} Without one, delete it and all versions after it from {LOG}: the table is then as it was at "
        f"version {version - 1}, its ledger too, and the next run lands again what went. What others wrote is lost."
    )


def _last_checkpoint(store: Any) -> int:
    """Return the version of the last checkpoint, the readers' start, or -1 if no checkpoint is named."""
    try:
        return int(json.loads(bytes(obstore.get(store, _LAST).bytes()))["version"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return -1


def _listed(store: Any, after: str | None = None) -> _LogFiles:
    """Return the files of a log whose paths are behind `after`; default: all files."""
    commits: dict[int, int] = {}
    checkpoints: dict[int, dict[str, int]] = {}
    for path, size in _files(store, after):
        if match := _FILE.fullmatch(path.rsplit("/", 1)[-1]):
            version = int(match[1])
            if ".checkpoint." in path:
                checkpoints.setdefault(version, {})[path] = size
            else:
                commits[version] = size
    return _LogFiles(commits, checkpoints)


def _files(store: Any, after: str | None) -> Iterator[tuple[str, int]]:
    """Yield path and size of each file right below the log's folder."""
    pages: Iterator[Sequence[Any]] = obstore.list(store, prefix=LOG, offset=after)
    for page in pages:
        yield from ((file["path"], file["size"]) for file in page if file["path"].count("/") == 1)


def _is_whole(store: Any, file: str) -> bool:
    """Return whether a file of the log is readable to its end."""
    data = bytes(obstore.get(store, file).bytes())
    try:
        if file.endswith(".parquet"):
            pq.read_table(io.BytesIO(data))
            return True
        # Not splitlines(): text in JSON may contain characters that are line ends in Unicode only. And decoded as
        # UTF-8, since `json` would guess the encoding.
        actions = [json.loads(line.decode()) for line in data.split(b"\n") if line.strip()]
    except (ValueError, OSError, pa.ArrowException, RecursionError):
        return False
    return bool(actions) and all(isinstance(action, dict) for action in actions)


def _commit(version: int) -> str:
    return f"{LOG}/{version:020}.json"


def location(table: str) -> str:
    """Return the location of a table without a slash at the end: a local path as a plain path, a URI unchanged."""
    parts = urlsplit(table)
    if parts.scheme == "file":
        return unquote(parts.path).rstrip("/")
    return table.rstrip("/")


# Errors of delta-rs for a failing store, unless it raises an OSError.
_OF_A_STORE = re.compile(r"Generic \w+ error|error sending request|timed out|object ?store", re.IGNORECASE)
# With each of these options a version could be written twice, and commits rely on a single write.
_UNSAFE = {
    "aws_s3_allow_unsafe_rename": "it lets a commit overwrite another one",
    "s3_allow_unsafe_rename": "it lets a commit overwrite another one",
    "aws_s3_locking_provider": "its lock is a table of DynamoDB, which is not asked here",
    "s3_locking_provider": "its lock is a table of DynamoDB, which is not asked here",
    "aws_conditional_put": "commits need the store's own conditional put",
    "conditional_put": "commits need the store's own conditional put",
}


class DeltaTableAccess(Protocol):
    """Access of a sink to a table: by the storage itself, or by an outline from another process."""

    def open(self, table: str) -> DeltaTableHead | None:
        """Return the table at the current version, or None if missing."""

    def store(self, table: str) -> Any:
        """Return the object store with the table's folder as root."""


@dataclass(frozen=True)
class DeltaStorage:
    """Storage of Delta tables through delta-rs.

    `options` are the storage options of delta-rs; empty for paths, and if the environment has all settings. Raises
    InvalidArgument for options that make commits unsafe.
    """

    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for key, value in self.options.items():
            # "false" leaves an option off, and "etag" is the store's own conditional put.
            if (reason := _UNSAFE.get(key.lower())) and str(value).lower() not in ("", "false", "etag"):
                raise InvalidArgument(
                    "storage_conn_id",
                    f"its storage option {key!r}: {reason}.",
                    "Leave it out: S3 itself has had it since 2024.",
                )

    def open(self, table: str) -> DeltaTableHead | None:
        """Return the table at the current version, or None if missing.

        Raises DamagedLog and UnfitTable, and OSError if the store fails.
        """
        where = location(table)
        if "://" not in where:
            if not Path(where).is_dir():
                return None
            if Path(where, LOG).is_file():
                raise DamagedLog(table, LOG, "is a file and no folder", "Put it back, or land in another table.")
        try:
            head = DeltaTableHead.of(DeltaTable(where, storage_options=dict(self.options) or None), table)
        except TableNotFoundError:
            return None
        except OSError:
            raise
        except BaseException as e:
            # A panic of delta-rs, which `is_of_rows` recognizes, is a BaseException, but not an Exception. All further
            # BaseExceptions are signals to the process, and go on.
            if not (isinstance(e, Exception) or is_of_rows(e)):
                raise
            if _OF_A_STORE.search(str(e)):
                raise OSError(str(e)) from e
            raise (find_damage(self.store(table), table, str(e)) or unreadable(table, str(e))) from e
        check_log(self.store(table), table)
        return replace(head, txn=partial(_transaction, head.txn, table))

    def open_existing(self, table: str) -> DeltaTableHead:
        """Return the table at the current version. Raises InvalidArgument for a missing table, and as `open`."""
        if (head := self.open(table)) is None:
            raise InvalidArgument("table", f"there is no Delta table at {table}.{near_table(self, table)}")
        return head

    def store(self, table: str) -> Any:
        """Return the object store with the table's folder as root; a missing local folder is created."""
        where = location(table)
        if "://" not in where:
            return LocalStore(where, mkdir=True)
        return open_store(where, self.options)


def near_table(storage: DeltaStorage, table: str) -> str:
    """Return a question for the nearest Delta table next to a missing table, or an empty text."""
    # The text only completes an error, and a failure here must not replace that error.
    with suppress(Exception):
        folder, _, name = table.rstrip("/").rpartition("/")
        store = open_folder(location(table).rpartition("/")[0], storage.options)
        names = {other for other in store.names() if not other.endswith(BESIDE)}
        for _ in range(_NEAR_FOLDERS):
            if (near := nearest(name, names)) is None:
                break
            if store.names(f"{near}/{LOG}"):
                return f" Did you mean '{folder}/{near}'?"
            names.remove(near)
    return ""


def check_place(tables: DeltaTableAccess, table: str) -> None:
    """Refuse an unwritable location of a table, if detectable before a write. Raises PlaceNotWritable."""
    if "://" not in (where := location(table)):
        check_folder(table, where)
        check_folder(table, Path(where, LOG))
        return
    try:
        tables.store(table)
    except (BaseError, ValueError) as e:
        raise PlaceNotWritable(table, where, e) from e
