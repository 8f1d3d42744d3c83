"""The rows that a mirror has for a key: what a deletion does to them, and which columns they have next to the row's."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, auto

import pyarrow as pa

from airflow_lakestream.cdc.columns import BEGIN, DELETED, IS_CURRENT, TIME, VALID_FROM, VALID_TO, version_schema

_TIME = pa.timestamp("us", "UTC")


class RowStrategy(StrEnum):
    """Rows of a key: the newest one, also if it is deleted, or one of each version.

    The merge, the lookup, and the table's design ask it, and know nothing else about deletions.
    """

    CURRENT = auto()
    MARKED = auto()
    HISTORY = auto()
    # A version begins only if one of some columns changes.
    CHANGES = auto()

    @classmethod
    def of(cls, *, soft_delete: bool, history: bool = False, by_columns: bool = False) -> RowStrategy:
        """Return the strategy for settings; `soft_delete` and `history` are not both true."""
        if history:
            return cls.CHANGES if by_columns else cls.HISTORY
        return cls.MARKED if soft_delete else cls.CURRENT

    @property
    def keeps_deleted(self) -> bool:
        """Whether a deleted row stays, marked."""
        return self is RowStrategy.MARKED

    @property
    def keeps_versions(self) -> bool:
        """Whether each version of a row stays."""
        return self in (RowStrategy.HISTORY, RowStrategy.CHANGES)

    @property
    def further(self) -> pa.Schema:
        """The columns that a table of this kind adds to a row: a mark of deletion, or the validity of a version."""
        if self.keeps_versions:
            begun = [*version_schema(BEGIN), (TIME, pa.int64())] if self is RowStrategy.CHANGES else []
            return pa.schema([(VALID_FROM, _TIME), (VALID_TO, _TIME), (IS_CURRENT, pa.bool_()), *begun])
        return pa.schema([(DELETED, pa.bool_())] if self.keeps_deleted else [])

    @property
    def columns(self) -> pa.Schema:
        """The version, and the further columns."""
        return pa.schema([*version_schema(), *self.further])


@dataclass(frozen=True)
class VersionCut:
    """Truncation of the source, by its version and its time in microseconds: all earlier versions of rows end."""

    version: tuple[int, ...]
    time: int


@dataclass(frozen=True)
class HistoryRules:
    """Rules of a history for a batch.

    :param columns: a version begins only if one of these columns changes; empty if each record begins one.
    :param of_log: whether records have positions in a database's log, and may be sent again with the same ones.
    :param cuts: the truncations of the batch, in order.
    :param moved: the indices of deletions whose rows the next batch may need, under another key.
    """

    columns: tuple[str, ...] = ()
    of_log: bool = False
    cuts: tuple[VersionCut, ...] = ()
    moved: tuple[int, ...] = ()
