"""A model of an Iceberg table's metadata under random histories, with the true ledger kept beside it.

The model commits landings the way the package does (ledger read at the head, compare and set, property re-anchored),
and does to the table what other people do: foreign commits, rollback, set-current, both engines' expiry, replace,
cherry-pick. The truth is what the full ancestry says, which expiry never touches.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from airflow_lakestream.core import codec, lineage
from airflow_lakestream.core.ledger import Counts, Landing, Ledger, TopicEntry, TopicIdentity
from airflow_lakestream.core.lineage import LedgerReading, SnapshotFacts, TableFacts, anchors_after, encode_restated
from airflow_lakestream.core.ranges import RangeSet

GROUPS = ("a", "b")
# One topic for each group, so that the two groups' landings never touch the same offsets.
IDENTITIES = {group: TopicIdentity(f"topic-{group}", f"id-{group}", "cluster") for group in GROUPS}
Reader = Callable[[Iterable[TableFacts], str], LedgerReading]


@dataclass
class Truth:
    """What really happened in one snapshot."""

    parent: int | None
    landings: dict[str, Landing] = field(default_factory=dict)
    rows: int = 0
    # The groups whose ledger starts anew here, with nothing in it.
    anew: tuple[str, ...] = ()


class TableModel:
    def __init__(
        self,
        rng: random.Random,
        *,
        reader: Reader = lineage.read,
        keep: int = 100,
        guarded: bool = True,
        keep_snapshots: int | None = None,
    ):
        self.rng, self.reader, self.keep, self.guarded = rng, reader, keep, guarded
        self.keep_snapshots = keep_snapshots
        self.truth: dict[int, Truth] = {}
        self.facts = TableFacts(None, {}, {})
        self.log: list[TableFacts] = []
        self.sequence = 0
        self.refused = 0
        self.replaced = 0
        self.readings = 0
        # By group, until the metadata change: readings are of these alone.
        self._read: dict[str, LedgerReading | None] = {}
        self._held: dict[str, tuple[RangeSet, int]] = {}

    # What the metadata shows

    def history(self) -> Iterable[TableFacts]:
        yield self.facts
        yield from reversed(self.log)

    def read(self, group: str) -> LedgerReading | None:
        if group not in self._read:
            self._read[group] = self._read_anew(group)
        return self._read[group]

    def _read_anew(self, group: str) -> LedgerReading | None:
        self.readings += 1
        try:
            return self.reader(self.history(), group)
        except lineage.ReplacedTable:
            self.replaced += 1
            return None
        except lineage.UndecidedLedger:
            self.refused += 1
            return None

    # What is true

    def ancestry(self) -> list[int]:
        chain, at = [], self.facts.head_id
        while at is not None:
            chain.append(at)
            at = self.truth[at].parent
        return chain

    def true_landings(self, group: str) -> list[Landing]:
        found: list[Landing] = []
        for snapshot in self.ancestry():
            truth = self.truth[snapshot]
            if group in truth.anew:
                break
            if group in truth.landings:
                found.insert(0, truth.landings[group])
        return found

    def true_held(self, group: str) -> RangeSet:
        held, _ = self._held_and_landed(group)
        return held

    def doubled(self, group: str) -> bool:
        held, landed = self._held_and_landed(group)
        return landed != held.width

    def _held_and_landed(self, group: str) -> tuple[RangeSet, int]:
        """Return the offsets that landings hold, and how many they landed."""
        if group not in self._held:
            held, landed = Ledger(group), 0
            for landing in self.true_landings(group):
                held = held.add(landing)
                landed += landing.held[IDENTITIES[group]].width
            self._held[group] = held.entry(IDENTITIES[group]).landed, landed
        return self._held[group]

    # What happens

    def step(self) -> None:
        actions = [self.land] * 6 + [self.race] * 2 + [self.foreign] * 4 + [self.rollback] * 2
        actions += [self.set_current, self.expire_java, self.expire_java, self.expire_pyiceberg]
        actions += [self.expire_pyiceberg, self.cherry_pick]
        if self.rng.random() < 0.06:
            actions = [self.restate_ledgers]
        if self.rng.random() < 0.03:
            actions = [self.replace_table]
        self.rng.choice(actions)()

    def land(self) -> None:
        group = self.rng.choice(GROUPS)
        base = self.read(group)
        if base is not None:
            self._commit_landing(group, self._plan(group, base), base)

    def race(self) -> None:
        """Let two runs of one group plan on one base, and then commit one after the other."""
        group = self.rng.choice(GROUPS)
        base = self.read(group)
        if base is None:
            return
        plans = [self._plan(group, base), self._plan(group, base)]
        for plan in plans:
            now = self.read(group) if self.guarded else base
            if now is not None and not now.ledger.overlap(plan):
                self._commit_landing(group, plan, now)

    def foreign(self) -> None:
        self._commit(rows=self.rng.randint(0, 5))

    def rollback(self) -> None:
        alive = [s for s in self.ancestry() if s in self.facts.snapshots]
        if alive:
            self._publish(replace(self.facts, head_id=self.rng.choice(alive)))

    def set_current(self) -> None:
        if self.facts.snapshots and self.facts.head_id is not None:
            self._publish(replace(self.facts, head_id=self.rng.choice(sorted(self.facts.snapshots))))

    def expire_java(self) -> None:
        self._expire(erase_parents=False)

    def expire_pyiceberg(self) -> None:
        self._expire(erase_parents=True)

    def replace_table(self) -> None:
        """CREATE OR REPLACE TABLE: the properties and the snapshots stay, main goes."""
        if self.facts.head_id is not None:
            self._publish(replace(self.facts, head_id=None))

    def restate_ledgers(self) -> None:
        """Empty a group's ledger in one snapshot, as `lakestream ledger reset` does."""
        group = self.rng.choice(GROUPS)
        if self.facts.head_id is None or self.read(group) is None:
            return
        new = self._next_id()
        properties = {codec.property_key(group): codec.encode_property(codec.LedgerProperty(new, Ledger(group), ()))}
        properties |= self._anchored_again(group, new)
        self._commit(rows=0, summary=encode_restated({group: Ledger(group)}), properties=properties, snapshot_id=new)
        self.truth[new].anew = (group,)

    def cherry_pick(self) -> None:
        chain = set(self.ancestry())
        picked = {self._source_of(s) for s in chain}
        others = [s for s in self.facts.snapshots if s not in chain and s not in picked and self._source_of(s) is None]
        # Refused by the reader, and rightly: whose ledger it would start anew nobody can say.
        others = [s for s in others if not self.truth[s].anew]
        if not others or self.facts.head_id is None:
            return
        source = self.rng.choice(others)
        # A source whose rows are here already in another landing would be doubled by the picker, not by a landing.
        landings = self.truth[source].landings
        if any(self.true_held(g) & landing.held[IDENTITIES[g]] for g, landing in landings.items()):
            return
        self._commit(rows=1, landings=landings, summary={"source-snapshot-id": str(source)})

    # How

    def _source_of(self, snapshot_id: int) -> int | None:
        facts = self.facts.snapshots.get(snapshot_id)
        source = facts.summary.get("source-snapshot-id") if facts else None
        return int(source) if source is not None else None

    def _plan(self, group: str, base: LedgerReading) -> Landing:
        identity = IDENTITIES[group]
        held = base.ledger.entry(identity).landed
        partition = self.rng.randint(0, 1)
        start = held.first_missing(identity.topic, partition, self.rng.choice([0, 0, 0, self.rng.randint(0, 20)]))
        width = self.rng.randint(1, 6)
        ranges = RangeSet.of(identity.topic, partition, start, start + width) - held
        entry = TopicEntry(landed=ranges, counts=Counts(ranges.width, ranges.width), origin={0: 0, 1: 0})
        return Landing(f"{self.rng.getrandbits(48):x}", "run", {identity: entry})

    def _commit_landing(self, group: str, landing: Landing, base: LedgerReading) -> None:
        if not landing.held[IDENTITIES[group]]:
            return
        new = self._next_id()
        properties = {codec.property_key(group): codec.encode_property(base.property_after(new, landing))}
        properties |= self._anchored_again(group, new)
        summary = codec.encode_summary(group, landing)
        expiring = self._expiring()
        for each in GROUPS if expiring else ():
            properties[codec.anchors_key(each)] = codec.encode_anchors(anchors_after(self.history, each, expiring))
        self._commit(
            rows=1,
            landings={group: landing},
            summary=summary,
            properties=properties,
            snapshot_id=new,
            expiring=expiring,
        )

    def _expiring(self) -> list[int]:
        """Return what a landing lets expire: all but the newest, never main's head."""
        if self.keep_snapshots is None:
            return []
        others = sorted(self.facts.snapshots.values(), key=lambda s: s.sequence_number)
        oldest = [s.snapshot_id for s in others if s.snapshot_id != self.facts.head_id]
        return oldest[: max(0, len(oldest) - self.keep_snapshots)]

    def _anchored_again(self, but: str, new: int) -> dict[str, str]:
        """Return the properties of all groups but one, anchored at a new snapshot that changes nothing of theirs."""
        properties = {}
        for other in GROUPS:
            key = codec.property_key(other)
            if other != but and key in self.facts.properties and (reading := self.read(other)) is not None:
                properties[key] = codec.encode_property(reading.property_after(new, None))
        return properties

    def _next_id(self) -> int:
        return self.rng.getrandbits(62)

    def _commit(self, *, rows, landings=None, summary=None, properties=None, snapshot_id=None, expiring=()) -> None:
        new = snapshot_id or self._next_id()
        head = self.facts.head_id
        self.sequence += 1
        total = rows + (self.truth[head].rows if head is not None else 0)
        self.truth[new] = Truth(head, dict(landings or {}), total)
        facts = SnapshotFacts(new, head, self.sequence, {"total-records": str(total), **(summary or {})})
        kept = {s: f for s, f in self.facts.snapshots.items() if s not in expiring}
        if expiring and self.rng.random() < 0.5:
            kept = {s: replace(f, parent_id=None) if f.parent_id in expiring else f for s, f in kept.items()}
        self._publish(TableFacts(new, {**kept, new: facts}, {**self.facts.properties, **(properties or {})}))

    def _expire(self, *, erase_parents: bool) -> None:
        snapshots = dict(self.facts.snapshots)
        doomed = [s for s in snapshots if s != self.facts.head_id]
        if self.rng.random() < 0.5:
            doomed = [s for s in doomed if self.rng.random() < 0.7]
        if not doomed:
            return
        for s in doomed:
            del snapshots[s]
        if erase_parents:
            for s, facts in snapshots.items():
                if facts.parent_id not in snapshots:
                    snapshots[s] = replace(facts, parent_id=None)
        self._publish(replace(self.facts, snapshots=snapshots))

    def _publish(self, facts: TableFacts) -> None:
        self.log = [*self.log, self.facts][-self.keep :]
        self.facts = facts
        self._read, self._held = {}, {}
