"""Names that come from users, checked where they come in."""

from __future__ import annotations

import re

from airflow_lakestream.exceptions import InvalidArgument

# The metadata columns that a row gets when nobody says otherwise.
DEFAULT_METADATA = ("topic", "partition", "offset", "timestamp")

# Tables that stand beside others are named after them, with one of these behind: the rejected records of a table, the
# deleted keys of a mirror, the books of a fan-out, the rows of a mirror that are read anew.
REJECTED, DELETED, HOME, ANEW = BESIDE = ("__rejected", "__deleted", "__home", "__resnapshot")

_PART = re.compile(r"[^\s./\\\"'`;]+")


def check_topic(topic: str) -> str:
    """Return a topic's name if Kafka could have it. Raises InvalidArgument."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic or "") or topic in (".", ".."):
        raise InvalidArgument(
            "topic", f"{topic!r} is not a topic's name.", "Kafka takes letters, digits, '.', '_', '-'."
        )
    return topic


def check_table_name(table: str, argument: str = "table") -> str:
    """Return a table's name if it is namespace.table. Raises InvalidArgument."""
    parts = (table or "").split(".")
    if len(parts) < 2 or not all(_PART.fullmatch(part) for part in parts):
        raise InvalidArgument(argument, f"{table!r} is not of the form namespace.table.", 'Write "lake.clickstream".')
    return table


# The column that `unknown_fields="rescue"` fills: what of a record has no column, as JSON text.
RESCUED = "_rescued"
