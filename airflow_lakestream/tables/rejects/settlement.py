"""Landings with rejected records, and the main table's decision on each landing: landed, dead or open."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Protocol, Self, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.core import codec
from airflow_lakestream.core.ledger import Ledger, TopicIdentity, union
from airflow_lakestream.core.names import REJECTED
from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.sharing.pieces import ranges_from_dict, ranges_to_dict
from airflow_lakestream.tables.coordinates import COORDINATES, is_hit
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.schema.columns import METADATA_PREFIX, to_schema

# Prefix of a table property, followed by the landing's id and a topic: the note of a landing before the main table has
# decided.
PENDING = "lakestream.rejects.pending."

REJECTED_AT = "rejected_at"
# Columns of a reject table in addition to the decoder's columns.
OWN = pa.schema(
    [
        ("consumer_group", pa.string()),
        ("topic_id", pa.string()),
        ("run_id", pa.string()),
        ("landing_id", pa.string()),
        (REJECTED_AT, pa.timestamp("us", "UTC")),
    ]
)
# The columns that identify a rejected record and its landing.
PLACE = (*COORDINATES, "consumer_group", "topic_id", "landing_id")


def design_of(records: pa.Schema) -> TableDesign:
    """Return the design of a reject table for records with these columns."""
    metadata = pa.schema([field for field in records if field.name.startswith(METADATA_PREFIX)])
    payload = pa.schema([field for field in records if field.name not in metadata.names])
    # A table of an earlier version gets the missing columns.
    schema = to_schema(pa.schema([*payload, *OWN]))
    return TableDesign(metadata=metadata, schema=schema, evolution=SchemaEvolution.ADD)


def with_place(columns: Sequence[str]) -> Sequence[str]:
    """Return the columns to read from a reject table: PLACE and `columns`; without `columns` empty: all columns."""
    return tuple(dict.fromkeys((*PLACE, *columns))) if columns else ()


def rejects_of(table: str) -> str:
    """Return the name of a table's reject table."""
    return table + REJECTED


@dataclass(frozen=True, slots=True)
class PendingLanding:
    """Note of a landing with written rejected records, before the main table's decision is known.

    :param ranges: the offsets that the landing lands or replaces.
    :param replaces: the landing replaces landed offsets.
    :param supersedes: rows of earlier landings were at `ranges`; they are removed once this landing is landed.
    :param at_ms: the time of the note, in milliseconds since the epoch.
    :param after: the marks of the group's ledger at the time of the note; see `core.ledger.NotedLandings`.
    :param is_condemned: the landing is forbidden to commit.
    :param is_taken_back: the landing had landed, and was rolled back.
    """

    landing_id: str
    consumer_group: str
    identity: TopicIdentity
    ranges: RangeSet
    replaces: bool
    supersedes: bool
    at_ms: int
    after: tuple[str, ...] = ()
    is_condemned: bool = False
    is_taken_back: bool = False

    def encode(self) -> str:
        """Return the note as the value of a table property."""
        data = {
            **ranges_to_dict(self.identity, self.ranges),
            "group": self.consumer_group,
            "replaces": self.replaces,
            "supersedes": self.supersedes,
            "at": self.at_ms,
            "after": self.after,
            **({"condemned": True} if self.is_condemned else {}),
            **({"taken-back": True} if self.is_taken_back else {}),
        }
        return json.dumps(data, separators=(",", ":"))

    @property
    def key(self) -> str:
        """The name of the property, different for each topic of a landing."""
        return f"{PENDING}{self.landing_id}/{self.identity.topic}"

    @classmethod
    def decode(cls, key: str, text: str) -> PendingLanding:
        """Return the landing noted in a property. Raises UnreadableLedger."""
        landing_id = key.removeprefix(PENDING).partition("/")[0]
        try:
            data = json.loads(text)
            identity = TopicIdentity(data["topic"], data["id"], data["cluster"])
            ranges = ranges_from_dict(data)
            return cls(
                landing_id,
                data["group"],
                identity,
                ranges,
                data["replaces"],
                data["supersedes"],
                int(data["at"]),
                tuple(data["after"]),
                bool(data.get("condemned")),
                bool(data.get("taken-back")),
            )
        except (KeyError, ValueError, TypeError) as e:
            problem = f"not as this version writes it ({e!r})."
            raise codec.UnreadableLedger(f"table property {key}", problem) from e


def pending_of(properties: Mapping[str, str]) -> list[PendingLanding]:
    """Return the pending landings noted in a reject table's properties."""
    return [PendingLanding.decode(key, text) for key, text in properties.items() if key.startswith(PENDING)]


def of_topic(records: pa.Table, topic: str) -> pa.Table:
    """Return the rejected records of a topic."""
    same = pc.equal(records["_kafka_topic"], topic)
    return records if pc.all(same).as_py() else records.filter(same)


def rows_of(records: pa.Table, pending: PendingLanding, run_id: str) -> pa.Table:
    """Return rejected records as rows of the reject table."""
    values = {
        "consumer_group": pending.consumer_group,
        "topic_id": pending.identity.topic_id,
        "run_id": run_id,
        "landing_id": pending.landing_id,
        REJECTED_AT: datetime.fromtimestamp(pending.at_ms / 1000, UTC),
    }
    for column in OWN:
        records = records.append_column(column, pa.repeat(pa.scalar(values[column.name], column.type), len(records)))
    return records


# A replace that has not landed after this time is dead: no run takes longer.
DEAD_AFTER_MS = 24 * 3600 * 1000
# Prefix of a table property, followed by a group's name: the former names of the group, as a list in JSON.
FORMER_NAMES = "lakestream.former-names."


File = TypeVar("File")


class MainTableLedgers(Protocol):
    """The main table's ledgers, and the history of landings."""

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""

    @property
    def rolled_back(self) -> Sequence[str]:
        """The ids of rolled back landings, as long as another rollback can bring the landings back."""

    def place(self, consumer_group: str, landing_id: str) -> int | None:
        """Return a landing's place in the table's history, a number growing with time, or None if missing."""

    def ledger(self, consumer_group: str) -> Ledger:
        """Return a group's ledger."""


def names_of(properties: Mapping[str, str], consumer_group: str) -> tuple[str, ...]:
    """Return all names of a group, the current name first; landings before a rename have a former name."""
    former = properties.get(FORMER_NAMES + consumer_group)
    return (consumer_group, *(json.loads(former) if former else ()))


@dataclass
class RejectSettlement:
    """Decision of the main table on the pending landings: each is landed, dead, rolled back or open.

    Landings of `landed` are in the main table's history, in this order. Landings of `dead` can't land any more, so
    their rows are stale. Landings of `rolled_back` had landed, and may land again; the list includes landings without a
    note. Landings of `open` are still undecided.

    Landings of `condemned` are the part of `open` that can't land on the current table, for example because another
    landing has their offsets. Such a landing may wait with its commit until a rollback removes the other. So it is
    condemned first: its note forbids the commit, and from then on it refuses its own commit. It is dead if it still
    can't land at a later look: commit attempts from before have failed by then.
    """

    landed: list[PendingLanding] = field(default_factory=list)
    dead: list[PendingLanding] = field(default_factory=list)
    open: list[PendingLanding] = field(default_factory=list)
    condemned: list[PendingLanding] = field(default_factory=list)
    # The properties of the main table, which contain the former names of groups.
    properties: Mapping[str, str] = field(default_factory=dict)
    # Landings that were rolled back, and may come again while their snapshots live.
    rolled_back: Sequence[str] = ()
    main_ledgers: MainTableLedgers | None = None

    @classmethod
    def by(cls, pending: Iterable[PendingLanding], main_ledgers: MainTableLedgers | None) -> Self:
        """Return the decision of the main table; if `main_ledgers` is None (no table), all landings are open.

        :param pending: the notes of the reject table.
        """
        if main_ledgers is None:
            return cls(open=list(pending))
        rolled_back = set(main_ledgers.rolled_back)
        result = cls(properties=main_ledgers.properties, main_ledgers=main_ledgers)
        # The place and the time of each landed landing, for the order.
        landed: list[tuple[int, int, PendingLanding]] = []
        for landing in pending:
            place = main_ledgers.place(landing.consumer_group, landing.landing_id)
            if place is not None:
                landed.append((place, landing.at_ms, landing))
            elif landing.landing_id in rolled_back or (landing.is_taken_back and not _is_old(landing)):
                # A Delta table knows of the rollback only until its group lands again.
                rolled_back.add(landing.landing_id)
            else:
                can_not_land = _can_not_land(landing, main_ledgers)
                if can_not_land and landing.is_condemned:
                    result.dead.append(landing)
                    continue
                result.open.append(landing)
                if can_not_land:
                    result.condemned.append(replace(landing, is_condemned=True))
        result.rolled_back = sorted(rolled_back)
        result.landed = [landing for *_, landing in sorted(landed, key=lambda item: item[:2])]
        return result

    def marks(self, consumer_group: str) -> tuple[str, ...]:
        """Return the marks of the group's last landings with a note, for a new note; empty without a main table."""
        return () if self.main_ledgers is None else self.main_ledgers.ledger(consumer_group).noted.marks

    @property
    def is_due(self) -> bool:
        """Whether rows must be removed: rows of dead landings, or rows superseded by landed landings."""
        return bool(self.dead) or any(landing.supersedes for landing in self.landed)

    @property
    def settled(self) -> list[PendingLanding]:
        """The landed and dead landings, without further need of a note."""
        return [*self.landed, *self.dead]

    @property
    def ranges(self) -> RangeSet:
        """The offset ranges of the rows to remove, of dead and of superseding landings."""
        return union(p.ranges for p in [*self.dead, *self.landed] if p in self.dead or p.supersedes)

    def stale(self, rows: pa.Table) -> pa.Array:
        """Return a mask of the stale rows: not counting now or later. Rows of open landings are not stale."""
        ids = rows["landing_id"]
        stale = pc.is_in(ids, value_set=pa.array([landing.landing_id for landing in self.dead], pa.string()))
        for number, landing in enumerate(self.landed):
            if not landing.supersedes:
                continue
            # Of two landings that have the same offsets the later one counts: the earlier was replaced or rolled back.
            # The rows of this landing, of later landings and of open landings stay.
            earlier = pc.and_(self.is_of(rows, landing.consumer_group, landing.identity), is_hit(rows, landing.ranges))
            for other in (*self.landed[number:], *self.open):
                earlier = pc.and_(earlier, pc.not_equal(ids, other.landing_id))
            stale = pc.or_(stale, earlier)
        return stale

    def remainders(self, files: Iterable[tuple[File, pa.Table]]) -> Iterator[tuple[File, pa.Table]]:
        """Yield each file with stale rows, together with the remaining rows; empty if no rows must be removed."""
        for file, rows in files if self.is_due else ():
            stale = self.stale(rows)
            if pc.any(stale).as_py():
                yield file, rows.filter(pc.invert(stale))

    def is_of(self, rows: pa.Table, consumer_group: str, identity: TopicIdentity) -> pa.ChunkedArray:
        """Return a mask of the rows of a group, under any former name, and of this incarnation of a topic."""
        names = pa.array(names_of(self.properties, consumer_group), pa.string())
        ours = pc.and_(pc.is_in(rows["consumer_group"], names), pc.equal(rows["topic_id"], identity.topic_id))
        return pc.and_(ours, pc.equal(rows["_kafka_topic"], identity.topic))

    def counts(self, rows: pa.Table, consumer_group: str, identity: TopicIdentity, landed: RangeSet) -> pa.ChunkedArray:
        """Return a mask of a group's counting rows at landed offsets: neither stale nor undecided."""
        own = pc.and_(self.is_of(rows, consumer_group, identity), is_hit(rows, landed))
        return pc.and_not(own, pc.or_(self.stale(rows), self.undecided(rows)))

    def undecided(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return a mask of the rows of open or rolled back landings."""
        return pc.or_(self.unsettled(rows), self.of_rolled_back(rows))

    def unsettled(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return a mask of the rows of open landings."""
        return pc.is_in(rows["landing_id"], value_set=pa.array([p.landing_id for p in self.open], pa.string()))

    def of_rolled_back(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return a mask of the rows of rolled back landings."""
        return pc.is_in(rows["landing_id"], value_set=pa.array(self.rolled_back, pa.string()))


def _is_old(landing: PendingLanding) -> bool:
    """Return whether the note is older than DEAD_AFTER_MS."""
    return time.time() * 1000 - landing.at_ms > DEAD_AFTER_MS


def _can_not_land(landing: PendingLanding, main_ledgers: MainTableLedgers) -> bool:
    """Return whether a landing missing in the history has not landed, and can't land on the current table."""
    ledger = main_ledgers.ledger(landing.consumer_group)
    if not ledger.noted.has_all_since(landing.after):
        # An old landing may have landed, though the ledger no longer has its id.
        return False
    if landing.replaces:
        # A replace requires landed ranges, so the ledger does not show whether the replace itself has landed.
        return _is_old(landing)
    # Another landing has some of the offsets, so the ledger would refuse this landing.
    return bool(ledger.entry(landing.identity).held & landing.ranges)
