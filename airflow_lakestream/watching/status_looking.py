"""Looks at streams: the ledgers of tables, their topics, and the folders of Spark's queries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table

from airflow_lakestream.core.codec import UnreadableLedger
from airflow_lakestream.core.ledger import Ledger, TopicEntry
from airflow_lakestream.core.lineage import UndecidedLedger
from airflow_lakestream.core.plan import LogTruncated, TopicReplaced
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.kafka.errors import TopicMissing
from airflow_lakestream.kafka.watch import KafkaWatch
from airflow_lakestream.spark.lease import read_lease
from airflow_lakestream.spark.progress import read_progress
from airflow_lakestream.watching.backlog import Backlog, backlog_of, overdue, topics_of
from airflow_lakestream.watching.books import of_checkpoint
from airflow_lakestream.watching.causes import Cause, Reason
from airflow_lakestream.watching.landings import ledgers, look_back
from airflow_lakestream.watching.status import Facts, Query, Stream, status

# What is wrong with one stream alone; all else keeps every stream from being looked at.
_OF_ONE = (
    UnreadableLedger,
    UndecidedLedger,
    ledger_store.FormatVersionTooOld,
    TopicReplaced,
    LogTruncated,
    TopicMissing,
)


@dataclass(frozen=True)
class StreamSearch:
    """Where streams are looked for.

    :param tables: `namespace.table`, each.
    :param namespaces: all of whose tables with a ledger are looked at.
    :param checkpoints: of Spark's queries; the tables of the bundled apps' are looked at, too.
    :param group: only the streams of this consumer group.
    :param properties: the catalog's, for checkpoints on its object store.
    """

    catalog: Catalog
    kafka: KafkaWatch
    tables: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    checkpoints: tuple[str, ...] = ()
    group: str | None = None
    properties: Mapping[str, str] | None = None

    def streams(self, now_ms: int, max_age: float) -> list[Stream]:
        """Look at all of them; see `status.status` for the arguments.

        Raises InvalidArgument for a table or a namespace that is not there, NotThere, CheckpointDamaged and
        ForeignCheckpoint for a checkpoint; KafkaUnavailable, KafkaRefused.
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
                names |= dict.fromkeys(".".join(one) for one in sorted(self.catalog.list_tables(namespace)))
            except NoSuchNamespaceError as e:
                raise InvalidArgument("namespace", f"there is no namespace {namespace!r} in the catalog.") from e
        return list(names | dict.fromkeys(query.inputs["table"] for query in queries))

    def _query(self, location: str) -> Query | None:
        """Return a query of a bundled app; None for one of another application, which keeps no lease."""
        lease = read_lease(location, self.properties)
        if lease is None or not lease.inputs.get("table"):
            return None
        return Query(location, lease, read_progress(location, self.properties))

    def _of_checkpoint(self, location: str, before_ms: int) -> Iterator[Facts]:
        """Tell of another application's query, by its checkpoint alone."""
        known = of_checkpoint(location, self.properties)
        got_on = None if known.newest_at is None else int(known.newest_at * 1000)
        for topic in known.topics:
            facts = Facts("", "", topic, checkpoint=location, got_on_ms=got_on)
            try:
                state = self.kafka.topic(topic)
                lacking, lost = known.unread(state)
                late = overdue(topic, self.kafka.boundaries(state, before_ms)) if lacking else RangeSet()
                yield replace(facts, backlog=Backlog(state, TopicEntry(), lacking, lost, lacking & late))
            except _OF_ONE as e:
                yield replace(facts, problem=Reason(Cause.UNUSABLE, str(e)))

    def _of_table(self, name: str, queries: list[Query], before_ms: int) -> Iterator[Facts]:
        try:
            table = self.catalog.load_table(name)
        except NoSuchTableError as e:
            if not queries:
                raise InvalidArgument("table", f"there is no table {name!r} in the catalog.") from e
            yield from (self._of_query(query, name) for query in queries)
            return
        left = list(queries)
        for group in ledger_store.groups(table):
            if self.group in (None, group):
                own = next((query for query in left if query.inputs.get("group") == group), None)
                left = [query for query in left if query is not own]
                for facts in self._of_group(table, name, group, before_ms):
                    yield replace(facts, query=own)
        yield from (self._of_query(query, name) for query in left if self.group in (None, query.inputs.get("group")))

    def _of_group(self, table: Table, name: str, group: str, before_ms: int) -> Iterator[Facts]:
        try:
            ledger = ledgers(table, group)[group]
            histories = {topic: look_back(table, group, topic=topic) for topic in topics_of(ledger)}
        except _OF_ONE as e:
            yield Facts(name, group, "", problem=Reason(Cause.UNUSABLE, str(e)))
            return
        for topic, history in histories.items():
            facts = Facts(name, group, topic, history, entry=_entry(ledger, topic))
            try:
                yield replace(facts, backlog=self._backlog(ledger, topic, name, before_ms))
            except _OF_ONE as e:
                yield replace(facts, problem=Reason(Cause.UNUSABLE, str(e)))

    def _backlog(self, ledger: Ledger, topic: str, table: str, before_ms: int) -> Backlog:
        state = self.kafka.topic(topic)
        found = backlog_of(ledger, state, table)
        return backlog_of(ledger, state, table, self.kafka.boundaries(state, before_ms)) if found.lacking else found

    def _of_query(self, query: Query, name: str) -> Facts:
        """Tell of a query that has landed nothing yet."""
        return Facts(name, query.inputs.get("group", ""), query.inputs.get("topic", ""), query=query)


def _entry(ledger: Ledger, topic: str) -> TopicEntry:
    return sum((entry for identity, entry in ledger.topics.items() if identity.topic == topic), TopicEntry())
