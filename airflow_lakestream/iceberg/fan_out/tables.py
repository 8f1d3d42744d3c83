"""Sinks of a fan-out's tables: the home, with books and without rows, and the targets."""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
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
    Fenced,
    HomeNotes,
    NotItsOwn,
    Properties,
    Stamp,
    fingerprint_of,
    landed_by_fan_out,
    landings_of,
    owner_of,
    stamped,
)
from airflow_lakestream.iceberg.fitness import NotIceberg, UnreadableTable
from airflow_lakestream.iceberg.replace.takeout import Finder
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.tables.coordinates import Offsets
from airflow_lakestream.tables.schema.columns import payload_schema

log = logging.getLogger(__name__)

# A catalog's errors about a single table: it is not an Iceberg table, its metadata are gone or of another kind, or the
# connection may not read it.
_OF_ONE_TABLE = (BadRequestError, ForbiddenError, NotIceberg, UnreadableTable)


class TableTakenMeanwhile(Conflict):
    """Free table at this run's look, filled by another stream since."""

    def __init__(self, table: str, reason: str) -> None:
        super().__init__(f"{table} {reason} since this run looked at it.")


class _PropertiesSink(IcebergSink, ABC):
    """Sink with table properties in each commit, and further entries in the snapshot's summary."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.builders = [partial(stamped, stamp=self._stamp, look=self._look)]

    @abstractmethod
    def _stamp(self, properties: Properties) -> Properties:
        """Return the properties for the next commit; raises a LakestreamError to refuse the commit."""

    def check_part(self, table: Table) -> None:
        """Accept the table: this is the fan-out."""

    def _look(self, table: Table) -> None:
        """Check the head of a commit; raises a LakestreamError to refuse the head."""

    @property
    def properties(self) -> Properties:
        """The table's properties at the last look or commit; empty without a table."""
        return {} if self._table is None else self._table.metadata.properties


class HomeSink(_PropertiesSink):
    """Home of a fan-out: the ledger covers the whole fan-out, the columns are common to all targets.

    `change` returns the properties to set in the next commit, and may refuse the commit. `rows` are the rows by
    table of the landing, for the summary of the home's snapshot.
    """

    change: Stamp
    rows: Counter[str] = Counter()

    def load(self, run_id: str) -> TableState:
        """Load the table again; see `IcebergSink.load`. Raises InvalidArgument if the table is not a home."""
        state = super().load(run_id)
        if state.exists and BOOKS not in self.properties:
            raise InvalidArgument(
                "home_table",
                f"{self._name} is there and is not the home of a fan-out.",
                "Give another name; the home is created when missing.",
            )
        return state

    @property
    def books(self) -> HomeNotes | None:
        """The notes of the home at the last look or commit, or None if the table is missing."""
        return HomeNotes.of(self.properties)

    def take_schema(self, schema: Schema) -> None:
        """Set the columns of this payload, for a missing home."""
        self._design = replace(self._design, schema=schema)

    def columns(self, given: Schema | None) -> tuple[Schema, pa.Schema]:
        """Return the payload's columns in every target, and the columns for decoding rows."""
        design = self._target(None).schema()
        names = self._design.metadata.names
        payload = Schema(*(f for f in design.fields if f.name not in names and not f.name.startswith("_kafka_")))
        return payload, payload_schema(design, names, given)

    def rows_of(self, snapshot_id: int) -> Counter[str]:
        """Return the rows by table in a landing of the home; empty once the snapshot has expired."""
        snapshot = None if self._table is None else self._table.metadata.snapshot_by_id(snapshot_id)
        return Counter(json.loads(ledger_store.summary_of(snapshot).get(ROWS, "{}")) if snapshot else {})

    def _stamp(self, properties: Properties) -> Properties:
        return self.change(properties)

    def summary(self, landing: Landing) -> Mapping[str, str]:
        """Return the entries of the snapshot's summary, with the rows of each table."""
        rows = {ROWS: json.dumps(dict(sorted(self.rows.items())), separators=(",", ":"))} if self.rows else {}
        return {**super().summary(landing), **rows}


class TargetSink(_PropertiesSink):
    """Target of a fan-out. Commits are refused once another configuration has fenced the table.

    `known`: the home has noted it, so it may hold records of a run that died. `fences`: the next commit is the fence.
    `read` are the offsets that a replace may remove: all offsets that were read again, even if their rows go to another
    table now.
    """

    home = ""
    fingerprint = ""
    known = False
    fences = False
    read: Offsets | None = None

    def load(self, run_id: str) -> TableState:
        """Load the table again; see `IcebergSink.load`. Raises NotItsOwn for a table not made by this fan-out."""
        try:
            state = super().load(run_id)
        except _OF_ONE_TABLE as e:
            if self.known:
                raise
            raise NotItsOwn(self._name, f"the catalog does not give out ({e or type(e).__name__})") from e
        except NotItsOwn:
            raise
        except LakestreamError as e:
            # The fan-out's own tables may hold records already: their errors are for people to correct.
            if self._table is None or self.member is not None or not isinstance(e, Terminal):
                raise
            raise NotItsOwn(self._name, f"does not fit: {e}") from e
        if not state.exists and self._is_view():
            raise NotItsOwn(self._name, "is a view")
        return state

    @property
    def takes_overlap(self) -> bool:
        """Whether offsets of another group may be landed here, too."""
        return self._allow_group_overlap

    @property
    def member(self) -> str | None:
        """The fingerprint of the configuration with the right to write the table, or None before the first."""
        return self.properties.get(MEMBER + self.home)

    def landed_by(self, topic: str) -> Mapping[str | None, RangeSet]:
        """Return the landed ranges by fingerprint of the configuration, as far back as the metadata goes.

        The key None is for landings outside of fan-outs.
        """
        found: dict[str | None, RangeSet] = {}
        for landing in () if self._table is None else landings_of(self._table, self._group):
            key = fingerprint_of(landing.run_id)
            for identity, entry in landing.topics.items():
                if identity.topic == topic:
                    found[key] = found.get(key, RangeSet()) | entry.landed | entry.replaced
        return found

    def check_part(self, table: Table) -> None:
        """Refuse a table outside of this fan-out and of further fan-outs of the group. Raises NotItsOwn."""
        if (owner := self._owner(table)) is not None:
            raise NotItsOwn(self._name, owner)

    def _look(self, table: Table) -> None:
        if (owner := self._owner(table)) is not None:
            raise TableTakenMeanwhile(self._name, owner)

    def _owner(self, table: Table) -> str | None:
        if MEMBER + self.home in table.metadata.properties or landed_by_fan_out(table, self._group):
            return None
        return owner_of(table)

    def _is_view(self) -> bool:
        try:
            return self._catalog.view_exists(self._name)
        except Exception as e:  # noqa: BLE001  # catalogs without views refuse in many ways
            log.debug("%s: the catalog does not report whether it is a view: %r", self._name, e)
            return False

    def _stamp(self, properties: Properties) -> Properties:
        key = MEMBER + self.home
        if not self.fences and properties.get(key, self.fingerprint) != self.fingerprint:
            raise Fenced(self._name)
        return {key: self.fingerprint}

    def finder(self, make: Callable[..., Finder], ranges: RangeSet, files: Sequence[DataFile]) -> Finder:
        """Return the search for rows removed by a replace, by the offsets that the fan-out has read."""
        return make(ranges, files, self._write_files, _read_again=self.read)
