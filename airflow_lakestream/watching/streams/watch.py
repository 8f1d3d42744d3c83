"""The look for landings without an event yet, of a table in any format."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from airflow_lakestream.core.event_cursor import EventCursor
from airflow_lakestream.core.policies import MissingPolicy
from airflow_lakestream.lakes.formats import LakeCapability, LakeFormat, lake_of
from airflow_lakestream.tables.coordinates import iso
from airflow_lakestream.watching.asking import LookConnections, LookOutcome, LookQuestion, NotThere, look_safely
from airflow_lakestream.watching.checks import make_check
from airflow_lakestream.watching.source import OPENED, ask_table, delta_streams
from airflow_lakestream.watching.streams.landing_events import LandingEvent, NewLandings

# A step of a look: asks questions, and returns a result.
Step = Generator[LookQuestion, Any, Any]


@dataclass(frozen=True)
class LandingWatch:
    """The table with the landings to emit.

    :param kafka_conn_id: used to find out whether a covered time is complete; None: completeness is not checked.
    """

    table: str
    consumer_group: str | None = None
    iceberg_conn_id: str = "iceberg_default"
    storage_conn_id: str | None = None
    kafka_conn_id: str | None = None

    @property
    def subject(self) -> str:
        """Name of the table."""
        return f"{self.iceberg_conn_id}/{self.table}"

    @property
    def lake(self) -> LakeFormat:
        """The format of the table."""
        return lake_of(self.table)

    def cursor(self, connections: LookConnections) -> Step:
        """Return the cursor after all landings up to now.

        Without a table it is the first cursor: all landings of a table created later are new.
        """
        try:
            streams = yield from self._streams(connections)
        except NotThere:
            return EventCursor()
        return (yield LookQuestion((*self._key, "cursor"), streams.cursor, keep=0.0))

    def after(self, connections: LookConnections, cursor: EventCursor, most: int) -> Step:
        """Return `NewLandings`: at most `most` landings after a cursor.

        `head` is None if more landings remain. Raises NotThere, the errors in the streams' `problems`, and errors of
        the catalog or the store.
        """
        streams = yield from self._streams(connections)
        answer = partial(streams.after, cursor, self.consumer_group)
        new_landings: NewLandings = yield LookQuestion((*self._key, cursor, self.consumer_group), answer, keep=0.0)
        landings = []
        for one in new_landings.landings[:most]:
            landings.append((yield from self._with_completeness(connections, one)))
        return NewLandings(tuple(landings), new_landings.head if len(new_landings.landings) <= most else None)

    @property
    def _key(self) -> tuple[Any, ...]:
        return ("landings", self.iceberg_conn_id, self.storage_conn_id, self.table)

    def _streams(self, connections: LookConnections) -> Step:
        """Open the table. Returns `TableStreams`; raises NotThere."""
        if LakeCapability.CATALOG in self.lake.can:
            return self.lake.part("books")((yield from ask_table(connections, self.iceberg_conn_id, self.table)))
        conn_id = self.storage_conn_id
        storage = yield LookQuestion(("delta", conn_id), lambda: connections.delta(conn_id), keep=OPENED)
        return (yield LookQuestion((*self._key, "open"), partial(delta_streams, storage, self.table), keep=0.0))

    def _with_completeness(self, connections: LookConnections, one: LandingEvent) -> Step:
        """Set `complete_through` of the event to the end of the landing's covered time, if complete.

        The event stays unchanged without a covered time, without a Kafka connection, and for a Delta table.
        """
        if one.until_ms is None or self.kafka_conn_id is None or LakeCapability.COMPLETENESS not in self.lake.can:
            return one
        arguments = {
            "table": self.table,
            "iceberg_conn_id": self.iceberg_conn_id,
            "kafka_conn_id": self.kafka_conn_id,
            "consumer_group": one.event["consumer_group"],
            "complete_through": one.until_ms,
            "missing": MissingPolicy.WAIT,
        }
        check = make_check("freshness", arguments)
        verdict = yield from look_safely(check, connections, 0.0)
        through = iso(one.until_ms) if verdict.outcome is LookOutcome.DONE else None
        return replace(one, event={**one.event, "complete_through": through})
