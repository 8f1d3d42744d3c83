"""What fan-out writes down beside the ledgers: a home's tables, and the configuration under which each is written.

Table properties, each written in the commit of a snapshot: properties alone have no compare-and-set. They tell, too,
whose a table is: a name that comes from outside, from a record's value or a topic's name, may reach any table of its
namespace, and must reach none that another stream, or anybody else, has filled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import AssertCreate, SetPropertiesUpdate, TableRequirement, TableUpdate

from airflow_lakestream.core.codec import UnreadableLedger
from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.core.mirrors import MIRROR
from airflow_lakestream.core.ports import Conflict
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.commit.guard import CommitGuard, Refused
from airflow_lakestream.iceberg.replace.replace import ReplaceGuard

VERSION = 1
# On the home table: its books. On a target, with the home's name behind it: the configuration that may write.
BOOKS = "lakestream.fan-out"
MEMBER = "lakestream.fan-out.home."
# In the summaries of the home's landings: the rows by table.
ROWS = "lakestream.fan-out.rows"

Properties = Mapping[str, str]
# Returns the properties to set beside those that a table has; raises what refuses the commit.
Stamp = Callable[[Properties], Properties]


class Superseded(LakestreamError, Terminal):
    """Another configuration has taken over the home since this run began."""

    def __init__(self, home: str) -> None:
        super().__init__(
            f"{home}: since this run began, a run with another configuration (schema, table, format, unknown_fields or "
            "metadata_columns) took over its tables. What this one had not committed was discarded. If its "
            "configuration is the one to keep, run it again."
        )


class Fenced(Conflict):
    """Another configuration has taken over a target."""

    def __init__(self, table: str) -> None:
        super().__init__(f"{table} is written under another configuration now.")


@dataclass(frozen=True, slots=True)
class Books:
    """What a home knows of its fan-out.

    `fingerprint` is that of the configuration under which its tables are written. `tables` gives each table that may
    have rows the route that names it, None where an earlier configuration chose it. Not `settled`: offsets that a dead
    run half landed under an earlier configuration may be left in them.
    """

    topic: str
    fingerprint: str
    settled: bool = True
    tables: Mapping[str, str | None] = field(default_factory=dict)

    def encode(self) -> str:
        """Return the text of the property."""
        data = {"version": VERSION, "topic": self.topic, "fingerprint": self.fingerprint, "settled": self.settled}
        return json.dumps({**data, "tables": dict(self.tables)}, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def of(cls, properties: Properties) -> Books | None:
        """Return a table's books; None for one that is no home. Raises UnreadableLedger."""
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

    def claimed(self, fingerprint: str) -> Books:
        """Return the books as another configuration takes them over."""
        if fingerprint == self.fingerprint:
            return self
        return replace(self, fingerprint=fingerprint, settled=False, tables=dict.fromkeys(self.tables))

    def with_tables(self, tables: Mapping[str, str]) -> Books:
        """Return the books with these tables and their routes."""
        return replace(self, tables={**self.tables, **tables})


def homes_of(properties: Properties) -> list[str]:
    """Return the homes of which a table is a target."""
    return sorted(key.removeprefix(MEMBER) for key in properties if key.startswith(MEMBER))


# The run id of a target's landing says the fingerprint, too: the journal keeps it when the snapshot has expired.
_RUN_ID = re.compile(r" \(fan-out ([0-9a-f]+)\)$")


def stamped_run_id(run_id: str, fingerprint: str) -> str:
    """Return the run id of a target's landing."""
    return f"{run_id} (fan-out {fingerprint})"


def fingerprint_of(run_id: str) -> str | None:
    """Return the fingerprint that a landing was made under; None for one that is not of a fan-out."""
    found = _RUN_ID.search(run_id)
    return found and found[1]


class StampingGuard(CommitGuard):
    """A guard that sets properties in the landing's own commit, computed from those of the very head it lands on."""

    stamp: Stamp
    # Looks at the very head that the commit lands on, where there is one; raises a LakestreamError to refuse it.
    look: Callable[[Table], None] = staticmethod(lambda table: None)

    def _commit(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        is_new = any(isinstance(r, AssertCreate) for r in requirements)
        # Loaded again, they are at least those of the head that the commit asserts; every change of them moves main.
        current = None if is_new else self._catalog.load_table(table.name())
        try:
            if current is not None:
                self.look(current)
            stamped = dict(self.stamp({} if current is None else current.metadata.properties))
        except LakestreamError as e:
            raise Refused(e) from None
        return super()._commit(table, requirements, (*updates, SetPropertiesUpdate(updates=stamped)))


class StampingReplaceGuard(StampingGuard, ReplaceGuard):
    """The same for a replace."""


class PartOfFanOut(LakestreamError, Terminal):
    """A table that is one of several of a fan-out: what its group's ledger says is not what it has rows of."""

    def __init__(self, table: str, note: str) -> None:
        super().__init__(
            f"{table}: {note} So records that are elsewhere would look as if they were missing here: fan-out can't be "
            "audited or repaired yet. Nothing was looked at."
        )


class LandedByFanOut(LakestreamError, Terminal):
    """A landing of one table alone, where the records of a fan-out go by the same group's ledger."""

    def __init__(self, table: str, consumer_group: str, note: str) -> None:
        super().__init__(
            f"{table}: {note} Landing all records of consumer group {consumer_group!r} into this table alone would mix "
            "up what the ledger says, so nothing was landed. Give the table template of the fan-out, or another table; "
            "beside the fan-out, a table that is not its home takes the records of another consumer_group."
        )


def note_on(properties: Properties) -> str | None:
    """Return a sentence on the part that a table has in a fan-out; None for one that has none."""
    if (books := Books.of(properties)) is not None:
        tables = ", ".join(sorted(books.tables)) or "none yet"
        return f"it is the home of a fan-out of {books.topic}: the ledger of all its tables, without rows ({tables})."
    if homes := homes_of(properties):
        return f"it is one table of a fan-out, whose ledger is that of its home {', '.join(homes)}."
    return None


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
