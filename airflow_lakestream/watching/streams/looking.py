"""Looks at streams: the ledgers of tables, their topics, and the folders of Spark queries."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError

from airflow_lakestream.core.landing.plan import LogTruncated, TopicReplaced
from airflow_lakestream.core.ledger import Ledger, TopicEntry
from airflow_lakestream.core.policies import TableFormat
from airflow_lakestream.core.source_types import KeptTypes
from airflow_lakestream.driver.lease import read_lease
from airflow_lakestream.driver.progress import read_progress
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.kafka.errors import TopicMissing
from airflow_lakestream.kafka.watch import KafkaWatch
from airflow_lakestream.lakes.formats import lake_of
from airflow_lakestream.watching.asking import run_now
from airflow_lakestream.watching.books import of_checkpoint
from airflow_lakestream.watching.causes import Cause, Reason
from airflow_lakestream.watching.lag.waiting import Backlog, Looking, backlog_of, topics_of
from airflow_lakestream.watching.streams.landings import Streams
from airflow_lakestream.watching.streams.status import Facts, Query, Stream, status

if TYPE_CHECKING:
    from airflow_lakestream.delta.storage import DeltaStorage

# Errors of one stream alone, like those of its ledger. Any other error ends the look at all streams.
_OF_ONE = (TopicReplaced, LogTruncated, TopicMissing)


class Lakes(Protocol):
    """Where tables and checkpoints are. Opened on first use: without Iceberg tables no catalog is needed."""

    def catalog(self) -> Catalog:
        """Return the catalog of Iceberg tables. Raises InvalidArgument, CatalogUnavailable."""

    def storage(self) -> DeltaStorage:
        """Return the store of Delta tables. Raises InvalidArgument."""

    def properties(self, location: str) -> Mapping[str, str] | None:
        """Return what opens a checkpoint's store; None for a local one. Raises InvalidArgument, CatalogUnavailable."""


@dataclass(frozen=True)
class StreamSearch:
    """Where streams are looked for.

    :param tables: each `namespace.table`, or the path or URI of a Delta table.
    :param namespaces: all their tables with a ledger are looked at.
    :param checkpoints: of Spark queries; the tables of the bundled apps' queries are looked at, too.
    :param group: look only at the streams of this consumer group.
    :param landings_ms: tell of all landings of so many milliseconds; by default of the last few.
    """

    lakes: Lakes
    kafka: KafkaWatch
    tables: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    checkpoints: tuple[str, ...] = ()
    group: str | None = None
    landings_ms: int | None = None

    def streams(self, now_ms: int, max_age: float) -> list[Stream]:
        """Look at all streams; see `status.status` for the arguments.

        Raises InvalidArgument if a table or namespace does not exist; NotThere, CheckpointDamaged and ForeignCheckpoint
        for a checkpoint; KafkaUnavailable, KafkaRefused.
        """
        found, queries, before_ms = [], [], int(now_ms - max_age * 1000)
        for location in self.checkpoints:
            if (query := self._query(location)) is not None:
                queries.append(query)
                continue
            found += [status(facts, now_ms, max_age) for facts in self._of_checkpoint(location, before_ms)]
        for name in self._names(queries):
            own = [query for query in queries if query.inputs["table"] == name]
            found += [status(facts, now_ms, max_age) for facts in self._of_table(name, own, before_ms)]
        return found

    def _names(self, queries: Iterable[Query]) -> list[str]:
        names = dict.fromkeys(self.tables)
        for namespace in self.namespaces:
            try:
                names |= dict.fromkeys(".".join(one) for one in sorted(self.lakes.catalog().list_tables(namespace)))
            except NoSuchNamespaceError as e:
                raise InvalidArgument("namespace", f"there is no namespace {namespace!r} in the catalog.") from e
        return list(names | dict.fromkeys(query.inputs["table"] for query in queries))

    def _query(self, location: str) -> Query | None:
        """Return the query of a bundled app; None for another application's, which keeps no lease."""
        properties = self.lakes.properties(location)
        lease = read_lease(location, properties)
        if lease is None or not lease.inputs.get("table"):
            return None
        return Query(location, lease, read_progress(location, properties))

    def _of_checkpoint(self, location: str, before_ms: int) -> Iterator[Facts]:
        """Return what the checkpoint alone tells of another application's query."""
        known = of_checkpoint(location, self.lakes.properties(location))
        got_on = None if known.newest_at is None else int(known.newest_at * 1000)
        for topic in known.topics:
            facts = Facts("", "", topic, checkpoint=location, got_on_ms=got_on)
            try:
                state = self.kafka.topic(topic)
                backlog = Backlog(state, TopicEntry(), *known.unread(state))
                yield replace(facts, backlog=self._with_overdue(backlog, before_ms))
            except _OF_ONE as e:
                yield replace(facts, problem=Reason(Cause.UNUSABLE, str(e)))

    def _of_table(self, name: str, queries: list[Query], before_ms: int) -> Iterator[Facts]:
        if (streams := self._streams(name)) is None:
            if not queries:
                where = "at" if is_place(name) else "in the catalog:"
                raise InvalidArgument("table", f"there is no table {where} {name}.")
            yield from (self._of_query(query, name) for query in queries)
            return
        left = list(queries)
        for group in streams.groups():
            if self.group in (None, group):
                own = next((query for query in left if query.inputs.get("group") == group), None)
                left = [query for query in left if query is not own]
                for facts in self._of_group(streams, name, group, before_ms):
                    yield replace(facts, query=own)
        yield from (self._of_query(query, name) for query in left if self.group in (None, query.inputs.get("group")))

    def _streams(self, name: str) -> Streams | None:
        lake = lake_of(name)
        opened = self.lakes.catalog() if lake.has_catalog else self.lakes.storage()
        streams: Streams | None = lake.part("books").at(opened, name)
        return streams

    def _of_group(self, streams: Streams, name: str, group: str, before_ms: int) -> Iterator[Facts]:
        try:
            ledger = streams.ledger(group)
            since = None if self.landings_ms is None else int(time.time() * 1000) - self.landings_ms
            histories = {topic: streams.history(group, topic, since) for topic in topics_of(ledger)}
        except streams.problems as e:
            yield Facts(name, group, "", problem=Reason(Cause.UNUSABLE, str(e)))
            return
        for topic, history in histories.items():
            stale = tuple(KeptTypes(ledger.types).stale)
            facts = Facts(name, group, topic, history, entry=_entry(ledger, topic), stale=stale)
            try:
                backlog = backlog_of(ledger, self.kafka.topic(topic), name)
                yield replace(facts, backlog=self._with_overdue(backlog, before_ms))
            except _OF_ONE as e:
                yield replace(facts, problem=Reason(Cause.UNUSABLE, str(e)))

    def _with_overdue(self, backlog: Backlog, before_ms: int) -> Backlog:
        looking = Looking("", self.kafka, backlog.state)
        unread = run_now(looking.waiting(backlog.lacking, backlog.lost, before_ms))
        return replace(backlog, overdue=unread.overdue, crowded=unread.crowded)

    def _of_query(self, query: Query, name: str) -> Facts:
        """Return the facts of a query that has landed nothing yet."""
        return Facts(name, query.inputs.get("group", ""), query.inputs.get("topic", ""), query=query)


def _entry(ledger: Ledger, topic: str) -> TopicEntry:
    return sum((entry for identity, entry in ledger.topics.items() if identity.topic == topic), TopicEntry())


def is_place(table: str) -> bool:
    """Tell whether this is the path or URI of a Delta table, not a name in a catalog."""
    return TableFormat.of(table) is TableFormat.DELTA
