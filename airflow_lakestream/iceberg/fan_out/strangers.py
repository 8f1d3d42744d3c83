"""Whose a table is, for streams whose table's name comes from outside: from a record's value, or from a topic's name.

Such a name may reach any table of its namespace. It is to reach none that another stream, or anybody else, has filled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyiceberg.table import Table

from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.core.mirrors import MIRROR
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.fan_out.books import Books, fingerprint_of, homes_of


class NotItsOwn(LakestreamError, Terminal):
    """A table that no name from outside may reach; `why` says whose it is, and goes on behind the table's name."""

    def __init__(self, table: str, why: str) -> None:
        self.table, self.why = table, why
        super().__init__(f"{table} {why}")


def owner_of(table: Table) -> str | None:
    """Say whose a table is, to go on behind its name; None for an empty one of nobody."""
    properties = table.metadata.properties
    if (books := Books.of(properties)) is not None:
        return f"is the home of a fan-out of {books.topic}"
    if MIRROR in properties:
        return "is a mirror of a database's table"
    if groups := ledger_store.groups(table):
        names = ", ".join(map(repr, groups))
        part = f", by the fan-out of {', '.join(homes)}" if (homes := homes_of(properties)) else ""
        return f"is filled by consumer group {names}{part}"
    facts = ledger_store.facts_of(table.metadata)
    if facts.head_id is not None and facts.snapshots[facts.head_id].has_rows:
        return "has rows that no stream of lakestream landed"
    return None


@dataclass(frozen=True, slots=True)
class NamingTopic:
    """A topic that a regex found, and whose name is part of its table's; another one may come to the same name."""

    topic: str
    rival: str | None = None

    def check(self, name: str, table: Table | None, consumer_group: str) -> None:
        """Refuse a table that the group has not landed the topic in, and that is not to be had. Raises InvalidArgument.

        :param table: None where there is none of that name yet.
        """
        if table is not None and self._is_landed(table, consumer_group):
            return
        if self.rival is not None:
            raise InvalidArgument(
                "table",
                f"the topics {self.rival!r} and {self.topic!r} would both land in {name}.",
                "Narrow the regex, and land one of them by a task of its own.",
            )
        if table is not None and (why := owner_of(table)) is not None:
            raise InvalidArgument(
                "table",
                f"the topic {self.topic!r} names {name}, which {why}, and not with this topic.",
                "Narrow the regex; if the topic is meant for that table, land it by a task that names both.",
            )

    def _is_landed(self, table: Table, consumer_group: str) -> bool:
        ledger = ledger_store.read_ledger(table, consumer_group)
        return any(identity.topic == self.topic for identity in ledger.topics)


def landed_by_fan_out(table: Table, consumer_group: str) -> bool:
    """Tell whether a group landed here as one of several tables, and not all of its records in this one."""
    if not homes_of(table.metadata.properties) or consumer_group not in ledger_store.groups(table):
        return False
    landings = [one for one in landings_of(table, consumer_group) if one.topics]
    # Without a landing that metadata still shows, the note on the table is all there is to go by.
    return not landings or any(fingerprint_of(one.run_id) for one in landings)


def landings_of(table: Table, consumer_group: str) -> Iterable[Landing]:
    """Return a group's landings, as far as metadata shows them."""
    landings = {landing.landing_id: landing for landing in ledger_store.read(table, consumer_group).landings}
    for snapshot in ledger_store.live_ancestors(table.metadata):
        if (landing := ledger_store.landing_of(snapshot, consumer_group)) is not None:
            landings.setdefault(landing.landing_id, landing)
    return landings.values()
