"""The rows that a mirror keeps for a key: whether deleted rows and old versions stay, and in which further columns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, auto

import pyarrow as pa

from airflow_lakestream.cdc.columns import BEGIN, DELETED, IS_CURRENT, TIME, VALID_FROM, VALID_TO, version_schema

_TIME = pa.timestamp("us", "UTC")


class RowStrategy(StrEnum):
    """Strategy for the rows of a key, by which the table's design, the lookup and the merge treat deletions."""

    # The newest row, unless it is deleted.
    CURRENT = auto()
    # The newest row; a deleted row is marked.
    MARKED = auto()
    # A row of each version.
    HISTORY = auto()
    # A row of each version, and a version begins only if one of some columns changes.
    CHANGES = auto()

    @classmethod
    def of(cls, *, soft_delete: bool, history: bool = False, by_columns: bool = False) -> RowStrategy:
        """Return the strategy for the arguments of a mirror; `soft_delete` and `history` are not both true.

        :param by_columns: whether a version begins only if one of some columns changes.
        """
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
        """The columns next to those of row and version: a mark of deletion, or the validity of a version."""
        if self.keeps_versions:
            begin = [*version_schema(BEGIN), (TIME, pa.int64())] if self is RowStrategy.CHANGES else []
            return pa.schema([(VALID_FROM, _TIME), (VALID_TO, _TIME), (IS_CURRENT, pa.bool_()), *begin])
        return pa.schema([(DELETED, pa.bool_())] if self.keeps_deleted else [])

    @property
    def columns(self) -> pa.Schema:
        """All columns of a mirror next to the row's: those of the version, and `further`."""
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
    :param of_log: whether records have positions in a database's log: a record that is sent again has its old position.
    :param cuts: the truncations of the batch, in order.
    :param moved: the indices of deletions whose rows the next batch may need, under another key.
    """

    columns: tuple[str, ...] = ()
    of_log: bool = False
    cuts: tuple[VersionCut, ...] = ()
    moved: tuple[int, ...] = ()
