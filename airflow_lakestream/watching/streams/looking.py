"""Looks at streams: at the ledgers of tables, at topics, and at the checkpoints of Spark queries."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError

from airflow_lakestream.core.event_cursor import EventCursor
from airflow_lakestream.core.landing.plan import LogTruncated, TopicReplaced, TopicState
from airflow_lakestream.core.ledger import Ledger, TopicEntry
from airflow_lakestream.core.policies import MissingPolicy
from airflow_lakestream.core.source_types import LedgerTypes
from airflow_lakestream.driver.lease import read_lease
from airflow_lakestream.driver.progress import read_progress
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError
from airflow_lakestream.kafka.errors import KafkaUnavailable, TopicMissing
from airflow_lakestream.kafka.watch import KafkaWatch
from airflow_lakestream.lakes import LakeCapability, LakeFormat, lake_of
from airflow_lakestream.tables.coordinates import iso
from airflow_lakestream.watching.asking import (
    LookConnections,
    LookOutcome,
    LookQuestion,
    NotThere,
    Step,
    look_safely,
    make_check,
    run_now,
)
from airflow_lakestream.watching.causes import StreamCause, StreamReason
from airflow_lakestream.watching.lag.waiting import TopicBacklog, TopicLook, backlog_of, topics_of
from airflow_lakestream.watching.source import OPENED, ask_table, delta_streams, of_checkpoint
from airflow_lakestream.watching.streams.landing_events import LandingEvent, NewLandings
from airflow_lakestream.watching.streams.landings import TableStreams
from airflow_lakestream.watching.streams.status import SparkQuery, StreamFacts, StreamStatus, stream_status

if TYPE_CHECKING:
    from airflow_lakestream.delta.storage import DeltaStorage


# Errors that show a stream's state, like errors of its ledger. After any other error the state is unknown.
_STATE_ERRORS = (TopicReplaced, LogTruncated, TopicMissing)
# After this many requests without an answer a look sends no more: each takes its whole time-out.
_MOST_UNANSWERED = 3


class LakeConnections(Protocol):
    """Catalog and stores, opened on first use: without Iceberg tables no catalog is needed."""

    def catalog(self) -> Catalog:
        """Return the catalog of Iceberg tables. Raises InvalidArgument, CatalogUnavailable."""

    def storage(self) -> DeltaStorage:
        """Return the store of Delta tables. Raises InvalidArgument."""

    def properties(self, location: str) -> Mapping[str, str] | None:
        """Return the properties of a checkpoint's store, or None if the checkpoint is local.

        Raises InvalidArgument, CatalogUnavailable.
        """


@dataclass(frozen=True)
class StreamSearch:
    """The search for streams by tables, namespaces and checkpoints.

    :param tables: names as `namespace.table`, or paths or URIs of Delta tables.
    :param namespaces: namespaces, of which all tables with a ledger are looked at.
    :param checkpoints: checkpoints of Spark queries. For a query of a bundled app the table is looked at, too.
    :param group: the consumer group whose streams are looked at; None: all groups.
    :param landings_ms: return all landings of this many milliseconds up to now; None: the last few.
    """

    lakes: LakeConnections
    kafka: KafkaWatch
    tables: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    checkpoints: tuple[str, ...] = ()
    group: str | None = None
    landings_ms: int | None = None

    def streams(self, now_ms: int, max_age: float) -> list[StreamStatus]:
        """Return the status of all streams; see `status.stream_status` for the arguments.

        A stream whose look failed has the state UNSEEN. Raises InvalidArgument if a table or namespace of the search
        does not exist, NotThere if a checkpoint does not exist, and the errors of opening a catalog or a store.
        """
        topics = _LookTopics(self.kafka, int(now_ms - max_age * 1000))
        all_facts: list[StreamFacts] = []
        queries: list[SparkQuery] = []
        for location in self.checkpoints:
            all_facts += _or_problem(
                self._of_checkpoint(location, queries, topics), StreamFacts("", "", "", checkpoint=location)
            )
        for name in self._names(queries):
            own = [query for query in queries if query.inputs["table"] == name]
            # Without its catalog or store no table can be looked at, so that an error of opening it ends the look.
            lake = self.lakes.catalog() if LakeCapability.CATALOG in lake_of(name).can else self.lakes.storage()
            all_facts += _or_problem(self._of_table(lake, name, own, topics), StreamFacts(name, "", ""))
        return [stream_status(facts, now_ms, max_age) for facts in all_facts]

    def _names(self, queries: Iterable[SparkQuery]) -> list[str]:
        """Return the names of all tables to look at, each once."""
        names = dict.fromkeys(self.tables)
        for namespace in self.namespaces:
            try:
                names |= dict.fromkeys(
                    ".".join(name_parts) for name_parts in sorted(self.lakes.catalog().list_tables(namespace))
                )
            except NoSuchNamespaceError as e:
                raise InvalidArgument("namespace", f"there is no namespace {namespace!r} in the catalog.") from e
        return list(names | dict.fromkeys(query.inputs["table"] for query in queries))

    def _query(self, location: str) -> SparkQuery | None:
        """Return the query of a bundled app, or None for the query of another application, which has no lease."""
        properties = self.lakes.properties(location)
        lease = read_lease(location, properties)
        if lease is None or not lease.inputs.get("table"):
            return None
        return SparkQuery(location, lease, read_progress(location, properties))

    def _of_checkpoint(self, location: str, queries: list[SparkQuery], topics: _LookTopics) -> Iterator[StreamFacts]:
        """Add the query of a bundled app to `queries`, or yield the facts of another application's query.

        The table of a bundled app's query has the facts; another application's facts are those of the checkpoint.
        """
        if (query := self._query(location)) is not None:
            queries.append(query)
            return
        progress = of_checkpoint(location, self.lakes.properties(location))
        newest_ms = None if progress.newest_at is None else int(progress.newest_at * 1000)
        for topic in progress.topics:
            facts = StreamFacts("", "", topic, checkpoint=location, newest_ms=newest_ms)
            yield topics.compared(facts, lambda state: TopicBacklog(state, TopicEntry(), *progress.unread(state)))

    def _of_table(self, lake: Any, name: str, queries: list[SparkQuery], topics: _LookTopics) -> Iterator[StreamFacts]:
        """Yield the facts of the streams of a table, with the queries that land in the table."""
        streams: TableStreams | None = lake_of(name).part("books").at(lake, name)
        if streams is None:
            # A catalog also lists tables of other formats, and tables that are being dropped: these have no streams.
            if not queries and name in self.tables:
                raise InvalidArgument("table", lake_of(name).missing_text(lake, name))
            yield from (self._of_query(query, name) for query in queries)
            return
        other_queries = list(queries)
        for group in streams.groups():
            if self.group in (None, group):
                own = next((query for query in other_queries if query.inputs.get("group") == group), None)
                other_queries = [query for query in other_queries if query is not own]
                for facts in self._of_group(streams, name, group, topics):
                    yield replace(facts, query=own)
        yield from (
            self._of_query(query, name) for query in other_queries if self.group in (None, query.inputs.get("group"))
        )

    def _of_group(self, streams: TableStreams, name: str, group: str, topics: _LookTopics) -> Iterator[StreamFacts]:
        """Yield the facts of a group's streams: one for each topic of its ledger."""
        try:
            ledger = streams.ledger(group)
            since = None if self.landings_ms is None else int(time.time() * 1000) - self.landings_ms
            histories = {topic: streams.history(group, topic, since) for topic in topics_of(ledger)}
        except Exception as e:  # noqa: BLE001  # the error becomes the problem of this stream; the others go on
            yield StreamFacts(name, group, "", problem=_problem_of(e, streams.problems))
            return
        for topic, history in histories.items():
            stale = tuple(LedgerTypes(ledger.types).stale)
            facts = StreamFacts(name, group, topic, history, entry=_entry(ledger, topic), stale=stale)
            yield topics.compared(facts, lambda state: backlog_of(ledger, state, name))

    def _of_query(self, query: SparkQuery, name: str) -> StreamFacts:
        """Return the facts of a query without a landing."""
        return StreamFacts(name, query.inputs.get("group", ""), query.inputs.get("topic", ""), query=query)


@dataclass
class _LookTopics:
    """The topics of a look. Kafka is asked for each, until too many requests had no answer.

    `before_ms`: records from before this time, in milliseconds since the epoch, are overdue.
    """

    kafka: KafkaWatch
    before_ms: int
    unanswered: list[KafkaUnavailable] = field(default_factory=list)

    def compared(self, facts: StreamFacts, read_backlog: Callable[[TopicState], TopicBacklog]) -> StreamFacts:
        """Return the facts with the backlog in the stream's topic, or with the problem of an error.

        After `_MOST_UNANSWERED` requests without an answer Kafka is not asked any more: the last error is the problem.

        :param read_backlog: returns the backlog for the topic's present state.
        """
        try:
            if len(self.unanswered) >= _MOST_UNANSWERED:
                raise self.unanswered[-1]
            backlog = read_backlog(self.kafka.topic(facts.topic))
            look = TopicLook("", self.kafka, backlog.state)
            unread = run_now(look.waiting(backlog.lacking, backlog.lost, self.before_ms))
            return replace(facts, backlog=replace(backlog, overdue=unread.overdue, unknown=unread.unknown))
        except Exception as e:  # noqa: BLE001  # the error becomes the problem of this stream; the others go on
            if isinstance(e, KafkaUnavailable):
                self.unanswered.append(e)
            return replace(facts, problem=_problem_of(e, _STATE_ERRORS))


def _or_problem(facts: Iterator[StreamFacts], unseen: StreamFacts) -> Iterator[StreamFacts]:
    """Yield the facts. After an error yield `unseen` with the problem. Raises InvalidArgument and NotThere."""
    try:
        yield from facts
    except (InvalidArgument, NotThere):
        # The caller has named the missing table, namespace or checkpoint.
        raise
    except Exception as e:  # noqa: BLE001  # the error becomes the problem of this stream; the others go on
        yield replace(unseen, problem=_problem_of(e))


def _problem_of(error: Exception, state_errors: tuple[type[Exception], ...] = ()) -> StreamReason:
    """Return an error as a reason: for a stream's state, or for a failed look.

    :param state_errors: the classes of the errors that show a stream's state.
    """
    text = str(error) if isinstance(error, LakestreamError) else f"{type(error).__name__}: {error}"
    return StreamReason(StreamCause.UNUSABLE if isinstance(error, state_errors) else StreamCause.COULD_NOT_LOOK, text)


def _entry(ledger: Ledger, topic: str) -> TopicEntry:
    # A topic that was deleted and created again has an entry for each topic id.
    return sum((entry for identity, entry in ledger.topics.items() if identity.topic == topic), TopicEntry())


@dataclass(frozen=True)
class LandingWatch:
    """The table whose landings are emitted.

    :param consumer_group: the group whose landings are emitted; None: the landings of all groups.
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

        If the table does not exist, return the first cursor: all landings of a table created later are then new.
        """
        try:
            streams = yield from self._streams(connections)
        except NotThere:
            return EventCursor()
        return (yield LookQuestion((*self._key, "cursor"), streams.cursor, share_seconds=0.0))

    def after(self, connections: LookConnections, cursor: EventCursor, most: int) -> Step:
        """Return `NewLandings`: at most `most` landings after a cursor.

        `head` is None if more landings remain. Raises NotThere, the errors in the streams' `problems`, and errors of
        the catalog or the store.
        """
        streams = yield from self._streams(connections)
        answer = partial(streams.after, cursor, self.consumer_group)
        new_landings: NewLandings = yield LookQuestion(
            (*self._key, cursor, self.consumer_group), answer, share_seconds=0.0
        )
        landings = []
        for event in new_landings.landings[:most]:
            landings.append((yield from self._with_completeness(connections, event)))
        return NewLandings(tuple(landings), new_landings.head if len(new_landings.landings) <= most else None)

    @property
    def _key(self) -> tuple[Any, ...]:
        return ("landings", self.iceberg_conn_id, self.storage_conn_id, self.table)

    def _streams(self, connections: LookConnections) -> Step:
        """Open the table. Returns `TableStreams`; raises NotThere."""
        if LakeCapability.CATALOG in self.lake.can:
            return self.lake.part("books")((yield from ask_table(connections, self.iceberg_conn_id, self.table)))
        conn_id = self.storage_conn_id
        storage = yield LookQuestion(("delta", conn_id), lambda: connections.delta(conn_id), share_seconds=OPENED)
        return (
            yield LookQuestion((*self._key, "open"), partial(delta_streams, storage, self.table), share_seconds=0.0)
        )

    def _with_completeness(self, connections: LookConnections, landing_event: LandingEvent) -> Step:
        """Return the event with the end of the landing's covered time as `complete_through`, if the time is complete.

        Without a covered time or a Kafka connection, and for a Delta table, the event is returned unchanged.
        """
        if (
            landing_event.until_ms is None
            or self.kafka_conn_id is None
            or LakeCapability.COMPLETENESS not in self.lake.can
        ):
            return landing_event
        arguments = {
            "table": self.table,
            "iceberg_conn_id": self.iceberg_conn_id,
            "kafka_conn_id": self.kafka_conn_id,
            "consumer_group": landing_event.event["consumer_group"],
            "complete_through": landing_event.until_ms,
            "missing": MissingPolicy.WAIT,
        }
        check = make_check("freshness", arguments)
        verdict = yield from look_safely(check, connections, 0.0)
        through = iso(landing_event.until_ms) if verdict.outcome is LookOutcome.DONE else None
        return replace(landing_event, event={**landing_event.event, "complete_through": through})
