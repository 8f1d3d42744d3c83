"""Storage of Delta tables: location as an absolute path or a URI, object store, and storage options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from obstore.exceptions import BaseError
from obstore.store import LocalStore

from airflow_lakestream.delta.commit.damage import LOG, DamagedLog, check_log, find_damage
from airflow_lakestream.delta.commit.protocol import unreadable
from airflow_lakestream.delta.head import DeltaTableHead
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.stores.object_store import open_store
from airflow_lakestream.stores.places import PlaceNotWritable, check_folder
from airflow_lakestream.tables.row_buffer import is_of_rows


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
        return head

    def store(self, table: str) -> Any:
        """Return the object store with the table's folder as root; a missing local folder is created."""
        where = location(table)
        if "://" not in where:
            return LocalStore(where, mkdir=True)
        return open_store(where, self.options)


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
