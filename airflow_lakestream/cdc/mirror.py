"""A mirror as a sink: change events are taken, and what they come to is merged into the table with the ledger.

The protocol of a landing stays what it is: plan, guard, one commit with rows and ledger, the schema's change with it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import pyarrow as pa

from airflow_lakestream.cdc.checks import follow
from airflow_lakestream.cdc.columns import OF_EVENTS
from airflow_lakestream.cdc.design import MirrorDesign
from airflow_lakestream.cdc.events.decoder import event_columns
from airflow_lakestream.cdc.events.provenance import expanded
from airflow_lakestream.cdc.events.taken import TakenEvents, columns_of_events
from airflow_lakestream.cdc.events.widening import grown
from airflow_lakestream.cdc.merge.newest import Newest
from airflow_lakestream.core.ledger import Landing, TopicIdentity
from airflow_lakestream.core.ports import SharedSink, TableState
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.wrapped import WrappedSharedSink

log = logging.getLogger(__name__)


class MirrorTable(SharedSink, Protocol):
    """The table of a mirror, in whatever format it is: the sink of a table, which can merge.

    `refounds`: a mirror that is not there is founded anew by all events of its first commit.
    """

    refounds: bool

    def held(self) -> tuple[Mapping[str, str], pa.Schema] | None:
        """Look at the table, and return its properties and columns; None where there is none."""

    def take(self, mirror: MirrorDesign) -> None:
        """Have the design of a mirror from now on."""

    def found(self, mirror: MirrorDesign, events: pa.Table) -> None:
        """Take the design for a table that is not there yet, whose first events these are."""

    @property
    def is_there(self) -> bool:
        """Whether there was a table at the last look, or commit."""

    @property
    def is_known(self) -> bool:
        """Whether its columns are known: it is there, or founded."""

    @property
    def columns(self) -> pa.Schema:
        """All columns, those included that the next commit adds."""

    def grow(self, wanted: pa.Schema) -> Sequence[str]:
        """Let the next commit give the table these columns, and widths; return all that it changes, in words.

        Raises Conflict, or what says that the table can't have them.
        """

    def target_of_events(self, columns: pa.Schema) -> Any:
        """Return the outline of a table that is nowhere, for executors to write events beside the mirror's files."""

    def events_in(self, handed: Mapping[str, Any]) -> Sequence[Any]:
        """Return the files that an executor wrote for it."""

    def read_events(self, file: Any) -> pa.Table:
        """Return the events of such a file."""

    def delete_events(self, files: Sequence[Any]) -> object:
        """Delete such files; never raises."""

    def merge(self, batch: Newest, mirror: MirrorDesign, landing: Landing) -> int:
        """Merge a batch into the table, in one commit with the ledger; return the commit's id."""


class Mirror(WrappedSharedSink):
    """`core.ports.SharedSink` of a mirror. Rows written are change events; see `cdc.events.decoder`."""

    takes_records = False

    def __init__(self, table: MirrorTable, name: str, design: MirrorDesign) -> None:
        super().__init__(table)
        self.table = table
        self.name = name
        # As it was asked for, and as the table and the events have it.
        self._asked = self.design = design
        self._taken = TakenEvents()

    def load(self, run_id: str) -> TableState:
        """Look at the table anew; the schema is that of the events to decode."""
        held = self.table.held()
        self.design = self._asked if held is None else self._asked.of_table(self.name, *held)
        self.table.take(self.design)
        state = self.table.load(run_id)
        return state if state.schema is None else replace(state, schema=event_columns(state.schema))

    def write(self, rows: pa.Table, identity: TopicIdentity) -> None:
        """Take events for the next commit."""
        rows = expanded(rows)
        self._taken.rows.append(rows)
        if not self.table.is_known:
            self._found(rows)

    def outline(self) -> Any:
        """Return what executors need to write events; they lie where the mirror's own files do."""
        return self.table.target_of_events(self._columns_of_events())

    def take_over(self, files: Mapping[str, Any]) -> None:
        """Take events that an executor wrote."""
        self._taken.files += self.table.events_in(files)

    def commit(self, landing: Landing) -> int:
        """Merge what the events taken come to, in one commit with the ledger."""
        events = self._taken.joined(self.table.read_events, self._columns_of_events(), self.name)
        if not self.table.is_there and (self.table.refounds or self._asked.table.schema is not None):
            # The mirror's own columns come with its key, beside those that were given.
            self._found(events)
        self.design, batch = follow(self.design, events, self.name, landing)
        self.table.take(self.design)
        self._grow(events.schema)
        done = self.table.merge(batch, self.design, landing)
        self.table.delete_events(self._taken.files)
        self._taken.forget()
        return done

    def replace(self, landing: Landing) -> tuple[int, Landing]:
        """Refuse: rows of a mirror are no records."""
        raise InvalidArgument("replace", f"{self.name} is a mirror: its rows are states, not records.")

    def discard(self) -> None:
        """Delete what was taken since the last commit; never raises."""
        if self._taken.files:
            self.table.delete_events(self._taken.files)
        self._taken.forget()
        super().discard()

    def _found(self, events: pa.Table) -> None:
        self.design = self._asked.of_rows(events)
        self.table.found(self.design, events)

    def _columns_of_events(self) -> pa.Schema:
        return columns_of_events(self.table.columns, with_key=self._asked.key is None)

    def _grow(self, events: pa.Schema) -> None:
        """Let the table have the columns, and the widths, that the events have."""
        own, beside = self.table.columns, (*self.design.table.metadata.names, *OF_EVENTS)
        seen = pa.schema([field for field in events if field.name not in beside])
        wanted = pa.schema([field for field in grown(own, seen) if field.name in seen.names])
        if changes := self.table.grow(wanted):
            log.info("The schema of %s will be changed with the next commit: %s", self.name, "; ".join(changes))
