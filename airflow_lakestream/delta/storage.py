"""Where a Delta table lies: an absolute path or a URI, how its store is opened, and what the store has to be told."""

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
from airflow_lakestream.delta.head import Head
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.stores.object_store import open_store
from airflow_lakestream.stores.places import PlaceNotWritable, check_folder
from airflow_lakestream.tables.row_buffer import is_of_rows


def location(table: str) -> str:
    """Return a local path as a plain one, and a URI as it is, without a slash at its end."""
    parts = urlsplit(table)
    if parts.scheme == "file":
        return unquote(parts.path).rstrip("/")
    return table.rstrip("/")


# What delta-rs says of a store that fails, where it does not raise an OSError.
_OF_A_STORE = re.compile(r"Generic \w+ error|error sending request|timed out|object ?store", re.IGNORECASE)
# Each gives up what the commit rests on: that a version is written once.
_UNSAFE = {
    "aws_s3_allow_unsafe_rename": "it lets a commit overwrite another one",
    "s3_allow_unsafe_rename": "it lets a commit overwrite another one",
    "aws_s3_locking_provider": "its lock is a table of DynamoDB, which is not asked here",
    "s3_locking_provider": "its lock is a table of DynamoDB, which is not asked here",
    "aws_conditional_put": "commits need the store's own conditional put",
    "conditional_put": "commits need the store's own conditional put",
}


class Tables(Protocol):
    """What a sink opens its table with: the storage itself, or what another process said of the table."""

    def open(self, table: str) -> Head | None:
        """Return the table as it is now; None where there is none."""

    def store(self, table: str) -> Any:
        """Return the object store whose root is the table's folder."""


@dataclass(frozen=True)
class DeltaStorage:
    """`options` are the storage options of delta-rs; for paths, and where the environment says all, there are none.

    Raises InvalidArgument for options that would take away what makes a commit safe.
    """

    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for key, value in self.options.items():
            if (why := _UNSAFE.get(key.lower())) and str(value).lower() not in ("", "false", "etag"):
                raise InvalidArgument(
                    "storage_conn_id",
                    f"its storage option {key!r}: {why}.",
                    "Leave it out: S3 itself has had it since 2024.",
                )

    def open(self, table: str) -> Head | None:
        """Return the table as it is now; None where there is none. Raises DamagedLog, UnfitTable."""
        where = location(table)
        if "://" not in where:
            if not Path(where).is_dir():
                return None
            if Path(where, LOG).is_file():
                raise DamagedLog(table, LOG, "is a file and no folder", "Put it back, or land in another table.")
        try:
            head = Head.of(DeltaTable(where, storage_options=dict(self.options) or None), table)
        except TableNotFoundError:
            return None
        except OSError:
            raise
        except BaseException as e:
            if not (isinstance(e, Exception) or is_of_rows(e)):
                raise
            if _OF_A_STORE.search(str(e)):
                raise OSError(str(e)) from e
            raise (find_damage(self.store(table), table, str(e)) or unreadable(table, str(e))) from e
        check_log(self.store(table), table)
        return head

    def store(self, table: str) -> Any:
        """Return the object store whose root is the table's folder."""
        where = location(table)
        if "://" not in where:
            return LocalStore(where, mkdir=True)
        return open_store(where, self.options)


def check_place(tables: Tables, table: str) -> None:
    """Refuse a place at which no file of a table can be made, as far as it tells that. Raises PlaceNotWritable."""
    if "://" not in (where := location(table)):
        check_folder(table, where)
        check_folder(table, Path(where, LOG))
        return
    try:
        tables.store(table)
    except (BaseError, ValueError) as e:
        raise PlaceNotWritable(table, where, e) from e
