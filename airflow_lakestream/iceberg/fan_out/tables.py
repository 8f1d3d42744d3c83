"""Tables of a fan-out: the home, with notes and without rows, and the targets, also as seen by a single run."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import BadRequestError, ForbiddenError
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from airflow_lakestream.core.landing.landed_rows import look
from airflow_lakestream.core.landing.plan import LandedByAnotherGroup, check_identity
from airflow_lakestream.core.landing.unaccounted import ForeignRowQuery
from airflow_lakestream.core.ledger import Counts, Landing, TopicEntry, TopicIdentity, union
from airflow_lakestream.core.ports import Conflict, ReplacedMeanwhile, TableState, or_discard
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.routing import ROUTE_COLUMNS, ROUTE_OFFSET, ROUTE_PARTITION
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.fan_out.books import (
    BOOKS,
    MEMBER,
    ROWS,
    Fenced,
    HomeNotes,
    NotItsOwn,
    Properties,
    Stamp,
    fingerprint_of,
    landed_by_fan_out,
    landings_of,
    owner_of,
    stamped,
    stamped_run_id,
)
from airflow_lakestream.iceberg.fitness import NotIceberg, UnreadableTable
from airflow_lakestream.iceberg.replace.takeout import Finder
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.tables.coordinates import Offsets, is_within
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.schema.columns import payload_schema

log = logging.getLogger(__name__)

# A catalog's errors about a single table: it is not an Iceberg table, its metadata are gone or of another kind, or the
# connection may not read it.
_OF_ONE_TABLE = (BadRequestError, ForbiddenError, NotIceberg, UnreadableTable)


class TableTakenMeanwhile(Conflict):
    """Free table at this run's look, filled by another stream since."""

    def __init__(self, table: str, reason: str) -> None:
        super().__init__(f"{table} {reason} since this run looked at it.")


class HomeTable:
    """Home of a fan-out: the ledger covers the whole fan-out, the columns are common to all targets."""

    def __init__(self, catalog: Catalog, name: str, group: str, design: TableDesign, *, overlaps: bool) -> None:
        self._name, self._design = name, design
        self.sink = IcebergSink(catalog, name, group, design, allow_group_overlap=overlaps, check_part=lambda _: None)

    def load(self, run_id: str) -> TableState:
        """Load the table again; see `IcebergSink.load`. Raises InvalidArgument if the table is not a home."""
        state = self.sink.load(run_id)
        if state.exists and BOOKS not in self.sink.properties:
            raise InvalidArgument(
                "home_table",
                f"{self._name} is there and is not the home of a fan-out.",
                "Give another name; the home is created when missing.",
            )
        return state

    @property
    def notes(self) -> HomeNotes | None:
        """The notes of the home at the last look or commit, or None if the table is missing."""
        return HomeNotes.of(self.sink.properties)

    def take_schema(self, schema: Schema) -> None:
        """Set the columns of this payload, for a missing home."""
        self.sink.take_design(replace(self._design, schema=schema))

    def columns(self, given_schema: Schema | None) -> tuple[Schema, pa.Schema]:
        """Return the payload's columns in every target, and the columns for decoding rows by the given schema."""
        design = self.sink.target().schema()
        names = self._design.metadata.names
        payload = Schema(*(f for f in design.fields if f.name not in names and not f.name.startswith("_kafka_")))
        return payload, payload_schema(design, names, given_schema)

    def rows_of(self, snapshot_id: int) -> Counter[str]:
        """Return the rows by table in a landing of the home; empty once the snapshot has expired."""
        snapshot = None if self.sink.loaded is None else self.sink.loaded.metadata.snapshot_by_id(snapshot_id)
        return Counter(json.loads(ledger_store.summary_of(snapshot).get(ROWS, "{}")) if snapshot else {})

    def commit(self, landing: Landing, change: Stamp, rows: Mapping[str, int]) -> int:
        """Commit the landing with changed notes.

        :param change: returns the properties to set, and may refuse the commit.
        :param rows: the landing's rows by table, for the summary of the snapshot.
        """
        summary = {ROWS: json.dumps(dict(sorted(rows.items())), separators=(",", ":"))} if rows else {}
        return self.sink.commit(landing, partial(stamped, stamp=change), partial(replace, summary=summary))


class TargetTable:
    """Target of a fan-out. Commits are refused once another configuration has fenced the table.

    With `fences`, the next commit is the fence: it excludes the other configurations.

    :param fingerprint: the fingerprint of this run's configuration.
    :param is_known: whether the home has noted the table, so that it may hold records of a run that died.
    :param overlaps: whether offsets of another group may be landed here, too.
    """

    def __init__(
        self,
        catalog: Catalog,
        name: str,
        group: str,
        design: TableDesign,
        home: str,
        fingerprint: str,
        *,
        is_known: bool,
        overlaps: bool,
    ) -> None:
        self._catalog, self._name, self._group, self.home, self.fingerprint = catalog, name, group, home, fingerprint
        self._is_known, self.overlaps, self.fences = is_known, overlaps, False
        refuse = self._refuse_owned
        self.sink = IcebergSink(catalog, name, group, design, allow_group_overlap=overlaps, check_part=refuse)
        refuse_taken = partial(self._refuse_owned, refusal=TableTakenMeanwhile)
        self.sink.builders = [partial(stamped, stamp=self._stamp, look=refuse_taken)]

    def load(self, run_id: str) -> TableState:
        """Load the table again; see `IcebergSink.load`. Raises NotItsOwn for a table not made by this fan-out."""
        try:
            state = self.sink.load(run_id)
        except _OF_ONE_TABLE as e:
            if self._is_known:
                raise
            raise NotItsOwn(self._name, f"the catalog does not give out ({e or type(e).__name__})") from e
        except NotItsOwn:
            raise
        except LakestreamError as e:
            # The fan-out's own tables may hold records already: their errors are for people to correct.
            if self.sink.loaded is None or self.member is not None or not isinstance(e, Terminal):
                raise
            raise NotItsOwn(self._name, f"does not fit: {e}") from e
        if not state.exists and self._is_view():
            raise NotItsOwn(self._name, "is a view")
        return state

    @property
    def member(self) -> str | None:
        """The fingerprint of the configuration with the right to write the table, or None before the first."""
        return self.sink.properties.get(MEMBER + self.home)

    def landed_by(self, topic: str) -> Mapping[str | None, RangeSet]:
        """Return the landed ranges by fingerprint of the configuration, as far back as the metadata goes.

        The key None is for landings outside of fan-outs.
        """
        ranges: dict[str | None, RangeSet] = {}
        for landing in () if self.sink.loaded is None else landings_of(self.sink.loaded, self._group):
            key = fingerprint_of(landing.run_id)
            for identity, entry in landing.topics.items():
                if identity.topic == topic:
                    ranges[key] = ranges.get(key, RangeSet()) | entry.landed | entry.replaced
        return ranges

    def replace(self, landing: Landing, read: Offsets) -> None:
        """Replace rows; see `IcebergSink.replace`.

        :param read: the offsets that the replace may remove: all offsets that were read again, even if their rows go to
            another table now.
        """

        def finder(ranges: RangeSet, files: Sequence[DataFile], write: Callable[..., Any], _: object) -> Finder:
            return Finder(ranges, files, write, _read_again=read)

        self.sink.replace(landing, finder)

    def _refuse_owned(self, table: Table, refusal: Callable[[str, str], LakestreamError] = NotItsOwn) -> None:
        """Refuse a table outside of this fan-out and of further fan-outs of the group. Raises `refusal`."""
        if MEMBER + self.home in table.metadata.properties or landed_by_fan_out(table, self._group):
            return
        if (owner := owner_of(table)) is not None:
            raise refusal(self._name, owner)

    def _is_view(self) -> bool:
        try:
            return self._catalog.view_exists(self._name)
        except Exception as e:  # noqa: BLE001  # catalogs without views refuse in many ways
            log.debug("%s: the catalog does not report whether it is a view: %r", self._name, e)
            return False

    def _stamp(self, properties: Properties) -> Properties:
        """Return the property with this run's fingerprint. Raises Fenced if another configuration has the table."""
        key = MEMBER + self.home
        if not self.fences and properties.get(key, self.fingerprint) != self.fingerprint:
            raise Fenced(self._name)
        return {key: self.fingerprint}


class LandedOutside(LakestreamError, Terminal):
    """Table with offsets landed outside of this fan-out."""

    def __init__(self, table: str, ranges: RangeSet, consumer_group: str, home: str) -> None:
        self.ranges = ranges
        super().__init__(
            f"{table} holds {ranges} for consumer group {consumer_group!r} already, landed there outside of the "
            f"fan-out of {home}. Nothing was landed past it, since its records would be there twice. Fan out into "
            "other tables (another template), or begin behind them with another consumer_group."
        )


class ReplacedByAnother(Conflict):
    """Half landed ranges, replaced by another run of the same configuration first."""

    def __init__(self, table: str) -> None:
        super().__init__(f"{table}: another run did the half landed ranges again first.")


class FanOutTarget:
    """Target table, with the rows read in this run since the last commit.

    Rows of offsets that the table holds already are set aside: a dead or another run landed these in this table, and
    died before the commit of the home, or has not reached it yet.

    :param open_table: returns the table, not loaded yet.
    :param opened: the loaded table, and the state that it loaded.
    """

    def __init__(
        self,
        name: str,
        open_table: Callable[[], TargetTable],
        opened: tuple[TargetTable, TableState],
        identity: TopicIdentity,
        run_id: str,
    ) -> None:
        self.name = name
        self._open_table = open_table
        self._identity = identity
        self._run_id = run_id
        self.table, state = opened
        self._sink = self.table.sink
        check_identity(state.ledger, identity, name)
        self.exists = state.exists
        self._state = state
        self._group = state.ledger.consumer_group
        self._entry = state.ledger.entry(identity)
        # Rows of offsets that the table holds already.
        self._aside: list[pa.Table] = []
        # The number of buffered rows of other offsets, and of all rows since the last commit.
        self._fresh = 0
        self.rows = 0

    @property
    def landed(self) -> RangeSet:
        """The landed ranges of the topic in the table's own ledger."""
        return self._entry.landed

    def take(self, rows: pa.Table) -> None:
        """Buffer routed rows of a partition for the next commit; rows of offsets already in the table are set aside."""
        self.rows += rows.num_rows
        partition = rows[ROUTE_PARTITION][0].as_py()
        intervals = self._entry.landed.intervals(self._identity.topic, partition)
        is_landed = is_within(rows[ROUTE_OFFSET], intervals)
        if pc.any(is_landed).as_py():
            self._aside.append(rows.filter(is_landed))
            rows = rows.filter(pc.invert(is_landed))
        if rows.num_rows:
            self._fresh += rows.num_rows
            self._sink.write(rows.drop_columns(list(ROUTE_COLUMNS)), self._identity)

    def take_over(self, files: Mapping[str, Any]) -> None:
        """Add files of fresh rows, written by a process of this run, to the next commit."""
        count = sum(file["record_count"] for file in files["files"])
        self.rows += count
        self._fresh += count
        self._sink.take_over(files)

    def land(self, landing: Landing, after: TopicEntry, fingerprint: str, read: Callable[[], Offsets]) -> None:
        """Commit the landing's part for this table, and forget the buffered rows.

        Ranges that the table holds by the same configuration hold the same rows, and are left out. Ranges of another
        configuration are replaced. Raises LandedOutside, LandedByAnotherGroup, and the errors of a sink's commit and
        replace.

        :param after: the topic's entry in the home's ledger after the landing.
        :param fingerprint: the fingerprint of this run's configuration.
        :param read: returns the offsets of all records read, also of other tables, for a replace.
        """
        ranges = landing.topics[self._identity].landed
        self._refuse_foreign_landings(ranges)
        if landed_before := self._entry.landed & ranges:
            landed_by = self.table.landed_by(self._identity.topic)
            if redo := landed_before - landed_by.get(fingerprint, RangeSet()):
                if self.table.member is None or redo & landed_by.get(None, RangeSet()):
                    raise LandedOutside(self.name, redo, self._group, self.table.home)
                self._do_again(redo, landing, fingerprint, read())
        if self._fresh:
            entry_held = self._entry.held
            change = TopicEntry(
                # The home's ranges without a record for this table count, too: here they are complete.
                landed=after.landed - entry_held,
                lost=after.lost - entry_held,
                counts=Counts(read=self._fresh, written=self._fresh),
                origin=after.origin,
                epochs=after.epochs,
            )
            self._sink.commit(self._landing(landing, "", fingerprint, change))
            self._entry += change
            self.exists = True
        self._aside, self._fresh, self.rows = [], 0, 0

    def refuse_doubling(self, after: TopicEntry) -> None:
        """Refuse another tool's rows in ranges of the fan-out, before this table's first landing.

        `after` is the topic's entry in the home's ledger after the landing. Raises RowsUnaccounted.
        """
        if self._entry.landed or not self._fresh:
            return
        topic = self._identity.topic
        ledgers = [self._state.ledger, *self._state.other_ledgers.values()]
        entries = (item for ledger in ledgers for item in ledger.topics.items())
        known = union(entry.landed for identity, entry in entries if identity.topic == topic)
        query = ForeignRowQuery(topic, known, after.origin, None if after.origin else after.landed)
        look(self._state.look_for_rows, query, self.name, self._group)

    def fence(self, fingerprint: str) -> None:
        """Exclude all except this configuration from commits; a missing table is created for the purpose.

        The target must not be used afterwards: the state that it loaded has changed.
        """
        table = self._open_table()
        table.load(self._run_id)
        table.fences = True
        name = f"fence {fingerprint} {self._run_id}"
        table.sink.commit(Landing(f"{name} {self.name}", stamped_run_id(name, fingerprint), {}))

    def discard(self) -> None:
        """Delete all uncommitted files; never raises."""
        self._sink.discard()

    def _do_again(self, ranges: RangeSet, landing: Landing, fingerprint: str, read: Offsets) -> None:
        """Replace rows that a dead run landed under an earlier configuration."""
        log.info("%s: half landed under another configuration, done again: %s", self.name, ranges)
        table = self._open_table()
        table.load(self._run_id)
        rows = [self._within(aside, ranges) for aside in self._aside]
        count = sum(part.num_rows for part in rows)
        change = TopicEntry(replaced=ranges, counts=Counts(read=count, written=count))
        try:
            with or_discard(table.sink):
                for part in rows:
                    table.sink.write(part.drop_columns(list(ROUTE_COLUMNS)), self._identity)
                table.replace(self._landing(landing, "/again", fingerprint, change), read)
        except ReplacedMeanwhile as e:
            raise ReplacedByAnother(self.name) from e

    def _within(self, rows: pa.Table, ranges: RangeSet) -> pa.Table:
        """Return the rows in these ranges, from rows of a single partition."""
        intervals = ranges.intervals(self._identity.topic, rows[ROUTE_PARTITION][0].as_py())
        return rows.filter(is_within(rows[ROUTE_OFFSET], intervals))

    def _landing(self, landing: Landing, suffix: str, fingerprint: str, change: TopicEntry) -> Landing:
        """Return this table's landing of a change, as part of the home's landing."""
        # The id and the run id show that a target's landing belongs to the landing of the home.
        own_id = f"{landing.landing_id}/{self.name}{suffix}"
        run_id = stamped_run_id(landing.run_id, fingerprint)
        return Landing(own_id, run_id, {self._identity: change}, engine=landing.engine)

    def _refuse_foreign_landings(self, ranges: RangeSet) -> None:
        """Refuse ranges landed in this table by another group. Raises LandedByAnotherGroup."""
        for other, ledger in self._state.other_ledgers.items():
            landed_by_other = ranges & ledger.entry(self._identity).landed
            if landed_by_other and not self.table.overlaps:
                raise LandedByAnotherGroup(landed_by_other, self._group, other, self.name)
