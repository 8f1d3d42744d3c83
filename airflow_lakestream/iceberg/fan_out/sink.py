"""Fan-out of a topic into many tables, each record once, without a transaction over the tables.

The rule: a home table holds no rows and has the ledger for planning; it commits last. Each target commits before it,
with a ledger of its own in the same commit as its rows. A run that died in between left targets with offsets that the
home lacks. They are read again, and each target leaves out offsets that it holds already.

This is correct only if the same record becomes the same row of the same table. So the home keeps a fingerprint of
the configuration. A run with another configuration takes over: it claims the home, then fences every target that the
home knows (a target is noted there before its first row), so no earlier run can commit anywhere; half landed ranges
are then landed again by replace, in every target.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.utils.concurrent import ExecutorFactory

from airflow_lakestream.core.ledger import Landing, Ledger, TopicIdentity
from airflow_lakestream.core.ports import Conflict, NotShared, TableState
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.routing import ROUTE_COLUMNS, ROUTE_OFFSET, ROUTE_PARTITION, NewTables
from airflow_lakestream.exceptions import BadRecord, InvalidArgument
from airflow_lakestream.iceberg.fan_out.admission import LOOKS, FanOut, RouteAdmission, known_tables
from airflow_lakestream.iceberg.fan_out.books import BOOKS, HomeNotes, NotItsOwn, Properties, Superseded
from airflow_lakestream.iceberg.fan_out.share import ROUTES, FanOutOutline, by_route
from airflow_lakestream.iceberg.fan_out.tables import FanOutTarget, HomeTable, TargetTable
from airflow_lakestream.tables.coordinates import Offsets
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.schema.columns import to_schema

log = logging.getLogger(__name__)

# The number of tables known to the home that are loaded when a driver begins, at most.
MOST_EXPECTED = 1_000


class TakenOver(Conflict):
    """Takeover of tables from another configuration; the run loads the tables again."""

    def __init__(self, home: str) -> None:
        super().__init__(f"{home}: its tables were taken over from another configuration.")


class TablesChanged(Conflict):
    """New table, noted by another run for a different value."""

    def __init__(self, home: str) -> None:
        super().__init__(f"{home}: another run has noted new tables in the home first.")


class HalfLanded(Conflict):
    """Offsets of a table missing in the home: another run has died, or is under way."""

    def __init__(self, table: str, ranges: RangeSet) -> None:
        super().__init__(f"{table} holds {ranges}, half landed by another run. One process lands these.")


class FanOutSink:
    """A `core.ports.Sink` over a home and targets; rows have the columns of `decode.metadata.RecordRouter`."""

    def __init__(
        self,
        catalog: Catalog,
        fan_out: FanOut,
        consumer_group: str,
        design: TableDesign,
        *,
        allow_group_overlap: bool = False,
    ) -> None:
        self._catalog = catalog
        self._fan_out = fan_out
        self._group = consumer_group
        self._design = design
        self._allow_group_overlap = allow_group_overlap
        # The home's configuration at this run's first look, or the configuration that this run gave it.
        self._fingerprint: str | None = None
        self._rows: dict[str, Counter[str]] = {}
        self._payload: Schema | None = None
        # The loaded tables, kept when the run plans again.
        self._opened: dict[str, TargetTable] = {}
        self._is_alone = False
        self._outline: FanOutOutline | None = None
        # Decoders, in threads of their own, ask for admission while rows are written and committed.
        self._lock = threading.RLock()
        self._begin(None)

    @property
    def rows_by_table(self) -> Counter[str]:
        """The rows of this run's landings by table, earlier tries of the run included."""
        return sum(self._rows.values(), Counter[str]())

    def refusals(self, routes: Iterable[str], rows: pa.Schema) -> Mapping[str, str]:
        """Return the refused routes with reasons; called by decoders, in several threads.

        :param rows: the columns of rows, without the columns of routes.
        """
        if self._payload is None:
            with self._lock:
                self._take_schema(rows)
        return self._admission.refusals(routes)

    def load(self, run_id: str) -> TableState:
        """Load the home again. Raises Superseded, and InvalidArgument if design and home contradict.

        All tables except the home are loaded again when needed.
        """
        with self._lock:
            return self._load(run_id)

    def _load(self, run_id: str) -> TableState:
        home = self._begin(run_id)
        state = home.load(run_id)
        self._ledger = state.ledger
        if (notes := home.notes) is not None:
            if notes.topic != self._fan_out.topic:
                raise InvalidArgument(
                    "home_table",
                    f"{self._fan_out.home} is the home of the topic {notes.topic!r}.",
                    "Each topic has a home of its own: give another name, or put {topic} into it.",
                )
            if self._fingerprint not in (None, notes.fingerprint):
                raise Superseded(self._fan_out.home)
            self._fingerprint = notes.fingerprint
            # A new table gets all columns of the home, even if fewer are given now.
            self._payload = home.columns(None)[0]
        for snapshot_id, landing in state.landed_by_run:
            self._rows.setdefault(landing.landing_id, home.rows_of(snapshot_id))
        return state

    def write(self, rows: pa.Table, identity: TopicIdentity) -> None:
        """Buffer rows for the next commit. Raises BadRecord for a route without admission.

        Also raises the errors of `RouteAdmission.refusals`, of loading a target, and RowsNotWritable.
        """
        with self._lock:
            self._take_schema(rows.schema)
            for route, part in by_route(rows):
                self._target_of(route, part, identity).take(part)
            self._read.append(rows.select([ROUTE_PARTITION, ROUTE_OFFSET]))

    def pass_over(self, identity: TopicIdentity, partition: int, offsets: Any) -> None:
        """Ignore the offsets: only a replace needs the offsets of records without a row."""

    def commit(self, landing: Landing) -> int:
        """Commit each target, then the home; see `core.ports.Sink`. Returns the home's snapshot.

        Before, new tables are noted in the home, and tables of earlier configurations are fenced. Raises Superseded,
        a Conflict such as TakenOver or TablesChanged, and the errors of `FanOutTarget.refuse_doubling` and
        `FanOutTarget.land`.
        """
        with self._lock:
            return self._commit(landing)

    def _commit(self, landing: Landing) -> int:
        """Commit the landing's rows to each table, and then the ledger to the home; return the home's snapshot.

        All tables are checked before the first commit.
        """
        [(identity, change)] = landing.topics.items()
        fingerprint = self._own_fingerprint()
        after = self._ledger.entry(identity) + change
        for target in self._targets.values():
            target.refuse_doubling(after)
        self._note_tables(fingerprint)
        self._take_over(fingerprint, identity)
        rows = Counter({name: target.rows for name, target in self._targets.items() if target.rows})
        for _, target in sorted(self._targets.items()):
            target.land(landing, after, fingerprint, self._offsets_of(identity))
        # Settled if no target has offsets that the home lacks after this commit.
        settled = not any(target.landed - after.landed for target in self._targets.values())

        def noted(properties: Properties) -> Properties:
            """Return the property with the home's notes after the landing. Raises Superseded."""
            notes = self._notes_in(properties, fingerprint)
            if notes.fingerprint != fingerprint:
                raise Superseded(self._fan_out.home)
            return {BOOKS: replace(notes, settled=notes.settled or settled).encode()}

        snapshot_id = self._home.commit(landing, noted, rows)
        self._ledger = self._ledger.add(landing)
        self._rows[landing.landing_id] = rows
        self._read.clear()
        return snapshot_id

    @property
    def is_alone(self) -> bool:
        """Whether a single process must land: ranges are half landed, or the configuration has changed."""
        notes = self._home.notes
        changed = notes is not None and not (notes.settled and notes.fingerprint == self._own_fingerprint())
        return self._is_alone or changed

    @property
    def routes(self) -> Sequence[str]:
        """The routes of buffered and of refused records; before the first record, the routes in the home's notes."""
        used = [route for route, name in self._admission.admitted.items() if name in self._targets]
        noted_routes = [route for route in self._noted_tables().values() if route is not None]
        return [*used, *self._refused] or noted_routes[:MOST_EXPECTED]

    def expect(self, routes: Iterable[str], identity: TopicIdentity, ranges: RangeSet) -> None:
        """Load the tables of likely routes in these ranges, for the outline of executors.

        Routes whose tables the home does not know are not admitted; the first few are only checked for a refusal.
        Raises the errors of `decide`.
        """
        with self._lock:
            self._identity, self._ranges = identity, ranges
            noted_routes = set(self._noted_tables().values())
            self.decide([route for route in routes if route in noted_routes])
            self._refused |= self._admission.peek([r for r in routes if r not in noted_routes][:LOOKS])

    def decide(self, routes: Sequence[str]) -> None:
        """Admit or refuse the tables of routes, in this order, for the outline of executors.

        Raises the errors of `RouteAdmission.refusals`, and HalfLanded if a table already has offsets of this run's
        ranges. HalfLanded sets `is_alone`, so that a single process reads the next plan.
        """
        with self._lock:
            self._refused |= self._admission.refusals(routes)
            self._outline = None
            for name in self._admission.admitted.values():
                _, state = self._look_at(name)
                if already_landed := state.ledger.entry(self._identity).landed & self._ranges:
                    self._is_alone = True
                    raise HalfLanded(name, already_landed)

    def outline(self) -> FanOutOutline:
        """Return the outline of all admitted tables, for executors."""
        with self._lock:
            if self._outline is None:
                tables = {route: self._look_at(name)[0].sink for route, name in self._admission.admitted.items()}
                self._outline = FanOutOutline(
                    self._fan_out,
                    self._home.sink.outline().without_history(),
                    self._home.columns(self._design.schema)[1],
                    {route: sink.outline().without_history() for route, sink in tables.items()},
                    dict(self._refused),
                    known_tables(self._noted_tables(), self._admission.admitted),
                )
            return self._outline

    def take_over(self, files: Mapping[str, Any]) -> None:
        """Add files written by an executor to the next commit."""
        with self._lock:
            for route, handed in files[ROUTES].items():
                self._target(route, self._identity).take_over(handed)

    def sweep(self, folder: str) -> None:
        """Delete the uncommitted files below this folder of each table's data; never raises."""
        sinks = (self._home.sink, *(table.sink for table in self._opened.values()))
        for _ in ExecutorFactory.get_or_create().map(lambda sink: sink.sweep(folder), sinks):
            pass

    def check_shared(self, *_: Any, **__: Any) -> Any:
        """Refuse several workers. Raises NotShared."""
        raise NotShared

    write_below = hand_over = misfit = let_go = adopt = check_shared

    def replace(self, landing: Landing) -> tuple[int, Landing]:
        """Raise InvalidArgument: a replace over several tables is not built yet."""
        raise InvalidArgument("replace", "does not go with a table that records choose.")

    def schema_changes(self, snapshot_id: int) -> Sequence[str]:
        """Return an empty list: the schemas of a fan-out's tables do not change."""
        return ()

    def discard(self) -> None:
        """Delete all uncommitted files; never raises."""
        for target in self._targets.values():
            target.discard()
        # Further tables may have been staged for executors.
        for table, _ in self._looked_at.values():
            table.sink.discard()
        self._home.sink.discard()
        self._read.clear()
        self._new.clear()

    def _begin(self, run_id: str | None) -> HomeTable:
        """Forget all tables, except those in `_opened`, and return a home that is not loaded yet."""
        self._run_id = run_id or ""
        self._payload = self._design.schema
        # A home has no rows to lay out.
        bare = replace(self._design, partition_by=None, sort_order=None)
        overlaps = self._allow_group_overlap
        self._home = HomeTable(self._catalog, self._fan_out.home, self._group, bare, overlaps=overlaps)
        self._ledger = Ledger(self._group)
        self._targets: dict[str, FanOutTarget] = {}
        self._new: dict[str, str] = {}
        self._looked_at: dict[str, tuple[TargetTable, TableState]] = {}
        self._admission = RouteAdmission(self._fan_out, self._noted_tables, self._is_there, self._names, self._lock)
        self._read: list[pa.Table] = []
        self._refused: dict[str, str] = {}
        self._outline = None
        return self._home

    def _take_schema(self, rows: pa.Schema) -> None:
        """Set the columns of a missing home, and of all new tables, to the columns of the first rows."""
        if self._payload is None:
            names = (*self._design.metadata.names, *ROUTE_COLUMNS)
            payload = to_schema(pa.schema([f for f in rows if f.name not in names]))
            self._home.take_schema(payload)
            self._payload = payload

    def _new_table(self, name: str) -> TargetTable:
        design, is_known = replace(self._design, schema=self._payload), name in self._noted_tables()
        arguments = self._catalog, name, self._group, design, self._fan_out.home, self._own_fingerprint()
        return TargetTable(*arguments, is_known=is_known, overlaps=self._allow_group_overlap)

    def _look_at(self, name: str) -> tuple[TargetTable, TableState]:
        """Return a table and the state that it loaded; the first call for a name loads the table."""
        if (looked_at := self._looked_at.get(name)) is None:
            table = self._new_table(name)
            looked_at = table, table.load(self._run_id)
            self._opened[name] = table
            # A missing table that must not be made is looked up again: a person may make it meanwhile.
            if looked_at[1].exists or self._fan_out.new_tables is NewTables.CREATE:
                self._looked_at[name] = looked_at
        return looked_at

    def _is_there(self, name: str) -> bool:
        return self._look_at(name)[1].exists

    def _names(self) -> Iterable[str] | None:
        """Return the names of the namespace's tables, or None if the catalog does not list tables."""
        try:
            return [".".join(name) for name in self._catalog.list_tables(self._fan_out.template.namespace)]
        except Exception as e:  # noqa: BLE001  # not every connection may list tables
            log.info("The catalog does not list the tables next to %s: %r", self._fan_out.home, e)
            return None

    def _open(self, name: str, identity: TopicIdentity) -> FanOutTarget:
        """Return a target of this run, opened at the first call. Raises the errors of `TargetTable.load`."""
        if name not in self._targets:
            opened = self._look_at(name)
            self._targets[name] = FanOutTarget(name, partial(self._new_table, name), opened, identity, self._run_id)
        return self._targets[name]

    def _target_of(self, route: str, rows: pa.Table, identity: TopicIdentity) -> FanOutTarget:
        """Return the target of routed rows. Raises BadRecord, with the first row's position, for a refused route."""
        for reason in self._admission.refusals([route]).values():
            partition, offset = rows[ROUTE_PARTITION][0].as_py(), rows[ROUTE_OFFSET][0].as_py()
            raise BadRecord(identity.topic, partition, offset, reason)
        return self._target(route, identity)

    def _target(self, route: str, identity: TopicIdentity) -> FanOutTarget:
        """Return the target of an admitted route; a table that the home does not know is kept for its notes."""
        name = self._admission.table_of(route)
        if self._noted_tables().get(name) is None:
            self._new[name] = route
        return self._open(name, identity)

    def _noted_tables(self) -> Mapping[str, str | None]:
        """Return the tables noted in the home, each with its route; see `HomeNotes`."""
        notes = self._home.notes
        return {} if notes is None else notes.tables

    def _own_fingerprint(self) -> str:
        """Return the fingerprint of this run's configuration: template, decoding and columns."""
        _, columns = self._home.columns(self._design.schema)
        fields = [[f.name, str(f.type), f.nullable] for f in columns]
        # The first item is the version of the fingerprint.
        configuration = [1, self._fan_out.template.text, self._fan_out.decoding, fields]
        return hashlib.sha256(json.dumps(configuration).encode()).hexdigest()[:16]

    def _note_tables(self, fingerprint: str) -> None:
        """Claim the home for this configuration, and note new tables in the home before the first row.

        This is a commit of the home without rows; nothing is committed if all is noted already. Raises Superseded if
        a third configuration has claimed the home, and TablesChanged if another run noted a table for another route.
        """
        notes = self._home.notes
        if not self._new and (notes is None or notes.fingerprint == fingerprint):
            return
        first_fingerprint, new = self._fingerprint, dict(self._new)

        def claimed(properties: Properties) -> Properties:
            """Return the property with the home's notes, with the claim and the new tables.

            Raises Superseded, TablesChanged.
            """
            notes = self._notes_in(properties, fingerprint)
            if notes.fingerprint not in (first_fingerprint, fingerprint):
                raise Superseded(self._fan_out.home)
            after = notes.claimed(fingerprint)
            if any(after.tables.get(name) not in (None, route) for name, route in new.items()):
                raise TablesChanged(self._fan_out.home)
            return {BOOKS: after.with_tables(new).encode()}

        self._home.commit(Landing(uuid.uuid4().hex, "fan-out tables", {}), claimed, {})
        self._fingerprint = fingerprint
        self._new.clear()
        log.info("%s has noted %s tables.", self._fan_out.home, len(self._noted_tables()))

    def _notes_in(self, properties: Properties, fingerprint: str) -> HomeNotes:
        return HomeNotes.of(properties) or HomeNotes(self._fan_out.topic, fingerprint)

    def _take_over(self, fingerprint: str, identity: TopicIdentity) -> None:
        """Fence tables of earlier configurations, then raise TakenOver; do nothing without a table to fence.

        Until the home is settled, all its known tables are opened; else only the tables of this commit.
        """
        notes = self._home.notes
        unsettled = {} if notes is None or notes.settled else notes.tables
        strangers = []
        for name in sorted({*unsettled, *self._targets}):
            try:
                target = self._open(name, identity)
            except NotItsOwn as e:
                # It was dropped, and another table was made: no run of this home can write there.
                log.info("%s leaves a table alone that is not its own any more: %s", self._fan_out.home, e)
                continue
            member = target.table.member
            # No run of this home has written to it yet, and from now on only runs of this configuration can.
            is_new = member is None and name not in unsettled
            if member != fingerprint and not is_new:
                strangers.append(target)
        for target in strangers:
            target.fence(fingerprint)
        if strangers:
            raise TakenOver(self._fan_out.home)

    def _offsets_of(self, identity: TopicIdentity) -> Callable[[], Offsets]:
        """Return a function for the offsets of all records read: only a replace needs the offsets."""

        def offsets() -> Offsets:
            read = pa.concat_tables(self._read)
            partitions = pc.unique(read[ROUTE_PARTITION]).to_pylist()
            return {
                (identity.topic, p): read.filter(pc.equal(read[ROUTE_PARTITION], p))[ROUTE_OFFSET].combine_chunks()
                for p in partitions
            }

        return offsets
