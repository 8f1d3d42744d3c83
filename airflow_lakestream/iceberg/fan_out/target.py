"""Target of a fan-out within a run: rows are landed exactly once, even if an earlier run has died."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.core.landing.landed_rows import look
from airflow_lakestream.core.landing.plan import LandedByAnotherGroup, check_identity
from airflow_lakestream.core.landing.unaccounted import ForeignRowQuery
from airflow_lakestream.core.ledger import Counts, Landing, TopicEntry, TopicIdentity, union
from airflow_lakestream.core.ports import Conflict, ReplacedMeanwhile, TableState
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.routing import ROUTE_COLUMNS, ROUTE_OFFSET, ROUTE_PARTITION
from airflow_lakestream.exceptions import LakestreamError, Terminal
from airflow_lakestream.iceberg.fan_out.books import stamped_run_id
from airflow_lakestream.iceberg.fan_out.tables import TargetSink
from airflow_lakestream.tables.coordinates import Offsets, is_within

log = logging.getLogger(__name__)


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

    :param open_sink: returns a sink of the table that is not loaded yet.
    :param opened: a loaded sink, and the state that it loaded.
    """

    def __init__(
        self,
        name: str,
        open_sink: Callable[[], TargetSink],
        opened: tuple[TargetSink, TableState],
        identity: TopicIdentity,
        run_id: str,
    ) -> None:
        self.name = name
        self._open_sink = open_sink
        self._identity = identity
        self._run_id = run_id
        self.sink, state = opened
        check_identity(state.ledger, identity, name)
        self.exists = state.exists
        self._state = state
        self._group = state.ledger.consumer_group
        self._entry = state.ledger.entry(identity)
        self._aside: list[pa.Table] = []
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
        held = is_within(rows[ROUTE_OFFSET], intervals)
        if pc.any(held).as_py():
            self._aside.append(rows.filter(held))
            rows = rows.filter(pc.invert(held))
        if rows.num_rows:
            self._fresh += rows.num_rows
            self.sink.write(rows.drop_columns(list(ROUTE_COLUMNS)), self._identity)

    def take_over(self, files: Mapping[str, Any]) -> None:
        """Add files of fresh rows, written by a process of this run, to the next commit."""
        count = sum(file["record_count"] for file in files["files"])
        self.rows += count
        self._fresh += count
        self.sink.take_over(files)

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
        if there := self._entry.landed & ranges:
            landed_by = self.sink.landed_by(self._identity.topic)
            if redo := there - landed_by.get(fingerprint, RangeSet()):
                if self.sink.member is None or redo & landed_by.get(None, RangeSet()):
                    raise LandedOutside(self.name, redo, self._group, self.sink.home)
                self._do_again(redo, landing, fingerprint, read())
        if self._fresh:
            held = self._entry.held
            change = TopicEntry(
                # The home's ranges without a record for this table count, too: here they are complete.
                landed=after.landed - held,
                lost=after.lost - held,
                counts=Counts(read=self._fresh, written=self._fresh),
                origin=after.origin,
                epochs=after.epochs,
            )
            self.sink.commit(self._landing(landing, "", fingerprint, change))
            self._entry += change
            self.exists = True
        self._aside, self._fresh, self.rows = [], 0, 0

    def refuse_doubling(self, after: TopicEntry) -> None:
        """At the first landing, refuse another tool's rows in ranges of the fan-out, landed now or later.

        `after` is the topic's entry in the home's ledger afterwards. Raises RowsUnaccounted.
        """
        if self._entry.landed or not self._fresh:
            return
        topic = self._identity.topic
        ledgers = [self._state.ledger, *self._state.other_ledgers.values()]
        known = union(one.landed for ledger in ledgers for of, one in ledger.topics.items() if of.topic == topic)
        ranges = None if after.origin else after.landed
        look(self._state.look_for_rows, ForeignRowQuery(topic, known, after.origin, ranges), self.name, self._group)

    def fence(self, fingerprint: str) -> None:
        """Exclude all except this configuration from commits; a missing table is created for the purpose.

        The target must not be used afterwards: the state that it loaded has changed.
        """
        sink = self._open_sink()
        sink.load(self._run_id)
        sink.fences = True
        name = f"fence {fingerprint} {self._run_id}"
        sink.commit(Landing(f"{name} {self.name}", stamped_run_id(name, fingerprint), {}))

    def discard(self) -> None:
        """Delete all uncommitted files; never raises."""
        self.sink.discard()

    def _do_again(self, ranges: RangeSet, landing: Landing, fingerprint: str, read: Offsets) -> None:
        log.info("%s: half landed under another configuration, done again: %s", self.name, ranges)
        sink = self._open_sink()
        sink.load(self._run_id)
        # The replace may remove all offsets read again, even if their rows go to another table now.
        sink.read = read
        rows = [self._within(aside, ranges) for aside in self._aside]
        count = sum(part.num_rows for part in rows)
        change = TopicEntry(replaced=ranges, counts=Counts(read=count, written=count))
        try:
            for part in rows:
                sink.write(part.drop_columns(list(ROUTE_COLUMNS)), self._identity)
            sink.replace(self._landing(landing, "/again", fingerprint, change))
        except ReplacedMeanwhile as e:
            sink.discard()
            raise ReplacedByAnother(self.name) from e
        except BaseException:
            sink.discard()
            raise

    def _within(self, rows: pa.Table, ranges: RangeSet) -> pa.Table:
        """Return the rows in these ranges, from rows of a single partition."""
        intervals = ranges.intervals(self._identity.topic, rows[ROUTE_PARTITION][0].as_py())
        return rows.filter(is_within(rows[ROUTE_OFFSET], intervals))

    def _landing(self, landing: Landing, suffix: str, fingerprint: str, change: TopicEntry) -> Landing:
        # The id and the run id show that a target's landing belongs to the landing of the home.
        own_id = f"{landing.landing_id}/{self.name}{suffix}"
        run_id = stamped_run_id(landing.run_id, fingerprint)
        return Landing(own_id, run_id, {self._identity: change}, engine=landing.engine)

    def _refuse_foreign_landings(self, ranges: RangeSet) -> None:
        for other, ledger in self._state.other_ledgers.items():
            taken = ranges & ledger.entry(self._identity).landed
            if taken and not self.sink.takes_overlap:
                raise LandedByAnotherGroup(taken, self._group, other, self.name)
