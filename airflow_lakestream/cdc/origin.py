"""Origin of a batch of events: checks that they are of the mirror's table in the database, and its key is unchanged."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import KEY_NAMES, OFFSET, OLD, OP, PARTITION, TABLE
from airflow_lakestream.cdc.design import MirrorDesign
from airflow_lakestream.cdc.events.provenance import OldKeyState
from airflow_lakestream.cdc.events.record_keys import as_list
from airflow_lakestream.cdc.stops import RESNAPSHOT, MirrorStopped, StopReason
from airflow_lakestream.core.ledger import Landing


def checked(design: MirrorDesign, events: pa.Table, mirror: str, landing: Landing) -> MirrorDesign:
    """Return the design with the events' table and key. Raises MirrorStopped if the table or the key has changed.

    MirrorStopped is also raised for an update that may have changed the key unnoticed. Events without the columns of an
    origin are not checked.

    :param events: in any order.
    :param mirror: the mirror's name.
    :param landing: has the topic's name, for errors.
    """
    if TABLE not in events.column_names or not len(events):
        return design
    topic = topics_of(landing)

    def stop(reason: StopReason, rows: pa.Table, problem: str, remedy: str = RESNAPSHOT) -> MirrorStopped:
        first = _by_offset(rows)
        partition, offset = first[PARTITION][0].as_py(), first[OFFSET][0].as_py()
        return MirrorStopped(mirror, reason, f"{topic}[{partition}] offset {offset}: {problem}", remedy)

    unknown = (
        events.filter(pc.equal(events[OLD], str(OldKeyState.UNKNOWN)).fill_null(False))
        if OLD in events.schema.names
        else []
    )
    if len(unknown):
        raise stop(StopReason.KEY_NOT_SENT, unknown, _no_row_before(design.key or ()), _REMEDY_FULL)
    return _with_key(_with_table(design, events, stop), events, stop)


def topics_of(landing: Landing) -> str:
    """Return the name of a landing's topic; several names are separated by commas."""
    return ", ".join(sorted({identity.topic for identity in landing.topics}))


_Stop = Callable[..., MirrorStopped]
_REMEDY_FULL = (
    "Let the database send whole rows (ALTER TABLE ... REPLICA IDENTITY FULL). "
    "Then let Debezium read the table again, and replace the mirror's rows: "
    "`lakestream mirror resnapshot`."
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
        cuts = events.filter(pc.and_(pc.equal(events[OP], "t"), events[TABLE].is_valid()))
        if len(cuts):
            problem = "one of the source's tables was truncated, and its rows in the mirror can't be identified."
            raise stop(StopReason.OTHER_TABLE, cuts, problem)
        return design
    if not names:
        return design
    # If the mirror has no note, the first event names its table.
    own = design.source_table or _first(events, TABLE)
    foreign = [name for name in names if name != own]
    if foreign:
        rows = events.filter(pc.equal(events[TABLE], foreign[0]))
        problem = f"the event comes from the table {foreign[0]}; the mirror is one of {own}."
        raise stop(StopReason.OTHER_TABLE, rows, problem, _REMEDY_TABLE)
    return replace(design, source_table=own)


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
        # A mirror without a note was made by the key that its records had then.
        noted = tuple(design.key or ())
    for text in texts:
        names = as_list(text) or []
        if set(names) not in (set(noted), key):
            rows = events.filter(pc.equal(events[KEY_NAMES], text))
            raise stop(StopReason.KEY_CHANGED, rows, _other_key(noted, names, design.key or ()))
    return replace(design, record_key=noted)


def _other_key(noted: Sequence[str], names: Sequence[str], key: Sequence[str]) -> str:
    now, before = (", ".join(some) or "no columns" for some in (names, noted))
    return (
        f"the record's key has {now}; the mirror's records had {before}. The primary key of the database's table was "
        f"changed, or Debezium's message.key.columns. The mirror goes by {', '.join(key)}."
    )


def _by_offset(rows: pa.Table) -> pa.Table:
    """Return a table with only the first row by partition and offset."""
    return rows.take(pc.select_k_unstable(rows, k=1, sort_keys=[(PARTITION, "ascending"), (OFFSET, "ascending")]))


def _first(events: pa.Table, name: str) -> str | None:
    """Return the first non-null value of a column, by partition and offset; the column must have a value."""
    there = events.select([name, PARTITION, OFFSET]).filter(events[name].is_valid())
    found: str | None = _by_offset(there)[name][0].as_py()
    return found
