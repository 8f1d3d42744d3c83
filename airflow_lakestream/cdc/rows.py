"""The rows that a mirror has for a key: what a deletion does to them, and which columns they have next to the row's."""

from __future__ import annotations

from enum import StrEnum, auto

import pyarrow as pa

from airflow_lakestream.cdc.columns import DELETED, IS_CURRENT, VALID_FROM, VALID_TO, version_schema

_TIME = pa.timestamp("us", "UTC")


class RowStrategy(StrEnum):
    """Rows of a key: the newest one, also if it is deleted, or one of each version.

    The merge, the lookup, and the table's design ask it, and know nothing else about deletions.
    """

    CURRENT = auto()
    MARKED = auto()
    HISTORY = auto()

    @classmethod
    def of(cls, *, soft_delete: bool, history: bool = False) -> RowStrategy:
        """Return the strategy for settings, of which at most one is true."""
        return cls.HISTORY if history else cls.MARKED if soft_delete else cls.CURRENT

    @property
    def keeps_deleted(self) -> bool:
        """Whether a deleted row stays, marked."""
        return self is RowStrategy.MARKED

    @property
    def keeps_versions(self) -> bool:
        """Whether each version of a row stays."""
        return self is RowStrategy.HISTORY

    @property
    def further(self) -> pa.Schema:
        """The columns next to the row's own and the version."""
        if self.keeps_versions:
            return pa.schema([(VALID_FROM, _TIME), (VALID_TO, _TIME), (IS_CURRENT, pa.bool_())])
        return pa.schema([(DELETED, pa.bool_())] if self.keeps_deleted else [])

    @property
    def columns(self) -> pa.Schema:
        """The version, and the further columns."""
        return pa.schema([*version_schema(), *self.further])
