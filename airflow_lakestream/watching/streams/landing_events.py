"""Landings of a table as events, in the order of the table's history. Commits of other writers have no event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.table import Table

from airflow_lakestream.core.event_cursor import EventCursor, head_cursor, landing_in, pending_snapshots
from airflow_lakestream.core.landing.report import triples
from airflow_lakestream.core.ledger import Landing, LandingEngine
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.tables.coordinates import iso
from airflow_lakestream.tables.rejects.settlement import names_of
from airflow_lakestream.tables.schema.change import changes_in


@dataclass(frozen=True, slots=True)
class LandingEvent:
    """Event of a landing, and the cursor after the event.

    `until_ms` is the end of the landing's covered time in milliseconds since the epoch, or None without covered time.
    """

    cursor: EventCursor
    event: Mapping[str, Any]
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class NewLandings:
    """Landings after a cursor, oldest first.

    `head` is the cursor to keep after all events are emitted. It is None if the cursor must stay at the last event:
    if more landings remain, or if the table was rolled back to before the cursor.
    """

    landings: tuple[LandingEvent, ...] = ()
    head: EventCursor | None = None


def event_of(
    cursor: EventCursor,
    group: str,
    landing: Landing,
    *,
    table: str,
    at_ms: int,
    schema_changes: Sequence[str],
    is_cut: bool = False,
) -> LandingEvent:
    """Return the event of a landing; see docs/events.md.

    `complete_through` is None here: only a look at Kafka can set it.

    :param cursor: the cursor after this landing, with the sequence number and the id of its snapshot.
    :param at_ms: time of the landing's commit, in milliseconds since the epoch.
    :param is_cut: whether earlier landings may have expired without an event.
    """
    covered = sorted({part for entry in landing.topics.values() for part in entry.covered})
    event = {
        "table": table,
        "consumer_group": group,
        "landing_id": landing.landing_id,
        "run_id": landing.run_id,
        "engine": None if landing.engine is None else LandingEngine(landing.engine).value,
        "sequence": cursor.sequence,
        # As text: browsers round 64-bit numbers.
        "snapshot_id": str(cursor.snapshot_id),
        "at": iso(at_ms),
        "rows": landing.rows,
        "rejected": landing.counts.rejected,
        "ranges": _by_topic(
            {identity.topic: entry.landed | entry.replaced for identity, entry in landing.topics.items()}
        ),
        "lost": _by_topic({identity.topic: entry.lost for identity, entry in landing.topics.items()}),
        "replaces": any(entry.replaced for entry in landing.topics.values()),
        "covered": [[iso(start), iso(end)] for start, end in covered],
        "complete_through": None,
        "schema_changes": list(schema_changes),
        "earlier_expired": is_cut,
    }
    return LandingEvent(cursor, event, max((end for _, end in covered), default=None))


def landings_after(table: Table, name: str, cursor: EventCursor, consumer_group: str | None = None) -> NewLandings:
    """Return the landings of main's history after a cursor.

    If landings before the oldest event may have expired, this event has `earlier_expired`.

    :param name: the table, as users write it.
    :param consumer_group: the group whose landings count; None: the landings of all groups.

    Raises UnreadableLedger, FormatVersionTooOld.
    """
    metadata = table.metadata
    if metadata.format_version < 2:
        raise ledger_store.FormatVersionTooOld(name)
    facts, table_id = ledger_store.facts_of(metadata), str(metadata.table_uuid)
    names = None if consumer_group is None else names_of(metadata.properties, consumer_group)
    history = pending_snapshots(facts, cursor.of(table_id))
    events: list[LandingEvent] = []
    for facts_of_snapshot in history.snapshots:
        pair = landing_in(facts, facts_of_snapshot)
        if pair is None or (names is not None and pair[0] not in names):
            continue
        snapshot = metadata.snapshot_by_id(facts_of_snapshot.snapshot_id)
        assert snapshot is not None, "its facts come from the same metadata"
        event = event_of(
            EventCursor(facts_of_snapshot.sequence_number, facts_of_snapshot.snapshot_id, table_id),
            *pair,
            table=name,
            at_ms=snapshot.timestamp_ms,
            schema_changes=changes_in(snapshot),
            is_cut=history.is_cut and not events,
        )
        events.append(event)
    return NewLandings(tuple(events), head_cursor(facts, table_id) if history.leads_on else None)


def _by_topic(ranges: Mapping[str, RangeSet]) -> dict[str, list[list[int]]]:
    return {topic: triples(topic_ranges) for topic, topic_ranges in sorted(ranges.items()) if topic_ranges}
