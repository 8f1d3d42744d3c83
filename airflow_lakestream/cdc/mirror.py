"""A mirror as a sink: change events are collected, checked, and merged into the table with the ledger.

A landing goes as for other tables: plan, guard, one commit with rows, ledger and the schema's change. `checked` refuses
events of another table or key; the merge has further checks.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import (
    KEY_NAMES,
    LOG,
    NOTES,
    OF_EVENTS,
    OFFSET,
    OLD,
    OP,
    PARTITION,
    RECORD_KEY,
    TABLE,
    TIME,
    TRANSACTION,
)
from airflow_lakestream.cdc.design import MirrorDesign
from airflow_lakestream.cdc.events.apart import StagedEvents, ValuesApart, forget, read_bare, whole_events
from airflow_lakestream.cdc.events.decoder import event_columns
from airflow_lakestream.cdc.events.documents import RULES
from airflow_lakestream.cdc.events.provenance import OldKeyState, expanded
from airflow_lakestream.cdc.events.record_keys import as_list
from airflow_lakestream.cdc.events.taken import CommitEvents, columns_of_events
from airflow_lakestream.cdc.events.widening import grown
from airflow_lakestream.cdc.merge.incoming import newest_of_events, ordered_events, plain_records
from airflow_lakestream.cdc.merge.newest import NewestEvents
from airflow_lakestream.cdc.merge.pool import MergePool
from airflow_lakestream.cdc.merge.repair import RowRepair
from airflow_lakestream.cdc.merge.snapshots import by_version
from airflow_lakestream.cdc.stops import NEW_TABLE, RESNAPSHOT, MirrorStopped, StopReason
from airflow_lakestream.core.ledger import Landing, TopicIdentity
from airflow_lakestream.core.ports import Sink, TableState
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.sink import WrappedSink

_OF_ORIGIN = {TABLE, KEY_NAMES, OLD, RECORD_KEY, *LOG, *NOTES}


def follow(
    design: MirrorDesign, events: pa.Table, mirror: str, landing: Landing, staged: StagedEvents | None = None
) -> tuple[MirrorDesign, NewestEvents]:
    """Check a batch of events; return the design after the events, and the events to merge.

    The events to merge are the newest event of each key, or for a history all events. The design then knows the
    source's table, the columns of the records' keys, and the binary logs. Raises MirrorStopped if the events do not fit
    the mirror, InvalidArgument if a type is unfit for the key, and ValuesApart if a decision needs values of rows that
    only files have.

    :param events: the batch, in any order.
    :param landing: has the topic's name, for errors.
    :param staged: the files with the values of rows, if `events` lacks the values.
    """
    assert design.key is not None, "the first events have set it"
    design.check_key(design.key, events.schema)
    if design.sequence_by is not None:
        # Without the columns of an origin, no step treats plain records as events of one transaction.
        origins = {TRANSACTION, *_OF_ORIGIN, *(() if design.is_timed else (TIME,))}
        events = events.drop_columns([name for name in events.column_names if name in origins])
        return design.noted(), plain_records(design, events, mirror, topics_of(landing), staged)
    design, topic = checked(design, events, mirror, landing), topics_of(landing)
    partitions = len({*landing.lows, *pc.unique(events[PARTITION]).to_pylist()})
    design, events = ordered_events(design, events, mirror, topic, partitions)
    # These columns are not needed any more, and sorting would copy them.
    events = events.drop_columns([name for name in events.column_names if name in _OF_ORIGIN])
    return design.noted(), newest_of_events(design, events, mirror, topic, staged)


log = logging.getLogger(__name__)


class StagedEventFiles(Protocol):
    """Access to staged event files, given the outline of `MirrorTable.staging_outline`."""

    def open_file(self, outline: Any, file: Mapping[str, Any]) -> Any:
        """Open a staged file for reading."""

    def delete(self, outline: Any, files: Sequence[Mapping[str, Any]]) -> object:
        """Delete staged files; never raises."""


class MirrorTable(Sink, Protocol):
    """The table of a mirror in any table format: a table's sink with a merge.

    :ivar restarts_at_commit: whether a new mirror gets its columns from all events of its first commit.
    :ivar pool: does a merge's work on files.
    :ivar staging: opens and deletes staged event files.
    """

    restarts_at_commit: bool
    pool: MergePool
    staging: StagedEventFiles

    def load_notes(self) -> tuple[Mapping[str, str], pa.Schema] | None:
        """Load the table; return the properties and columns, or None if the table does not exist."""

    def use_design(self, mirror: MirrorDesign) -> None:
        """Use this design of the mirror from now on."""

    def start_table(self, mirror: MirrorDesign, events: pa.Table) -> None:
        """Use this design for a new table, with columns for the table's first events."""

    @property
    def is_there(self) -> bool:
        """Whether the table existed when it was last loaded or committed."""

    @property
    def is_known(self) -> bool:
        """Whether the columns are known, from the table or from the first events."""

    @property
    def columns(self) -> pa.Schema:
        """All columns, including additions of the next commit."""

    def grow(self, wanted: pa.Schema) -> Sequence[str]:
        """Add columns and widen types with the next commit, until the table can hold the columns `wanted`.

        Return all pending changes as texts, or none if this call adds none. Raises Conflict, or MirrorStopped if the
        table can't have the columns.
        """

    def staging_outline(self, columns: pa.Schema) -> Any:
        """Return the outline of a staging table, for executors to write events next to the mirror's files.

        :param columns: the columns of the events.
        """

    def merge(self, batch: NewestEvents, mirror: MirrorDesign, landing: Landing) -> int:
        """Merge a batch into the table in a single commit with the ledger; return the commit's id.

        The entries of deleted rows are committed before, in their own table. Raises MirrorStopped, ValueMissing,
        ChecksFailed, and the errors of a commit.
        """

    def repair(self, repair: RowRepair, mirror: MirrorDesign, landing: Landing) -> int:
        """Commit a repair in a single commit; return the commit's id. Raises ChangedSinceAudit."""


class Mirror(WrappedSink):
    """`core.ports.Sink` of a mirror. Rows written are change events; see `cdc.events.decoder`."""

    # Called with the events of each write; set by an audit only.
    noted: Callable[[pa.Table], None] | None = None

    def __init__(self, table: MirrorTable, name: str, design: MirrorDesign) -> None:
        super().__init__(table)
        self.table = table
        self.name = name
        # `_requested` is the design by the arguments, `design` the one after the table's notes and the events.
        self._requested = self.design = design
        self._events = CommitEvents()
        # All topics that have landed here.
        self._topics: set[TopicIdentity] = set()

    def load(self, run_id: str) -> TableState:
        """Load the table again; return the state, with the columns of change events as the schema.

        Raises InvalidArgument if the table is not a mirror, or if the arguments contradict the mirror's notes.
        """
        notes = self.table.load_notes()
        self.design = self._requested if notes is None else self._requested.of_table(self.name, *notes)
        self.table.use_design(self.design)
        state = self.table.load(run_id)
        self._topics = {topic for ledger in (state.ledger, *state.other_ledgers.values()) for topic in ledger.topics}
        if self.design.is_of_records:
            return state
        schema = None if state.schema is None else event_columns(state.schema)
        state = replace(state, schema=schema)
        return replace(state, type_remedy=RESNAPSHOT) if self.design.program is None else state

    def write(self, rows: pa.Table, identity: TopicIdentity) -> None:
        """Collect events for the next commit; `identity` is not used, since `commit` gets the topic with the landing.

        The first events of a new mirror decide about its key and its columns.
        """
        rows = expanded(rows)
        if self.noted is not None:
            self.noted(rows)
        self._events.rows.append(rows)
        if not self.table.is_known:
            self._start_table(rows)

    def outline(self) -> Any:
        """Return the outline for executors to write events next to the mirror's own files."""
        return self.table.staging_outline(self._columns_of_events())

    def take_over(self, files: Mapping[str, Any]) -> None:
        """Take over event files of an executor: the outcome of the executor's sink, with the list "files"."""
        self._events.files += files["files"]

    def commit(self, landing: Landing) -> int:
        """Merge the collected events in a single commit with the ledger; return the commit's id.

        Raises MirrorStopped if the events do not fit the mirror, and the errors of the merge and of the commit.
        """
        self._check_topics(landing)
        self.design, batch, columns = self._followed(landing)
        # The merge needs only the batch: free the memory of the events.
        pa.default_memory_pool().release_unused()
        self.table.use_design(self.design)
        self._grow(columns)
        own_topics = {identity.topic for identity in landing.topics}
        is_by_offset = not (self.design.sequence_by or self.design.is_flattened or self.design.rows.keeps_versions)
        if not is_by_offset or {topic.topic for topic in self._topics} - own_topics:
            # Without lows, no entry of a deleted row is removed as too old: entries do not contain their topic; by a
            # sequence a record may be late at any offset; in a history each deletion ends a version.
            landing = replace(landing, lows={})
        commit_id = self.table.merge(batch, self.design, landing)
        self._forget()
        del batch
        pa.default_memory_pool().release_unused()
        return commit_id

    def _check_topics(self, landing: Landing) -> None:
        """Refuse plain records of another topic than the mirror's earlier records: offsets of two topics have no order.

        A topic that was deleted and created again is another topic. Raises InvalidArgument.
        """
        others = self._topics - landing.topics.keys()
        if self.design.is_of_records and others:
            topic = min(identity.topic for identity in others)
            problem = f"{self.name} has records of another topic {topic}, and offsets of two topics have no order."
            raise InvalidArgument("topic", problem, "Land each topic, also a recreated one, in a table of its own.")

    def replace(self, landing: Landing) -> tuple[int, Landing]:
        """Refuse a replace: rows of a mirror are states, not records."""
        raise InvalidArgument("replace", f"{self.name} is a mirror: its rows are states, not records.")

    def discard(self) -> None:
        """Forget the events since the last commit, and delete the files; never raises."""
        self._forget()
        super().discard()

    def _followed(self, landing: Landing) -> tuple[MirrorDesign, NewestEvents, pa.Schema]:
        """Return the design after the events, the events to merge, and the events' columns.

        If all events are in executors' files, only the columns for decisions are read. If a decision needs the values
        of rows, the whole events are read after all. Raises MirrorStopped.
        """
        if self._events.files and not self._events.rows and self.table.is_there:
            try:
                staged, events = self._staged_events()
                return *follow(self.design, events, self.name, landing, staged), staged.columns
            except ValuesApart as e:
                log.info("%s: the driver reads whole events of this batch: %s.", self.name, e)
        # Sorted here: sorting later, while a caller still holds the events, would need the memory twice.
        read = partial(whole_events, self.table.staging.open_file, self.outline() if self._events.files else None)
        columns, of_records = self._columns_of_events(), self.design.is_of_records or self.design.program is not None
        events = by_version(self._events.joined(read, columns, self.name, of_records=of_records))
        if not self.table.is_there and (self.table.restarts_at_commit or self._requested.table.schema is not None):
            # The mirror's own columns are added to the given ones together with its key.
            self._start_table(events)
        return *follow(self.design, events, self.name, landing), events.schema

    def _staged_events(self) -> tuple[StagedEvents, pa.Table]:
        """Return the event files, and the events without row values.

        Raises ValuesApart if the values are needed in any case, since deleted rows stay or checks read the rows, or if
        `read_bare` raises it.
        """
        design = self.design
        assert design.key is not None, "the table is there"
        for needs_values, reason in (
            (design.rows.keeps_deleted, "deleted rows stay"),
            (design.auditor is not None, "checks look at the rows"),
            (design.keeps_absent, "records have only some of the fields"),
            (design.has_sequence, "records are in the order of texts"),
            (design.rows.keeps_versions, "each version of a row is kept"),
        ):
            if needs_values:
                raise ValuesApart(reason)
        return read_bare(self.table.staging.open_file, self.outline(), self._events.files, design.key)

    def _forget(self) -> None:
        if self._events.files:
            self.table.staging.delete(self.outline(), self._events.files)
            forget()
        self._events.forget()

    def _start_table(self, events: pa.Table) -> None:
        self.design = self._requested.of_rows(self.name, events)
        self.table.start_table(self.design, events)

    def _columns_of_events(self) -> pa.Schema:
        further = self._requested.rows.further.names
        return columns_of_events(self.table.columns, further, with_key=self._requested.has_record_keys)

    def _grow(self, events: pa.Schema) -> None:
        """Add new columns and wider types of the events to the table with the next commit, and log the changes."""
        table_columns, not_of_row = self.table.columns, (*self.design.table.metadata.names, *OF_EVENTS)
        of_row = pa.schema([field for field in events if field.name not in not_of_row])
        wanted = pa.schema([field for field in grown(table_columns, of_row) if field.name in of_row.names])
        if changes := self.table.grow(wanted):
            log.info("The schema of %s will be changed with the next commit: %s", self.name, "; ".join(changes))


def checked(design: MirrorDesign, events: pa.Table, mirror: str, landing: Landing) -> MirrorDesign:
    """Return the design with the source's table and record key, by the events. Raises MirrorStopped if one has changed.

    MirrorStopped is also raised for an update that may have changed the key unnoticed. Events without the columns of an
    origin are not checked.

    :param events: in any order.
    :param landing: has the topic's name, for errors.
    """
    if TABLE not in events.column_names or not len(events):
        return design
    topic = topics_of(landing)

    again = RESNAPSHOT if design.program is None else f"{NEW_TABLE}."

    def stop(reason: StopReason, rows: pa.Table, problem: str, remedy: str = again) -> MirrorStopped:
        first = _by_offset(rows)
        partition, offset = first[PARTITION][0].as_py(), first[OFFSET][0].as_py()
        return MirrorStopped(mirror, reason, f"{topic}[{partition}] offset {offset}: {problem}", remedy)

    unknown = events.filter(pc.equal(events[OLD], str(OldKeyState.UNKNOWN))) if OLD in events.column_names else []
    if len(unknown):
        raise stop(StopReason.KEY_NOT_SENT, unknown, _no_row_before(design.key or ()), _REMEDY_FULL)
    return _with_key(_with_table(design, events, stop), events, stop)


def topics_of(landing: Landing) -> str:
    """Return the name of a landing's topic; several names are separated by commas."""
    return ", ".join(sorted({identity.topic for identity in landing.topics}))


_Stop = Callable[..., MirrorStopped]
_REMEDY_FULL = (
    "Let the database send whole rows (ALTER TABLE ... REPLICA IDENTITY FULL). Then let Debezium read the table again, "
    "and replace the mirror's rows: `lakestream mirror resnapshot`."
)


def _no_row_before(key: Sequence[str]) -> str:
    return (
        f"an update comes without the row before it. The mirror's key ({', '.join(key)}) is not the database's, so "
        "whether the update has changed it is unknown."
    )


def _with_table(design: MirrorDesign, events: pa.Table, stop: _Stop) -> MirrorDesign:
    """Return the design with the name of the database's table. Raises MirrorStopped for events of another table.

    With `source_tables`, all tables whose names match are allowed, and the design gets no name. Then a truncation stops
    the mirror, too, since the mirror does not show which rows came from the truncated table.

    :param stop: makes the error, from the reason, the rows at fault, the problem and the remedy.
    """
    names = [name for name in pc.unique(events[TABLE]).to_pylist() if name is not None]
    if design.source_tables is not None:
        foreign = [name for name in names if not re.fullmatch(design.source_tables, name)]
        if foreign:
            rows = events.filter(pc.equal(events[TABLE], foreign[0]))
            problem = f"the event comes from {foreign[0]}, which source_tables ({design.source_tables}) does not match."
            raise stop(StopReason.OTHER_TABLE, rows, problem, "Correct source_tables, or the topic.")
        truncations = events.filter(pc.and_(pc.equal(events[OP], "t"), events[TABLE].is_valid()))
        if len(truncations):
            problem = "one of the source's tables was truncated, and its rows in the mirror can't be identified."
            raise stop(StopReason.OTHER_TABLE, truncations, problem)
        return design
    if not names:
        return design
    # If the mirror has no note, the first event names its table.
    source_table = design.source_table or _first(events, TABLE)
    foreign = [name for name in names if name != source_table]
    if foreign:
        rows = events.filter(pc.equal(events[TABLE], foreign[0]))
        problem = f"the event comes from the table {foreign[0]}; the mirror is one of {source_table}."
        remedy = _REMEDY_TABLE if design.program is None else RULES[design.program].of_table
        raise stop(StopReason.OTHER_TABLE, rows, problem, remedy)
    return replace(design, source_table=source_table)


_REMEDY_TABLE = (
    'Give each table its own mirror (table="lake.{topic}"). For partitions of one table whose rows have different '
    "keys, set source_tables to a regular expression of their names. After the table was renamed, let Debezium read "
    "it again: `lakestream mirror resnapshot`."
)


def _with_key(design: MirrorDesign, events: pa.Table, stop: _Stop) -> MirrorDesign:
    """Return the design with the columns of the records' keys. Raises MirrorStopped if the columns have changed.

    Each record's key must have the columns that the design notes, or the columns of the mirror's key, in any order.
    Without a note, the first event with a readable key decides.

    :param stop: makes the error, from the reason, the rows at fault and the problem.
    """
    texts = [text for text in pc.unique(events[KEY_NAMES]).to_pylist() if text is not None]
    if not texts:
        return design
    key = set(design.key or ())
    noted = design.record_key if design.record_key is not None else tuple(as_list(_first(events, KEY_NAMES)) or ())
    if design.record_key is None and not design.is_key_given and set(noted) != key:
        # A mirror without a note was made with the columns of its records' keys as its own key.
        noted = tuple(design.key or ())
    for text in texts:
        names = as_list(text) or []
        if set(names) not in (set(noted), key):
            rows = events.filter(pc.equal(events[KEY_NAMES], text))
            raise stop(StopReason.KEY_CHANGED, rows, _other_key(noted, names, design))
    return replace(design, record_key=noted)


def _other_key(noted: Sequence[str], names: Sequence[str], design: MirrorDesign) -> str:
    setting = ", or Debezium's message.key.columns" if design.program is None else ""
    now, before = (", ".join(columns) or "no columns" for columns in (names, noted))
    return (
        f"the record's key has {now}; the mirror's records had {before}. The primary key of the database's table was "
        f"changed{setting}. The mirror goes by {', '.join(design.key or ())}."
    )


def _by_offset(rows: pa.Table) -> pa.Table:
    """Return a table with only the first row by partition and offset."""
    return rows.take(pc.select_k_unstable(rows, k=1, sort_keys=[(PARTITION, "ascending"), (OFFSET, "ascending")]))


def _first(events: pa.Table, name: str) -> str | None:
    """Return the first non-null value of a column, by partition and offset; the column must have a value."""
    with_value = events.select([name, PARTITION, OFFSET]).filter(events[name].is_valid())
    value: str | None = _by_offset(with_value)[name][0].as_py()
    return value
