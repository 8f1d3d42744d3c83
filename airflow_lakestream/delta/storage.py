"""Where a Delta table lies: an absolute path or a URI, how its store is opened, and what the store has to be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from obstore.store import LocalStore

from airflow_lakestream.delta.commit.damage import check_log, find_damage
from airflow_lakestream.delta.commit.protocol import unreadable
from airflow_lakestream.delta.head import Head
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.stores.object_store import open_store


def location(table: str) -> str:
    """Return a local path as a plain one, and a URI as it is, without a slash at its end."""
    parts = urlsplit(table)
    if parts.scheme == "file":
        return unquote(parts.path).rstrip("/")
    return table.rstrip("/")


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
        if "://" not in where and not Path(where).is_dir():
            return None
        try:
            head = Head.of(DeltaTable(where, storage_options=dict(self.options) or None), table)
        except TableNotFoundError:
            return None
        except DeltaError as e:
            if damage := find_damage(self.store(table), table, str(e)):
                raise damage from e
            raise (unreadable(table, str(e)) or e) from e
        check_log(self.store(table), table)
        return head

    def store(self, table: str) -> Any:
        """Return the object store whose root is the table's folder."""
        where = location(table)
        if "://" not in where:
            return LocalStore(where, mkdir=True)
        return open_store(where, self.options)
