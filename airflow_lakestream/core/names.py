"""Checks of names given by users."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from enum import StrEnum
from urllib.parse import unquote, urlsplit

from airflow_lakestream.exceptions import InvalidArgument

# The default metadata columns of a row.
DEFAULT_METADATA = ("topic", "partition", "offset", "timestamp")


class RecordPart(StrEnum):
    """A part of a record, read on demand: the metadata column has its name, the field of `RawBatch` its value."""

    KEY = "keys"
    HEADERS = "headers"
    TIMESTAMP_TYPE = "timestamp_types"

    @classmethod
    def of(cls, names: Collection[str]) -> frozenset[RecordPart]:
        """Return the parts that metadata columns of these names need."""
        return frozenset(part for part in cls if part.name.lower() in names)


# All metadata columns.
METADATA_NAMES = (*DEFAULT_METADATA, *(part.name.lower() for part in RecordPart))

# Suffixes of the tables next to a table: rejected records, deleted keys of a mirror, the ledger of a fan-out, and the
# new snapshot of a mirror.
REJECTED, DELETED, HOME, ANEW = BESIDE = ("__rejected", "__deleted", "__home", "__resnapshot")

# Arguments that name a function of DataFrames: for single batches, and for the whole stream.
TRANSFORM, STREAM_TRANSFORM = FUNCTIONS = ("transform", "stream_transform")

# Metadata columns of Iceberg's readers: Spark neither reads nor compacts a table with a column of such a name.
ICEBERG_COLUMNS = ("_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number")

# Airflow's limit of a key in its state.
_KEY_CHARACTERS = 512
# Refused in column names by Delta, unless the table maps columns.
REFUSED_CHARACTERS = " ,;{}()\n\t="

# Schemes of file systems that can't hold a Delta table.
_WITHOUT_DELTA = ("hdfs", "webhdfs", "viewfs")
# delta-rs decodes escapes twice, and takes a backslash for a slash; clients of stores leave out control characters.
_ODD_IN_DELTA = re.compile(r"%[0-9A-Fa-f]{2}|[\\\x00-\x1f\x7f]")
_PART = re.compile(r"[^\s./\\\"'`;]+")


def is_own_branch(branch: str) -> bool:
    """Return whether a name is an engine's own branch, and not main in any spelling.

    Some catalogs distinguish `MAIN`, or `refs/heads/main`, from `main`, and others don't.
    """
    is_main = branch.lower().removeprefix("refs/").removeprefix("heads/") == "main"
    return bool(branch) and branch == branch.strip() and not is_main


def check_branch(argument: str, branch: object) -> None:
    """Refuse main as an engine's branch, and a name with blanks around it. Raises InvalidArgument."""
    if not is_own_branch(str(branch)):
        problem = f"{branch!r} can't be the branch: the engine's rows would show before the ledger has them."
        raise InvalidArgument(argument, problem, "Leave it out, or give another name.")


def check_topic(topic: str) -> str:
    """Return a topic's name if valid in Kafka. Raises InvalidArgument."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic or "") or topic in (".", ".."):
        raise InvalidArgument(
            "topic", f"{topic!r} is not a topic's name.", "Kafka takes letters, digits, '.', '_', '-'."
        )
    return topic


def check_table_name(table: str, argument: str = "table") -> str:
    """Return a table's name of the form namespace.table. Raises InvalidArgument."""
    parts = (table or "").split(".")
    if len(parts) < 2 or not all(_PART.fullmatch(part) for part in parts):
        plain = re.fullmatch(r"\w+", table or "")
        raise InvalidArgument(
            argument,
            f"{table!r} is not of the form namespace.table.",
            f'Write its namespace, too: "lake.{table}".' if plain else 'Write such as "lake.clickstream".',
        )
    return table


def check_location(table: str, argument: str = "table") -> str:
    """Return the location of a Delta table, an absolute path or a URI. Raises InvalidArgument.

    Refused are characters that readers of Delta take differently, placeholders, relative paths, HDFS, and a
    location with a password, a query or a fragment.
    """
    parts = urlsplit(table or "")
    if ambiguous := _ODD_IN_DELTA.search(unquote(table) if parts.scheme == "file" else table or ""):
        raise InvalidArgument(
            argument,
            f"{table!r}: readers of Delta don't agree on where it is: {ambiguous[0]!r} is in it.",
            "Take a place without it.",
        )
    if "{" in (table or "") or "}" in (table or ""):
        raise InvalidArgument(
            argument, f"{table!r}: a Delta table's place has no placeholders.", "Give each topic a task of its own."
        )
    if (parts.scheme and not parts.path.strip("/")) or (not parts.scheme and not (table or "").startswith("/")):
        raise InvalidArgument(
            argument,
            f'{table!r} is not a place of a Delta table (table_format="delta").',
            'Write a URI or an absolute path: "s3://bucket/lake/clicks", "/lake/clicks".',
        )
    if parts.scheme in _WITHOUT_DELTA:
        raise InvalidArgument(
            argument,
            f"{table!r}: a version of a Delta table's log can't be written to HDFS on condition that it is missing.",
            "Take an Iceberg table, or a Delta table on a disk or in an object store.",
        )
    if parts.query or parts.fragment or parts.password:
        raise InvalidArgument(
            argument,
            "has a password in it, or a '?' or '#', behind which there would be a query or a fragment.",
            "Keys belong in the connection; take a place without '?' and '#'.",
        )
    return table


def check_group(group: str) -> str:
    """Return a consumer group's name. Raises InvalidArgument."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", group or ""):
        raise InvalidArgument(
            "consumer_group",
            f"{group!r} is not a name of letters, digits, '.', '_' and '-'.",
            "It names the ledger in the table and the group in Kafka.",
        )
    return group


def check_function(name: str, argument: str) -> str:
    """Return a function's name of the form module:function. Raises InvalidArgument."""
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", name or ""):
        raise InvalidArgument(
            argument, f"{name!r} is not of the form module:function.", 'Write such as "enrichment:with_categories".'
        )
    return name


def state_key(name: str) -> str:
    """Return the key of a name in Airflow's state; a longer name is cut, with a digest, so that keys stay different."""
    if len(name) <= _KEY_CHARACTERS:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    return f"{name[: _KEY_CHARACTERS - len(digest) - 1]}#{digest}"


# The column that `unknown_fields="rescue"` fills: the fields without a column, as JSON text.
RESCUED = "_rescued"
