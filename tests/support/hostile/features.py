"""What the play does to a database. A name is taken out of `OFF` when what it stands for is supported."""

from __future__ import annotations

# Values and types: infinity, NaN, BC years, years over 9999, 24:00, numeric without precision, keys of uuid and floats.
TYPES = "types"
# Columns that come up within a batch, columns named as an event's members, or as the mirror's own.
COLUMNS = "columns"
# Keys that change inside an update, other primary keys, replica identity by an index, two tables in one topic,
# deferrable keys, partitions that go, generated columns, renamed columns.
KEYS = "keys"
# A connector that is made anew, and `lakestream mirror resnapshot`.
RESNAPSHOT = "resnapshot"

OFF: frozenset[str] = frozenset()


def is_on(feature: str) -> bool:
    """Tell whether the play may do it; what needs no feature is always done."""
    return feature not in OFF
