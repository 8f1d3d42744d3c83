"""The two kinds of tables of a fan-out, as sinks: the home, which has books and no rows, and the targets."""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import BadRequestError, ForbiddenError
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.core.ports import Conflict, TableState
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.fan_out.books import (
    BOOKS,
    MEMBER,
    ROWS,
    Books,
    Fenced,
    NotItsOwn,
    Properties,
    Stamp,
    StampingGuard,
    StampingReplaceGuard,
    fingerprint_of,
    landed_by_fan_out,
    landings_of,
    owner_of,
)
from airflow_lakestream.iceberg.fitness import UnreadableTable
from airflow_lakestream.iceberg.replace.takeout import Finder
from airflow_lakestream.iceberg.sink import IcebergSink, Kind, NotIceberg
from airflow_lakestream.tables.coordinates import Offsets
from airflow_lakestream.tables.schema.columns import payload_schema

log = logging.getLogger(__name__)

# What a catalog answers where the trouble is one table, not the catalog: it is none of Iceberg's, its metadata are gone
# or of another make, or the connection may not look at it.
_OF_ONE_TABLE = (BadRequestError, ForbiddenError, NotIceberg, UnreadableTable)


class TakenMeanwhile(Conflict):
    """Another stream filled a table after this run had looked at it, and found it free."""

    def __init__(self, table: str, why: str) -> None:
        super().__init__(f"{table} {why} since this run looked at it.")


class _StampingSink(IcebergSink, ABC):
    """A sink whose commits set table properties, and may say more in the snapshot's summary."""

    _append_guard = StampingGuard
    _replace_guard = StampingReplaceGuard

    @abstractmethod
    def _stamp(self, properties: Properties) -> Properties:
        """Return the properties that the next commit sets; raises a LakestreamError to refuse it."""

    def _check_part(self, table: Table) -> None:
        """Take it: this is the fan-out."""

    def _look(self, table: Table) -> None:
        """Refuse the head that a commit is about to land on; raises a LakestreamError."""

    @property
    def properties(self) -> Properties:
        """The table's properties as they were at the last look or commit; none for a table that is not there."""
        return {} if self._table is None else self._table.metadata.properties

    def _guard(self, landing: Landing, kind: Callable[..., Kind], **facts: Any) -> Kind:
        guard = super()._guard(landing, kind, **facts)
        assert isinstance(guard, StampingGuard), "no other is used here"
        guard.stamp, guard.look = self._stamp, self._look
        return guard


class HomeSink(_StampingSink):
    """The home: its ledger says what the whole fan-out has landed, its columns are those that all targets have."""

    change: Stamp
    rows: Counter[str] = Counter()

    def load(self, run_id: str) -> TableState:
        """Look at the table again; see `IcebergSink.load`. Raises InvalidArgument for a table that is no home."""
        state = super().load(run_id)
        if state.exists and BOOKS not in self.properties:
            raise InvalidArgument(
                "home_table",
                f"{self._name} is there and is not the home of a fan-out.",
                "Give another name; the home is created when missing.",
            )
        return state

    @property
    def books(self) -> Books | None:
        """The books as they were at the last look or commit."""
        return Books.of(self.properties)

    def take_schema(self, schema: Schema) -> None:
        """Create the home with the columns of this payload, should it be missing."""
        self._design = replace(self._design, schema=schema)

    def columns(self, given: Schema | None) -> tuple[Schema, pa.Schema]:
        """Return the payload's columns, as every target has them, and as rows are decoded into them."""
        whole = self._target(None).schema()
        names = self._design.metadata.names
        payload = Schema(*(f for f in whole.fields if f.name not in names and not f.name.startswith("_kafka_")))
        return payload, payload_schema(whole, names, given)

    def rows_of(self, snapshot_id: int) -> Counter[str]:
        """Return the rows by table that a landing of the home tells of; none once its snapshot has expired."""
        snapshot = None if self._table is None else self._table.metadata.snapshot_by_id(snapshot_id)
        return Counter(json.loads(ledger_store.summary_of(snapshot).get(ROWS, "{}")) if snapshot else {})

    def _stamp(self, properties: Properties) -> Properties:
        return self.change(properties)

    def _summary(self, landing: Landing) -> Mapping[str, str]:
        rows = {ROWS: json.dumps(dict(sorted(self.rows.items())), separators=(",", ":"))} if self.rows else {}
        return {**super()._summary(landing), **rows}


class TargetSink(_StampingSink):
    """A table of rows. Its commits are refused once another configuration has fenced it off.

    `known` says that the home has written it down, so that it may hold records of a run that died. `fences` says that
    the next commit is the one that fences. `read` are the offsets that a replace may take out: all those that were read
    again, wherever their rows go now.
    """

    home = ""
    fingerprint = ""
    known = False
    fences = False
    read: Offsets | None = None

    def load(self, run_id: str) -> TableState:
        """Look at the table again; see `IcebergSink.load`. Raises NotItsOwn for one that this fan-out did not make."""
        try:
            state = super().load(run_id)
        except _OF_ONE_TABLE as e:
            if self.known:
                raise
            raise NotItsOwn(self._name, f"the catalog does not give out ({e or type(e).__name__})") from e
        except NotItsOwn:
            raise
        except LakestreamError as e:
            # Its own tables may hold a record already: what is wrong with them is for people to mend.
            if self._table is None or self.member is not None or not isinstance(e, Terminal):
                raise
            raise NotItsOwn(self._name, f"does not fit: {e}") from e
        if not state.exists and self._is_view():
            raise NotItsOwn(self._name, "is a view")
        return state

    @property
    def takes_overlap(self) -> bool:
        """Whether offsets may be landed that another group has landed here."""
        return self._allow_group_overlap

    @property
    def member(self) -> str | None:
        """The fingerprint under which the home's runs may write the table; None where none has yet."""
        return self.properties.get(MEMBER + self.home)

    def landed_by(self, topic: str) -> Mapping[str | None, RangeSet]:
        """Return the ranges that landings brought, by their configuration's fingerprint, as far as metadata shows them.

        None stands for landings that are of no fan-out.
        """
        found: dict[str | None, RangeSet] = {}
        for landing in () if self._table is None else landings_of(self._table, self._group):
            key = fingerprint_of(landing.run_id)
            for identity, entry in landing.topics.items():
                if identity.topic == topic:
                    found[key] = found.get(key, RangeSet()) | entry.landed | entry.replaced
        return found

    def _check_part(self, table: Table) -> None:
        """Refuse a table that is not of this fan-out, nor of another one of its group. Raises NotItsOwn."""
        if (why := self._whose(table)) is not None:
            raise NotItsOwn(self._name, why)

    def _look(self, table: Table) -> None:
        if (why := self._whose(table)) is not None:
            raise TakenMeanwhile(self._name, why)

    def _whose(self, table: Table) -> str | None:
        if MEMBER + self.home in table.metadata.properties or landed_by_fan_out(table, self._group):
            return None
        return owner_of(table)

    def _is_view(self) -> bool:
        try:
            return self._catalog.view_exists(self._name)
        except Exception as e:  # noqa: BLE001  # catalogs without views say so in many ways
            log.debug("%s: the catalog does not say whether it is a view: %r", self._name, e)
            return False

    def _stamp(self, properties: Properties) -> Properties:
        key = MEMBER + self.home
        if not self.fences and properties.get(key, self.fingerprint) != self.fingerprint:
            raise Fenced(self._name)
        return {key: self.fingerprint}

    def _finder(self, ranges: RangeSet, files: Sequence[DataFile]) -> Finder:
        return Finder(ranges, files, self._write_files, _read_again=self.read)
