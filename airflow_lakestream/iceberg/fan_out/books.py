"""Notes of a fan-out next to the ledgers: a home's tables, and each table's permitted configuration.

They are table properties, each written in the commit of a snapshot: properties alone have no compare-and-set. They also
show the owner of a table: a name from outside, from a record's value or a topic's name, may reach any table of its
namespace, and must not reach a table that another stream, or another user, has filled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from pyiceberg.table import Table

from airflow_lakestream.core.codec import UnreadableLedger
from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.core.ports import Conflict
from airflow_lakestream.core.routing import MIRROR
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.commit.commit import RefusalCarrier, RequestPart, TableCommit, property_part

# The version of the notes' JSON.
VERSION = 1
# On the home table: its notes. On a target, with the home's name behind it: the configuration that may write.
BOOKS = "lakestream.fan-out"
MEMBER = "lakestream.fan-out.home."
# Key in the summaries of the home's landings: the rows by table.
ROWS = "lakestream.fan-out.rows"

Properties = Mapping[str, str]
# Returns the properties to set in addition to a table's own; raises to refuse the commit.
Stamp = Callable[[Properties], Properties]


class Superseded(LakestreamError, Terminal):
    """Takeover of the home by another configuration since this run began."""

    def __init__(self, home: str) -> None:
        super().__init__(
            f"{home}: since this run began, a run with another configuration (schema, table, format, unknown_fields or "
            "metadata_columns) took over its tables. What this one had not committed was discarded. If its "
            "configuration is the one to keep, run it again."
        )


class Fenced(Conflict):
    """Takeover of a target by another configuration."""

    def __init__(self, table: str) -> None:
        super().__init__(f"{table} is written under another configuration now.")


@dataclass(frozen=True, slots=True)
class HomeNotes:
    """Notes of a home on the fan-out.

    :param fingerprint: the fingerprint of the configuration under which the tables are written.
    :param settled: False if the tables may have offsets that a dead run half landed under an earlier configuration.
    :param tables: the route of each table that may have rows, or None if an earlier configuration chose the table.
    """

    topic: str
    fingerprint: str
    settled: bool = True
    tables: Mapping[str, str | None] = field(default_factory=dict)

    def encode(self) -> str:
        """Return the value of the property."""
        data = {"version": VERSION, "topic": self.topic, "fingerprint": self.fingerprint, "settled": self.settled}
        return json.dumps({**data, "tables": dict(self.tables)}, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def of(cls, properties: Properties) -> HomeNotes | None:
        """Return the notes on a home, or None if the table is not a home. Raises UnreadableLedger."""
        text = properties.get(BOOKS)
        if text is None:
            return None
        try:
            data = json.loads(text)
            if data["version"] > VERSION:
                raise UnreadableLedger(f"table property {BOOKS}", "written by a newer version. Upgrade this worker.")
            return cls(data["topic"], data["fingerprint"], data["settled"], data["tables"])
        except (KeyError, ValueError, TypeError) as e:
            raise UnreadableLedger(f"table property {BOOKS}", f"not as this version writes it ({e!r}).") from e

    def claimed(self, fingerprint: str) -> HomeNotes:
        """Return the notes after a takeover by this configuration: not settled, and without routes.

        The notes stay unchanged if they are of this configuration already.
        """
        if fingerprint == self.fingerprint:
            return self
        return replace(self, fingerprint=fingerprint, settled=False, tables=dict.fromkeys(self.tables))

    def with_tables(self, tables: Mapping[str, str]) -> HomeNotes:
        """Return the notes with these tables and routes added."""
        return replace(self, tables={**self.tables, **tables})


def homes_of(properties: Properties) -> list[str]:
    """Return the names of the homes of a target; empty for a table outside of fan-outs."""
    return sorted(key.removeprefix(MEMBER) for key in properties if key.startswith(MEMBER))


# A target's run id has the fingerprint, too: the journal keeps the run id after the snapshot has expired.
_RUN_ID = re.compile(r" \(fan-out ([0-9a-f]+)\)$")


def stamped_run_id(run_id: str, fingerprint: str) -> str:
    """Return the run id of a target's landing."""
    return f"{run_id} (fan-out {fingerprint})"


def fingerprint_of(run_id: str) -> str | None:
    """Return the fingerprint of a landing by a fan-out, or None for another landing."""
    match = _RUN_ID.search(run_id)
    return match and match[1]


def stamped(commit: TableCommit, stamp: Stamp, look: Callable[[Table], None] | None = None) -> TableCommit:
    """Return the commit with further properties, computed from the properties at the table's head.

    :param stamp: returns the properties to set; called again for each head.
    :param look: checks the head, if the table exists; raises a LakestreamError to refuse it, as `stamp` does.
    """

    def properties(head: Table | None, _: int) -> RequestPart:
        try:
            if head is not None and look is not None:
                look(head)
            return property_part(stamp({} if head is None else head.metadata.properties))
        except LakestreamError as e:
            raise RefusalCarrier(e) from None

    return replace(commit, additions=(*commit.additions, properties))


class PartOfFanOut(LakestreamError, Terminal):
    """Refusal of a fan-out's table: the group's ledger covers more records than the table's rows."""

    def __init__(self, table: str, note: str) -> None:
        super().__init__(
            f"{table}: {note} So records that are elsewhere would look as if they were missing here. Audit the home, "
            "which is an audit of all its tables; a fan-out can't be repaired or adopted. Nothing was looked at."
        )


class LandedByFanOut(LakestreamError, Terminal):
    """Refusal of a landing into a single table by the consumer group of a fan-out."""

    def __init__(self, table: str, consumer_group: str, note: str) -> None:
        super().__init__(
            f"{table}: {note} Landing all records of consumer group {consumer_group!r} into this table alone would mix "
            "up the ledger, so nothing was landed. Give the table template of the fan-out, or another table; "
            "next to the fan-out, a table that is not its home takes the records of another consumer_group."
        )


def note_on(properties: Properties) -> str | None:
    """Return a sentence on the table's part in a fan-out, or None."""
    if (notes := HomeNotes.of(properties)) is not None:
        tables = ", ".join(sorted(notes.tables)) or "none yet"
        return f"it is the home of a fan-out of {notes.topic}: the ledger of all its tables, without rows ({tables})."
    if homes := homes_of(properties):
        return f"it is one table of a fan-out, whose ledger is that of its home {', '.join(homes)}."
    return None


class NotItsOwn(LakestreamError, Terminal):
    """Table closed to names from outside; `reason` names the owner, as a continuation of the table's name."""

    def __init__(self, table: str, reason: str) -> None:
        self.table, self.reason = table, reason
        super().__init__(f"{table} {reason}")


def owner_of(table: Table) -> str | None:
    """Return the owner of a table, as a continuation of the table's name, or None for an empty, free table."""
    properties = table.metadata.properties
    if (notes := HomeNotes.of(properties)) is not None:
        return f"is the home of a fan-out of {notes.topic}"
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
    """Topic found by a regex, and used in the table's name.

    :param rival: a further topic with the same table name, or None.
    """

    topic: str
    rival: str | None = None

    def check(self, name: str, table: Table | None, consumer_group: str) -> None:
        """Refuse a table of a rival or another owner, unless the group landed the topic here. Raises InvalidArgument.

        :param table: None if no table of that name exists yet.
        """
        if table is not None and self._is_landed(table, consumer_group):
            return
        if self.rival is not None:
            raise InvalidArgument(
                "table",
                f"the topics {self.rival!r} and {self.topic!r} would both land in {name}.",
                "Narrow the regex, and land one of them by a task of its own.",
            )
        if table is not None and (owner := owner_of(table)) is not None:
            raise InvalidArgument(
                "table",
                f"the topic {self.topic!r} names {name}, which {owner}, and not with this topic.",
                "Narrow the regex; if the topic is meant for that table, land it by a task that names both.",
            )

    def _is_landed(self, table: Table, consumer_group: str) -> bool:
        ledger = ledger_store.read_ledger(table, consumer_group)
        return any(identity.topic == self.topic for identity in ledger.topics)


def landed_by_fan_out(table: Table, consumer_group: str) -> bool:
    """Return whether a group landed here as part of a fan-out, rather than all records in this table."""
    if not homes_of(table.metadata.properties) or consumer_group not in ledger_store.groups(table):
        return False
    landings = [landing for landing in landings_of(table, consumer_group) if landing.topics]
    # Without a landing in the metadata, the note on the table decides.
    return not landings or any(fingerprint_of(landing.run_id) for landing in landings)


def landings_of(table: Table, consumer_group: str) -> Iterable[Landing]:
    """Return a group's landings, as far back as the metadata goes; the order is not the order of time."""
    landings = {landing.landing_id: landing for landing in ledger_store.read(table, consumer_group).landings}
    for snapshot in ledger_store.live_ancestors(table.metadata):
        if (landing := ledger_store.landing_of(snapshot, consumer_group)) is not None:
            landings.setdefault(landing.landing_id, landing)
    return landings.values()
