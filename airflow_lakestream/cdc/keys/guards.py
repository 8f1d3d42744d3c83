"""Deletions that only the table's row can judge: whether it is the one that they mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from airflow_lakestream.cdc.keys.images import Image, is_placeholder
from airflow_lakestream.cdc.stops import RESNAPSHOT, MirrorStopped, StopReason

Place = tuple[int, int]


class Guarded(StrEnum):
    """What an event needs of the table."""

    # A row from before the transaction stays: the transaction has deleted one that is just like it.
    KEEP = "keep"
    # There must be no row from before the transaction: nothing tells which of the two the transaction has deleted.
    STOP = "stop"
    # Nothing tells it, whatever the table has.
    UNKNOWN = "unknown"
    # The row must be the one that the deletion has the values of: the key may be a placeholder.
    SENT = "sent"


@dataclass(frozen=True)
class Guard:
    """What is to be held against the table's row of a key; `since` is where its transaction begins.

    `image` are the values that the deletion brings along.
    """

    kind: Guarded
    since: Place
    partition: int
    offset: int
    image: Image = field(default_factory=dict)


@dataclass
class Judge:
    """Judges by the rows of a table; `done` are guards that a row has answered."""

    table: str
    topic: str
    key: Sequence[str]
    done: set[int] = field(default_factory=set)

    def keeps(self, guards: Iterable[Guard], place: Place, row: Image) -> bool:
        """Tell whether a row that is there stays in spite of the deletion. Raises MirrorStopped.

        :param place: where the row's last event stands in the source.
        :param row: its values, of those that the guards' images have.
        """
        kept = False
        for guard in guards:
            if guard.kind is Guarded.SENT:
                self.done.add(id(guard))
                # A later row has had an event since: the deletion is late.
                if place < guard.since and not fits(row, guard.image):
                    # Of its own transaction, it may be a second row of the key.
                    raise self.unknown(guard) if place[0] == guard.since[0] else self.not_sent(guard)
            elif place < guard.since:
                if guard.kind is not Guarded.KEEP:
                    raise self.unknown(guard)
                kept = True
        return kept

    def unknown(self, guard: Guard) -> MirrorStopped:
        """Return the error for a transaction that has had several rows of one key."""
        return MirrorStopped(self.table, StopReason.ORDER_UNKNOWN, self._at(guard) + _UNKNOWN, _REMEDY_UNKNOWN)

    def not_sent(self, guard: Guard) -> MirrorStopped:
        """Return the error for a deletion that does not say of which row."""
        key = ", ".join(self.key)
        return MirrorStopped(self.table, StopReason.KEY_NOT_SENT, self._at(guard) + _NOT_SENT.format(key), _REMEDY_SENT)

    def _at(self, guard: Guard) -> str:
        return f"{self.topic}[{guard.partition}] offset {guard.offset}: "


def fits(row: Mapping[str, object], image: Image) -> bool:
    """Tell whether a row may be the one that was deleted: it has each value that was sent, or none."""
    sent = {name: value for name, value in image.items() if not is_placeholder(value)}
    return all(row.get(name) is None or row[name] == value for name, value in sent.items())


_UNKNOWN = (
    "a transaction has had several rows of one key (its constraint is DEFERRABLE), and nothing in these events tells "
    "which one is there in the end."
)
_REMEDY_UNKNOWN = (
    "If the events of the transaction come in several batches, let one hold them all: run once without "
    f"max_offsets_per_trigger. Else: {RESNAPSHOT[0].lower()}{RESNAPSHOT[1:]}"
)
_NOT_SENT = (
    "a deletion does not say of which row it is: it has placeholders in the key ({}), and values of another row. The "
    "database's table has REPLICA IDENTITY USING INDEX on other columns."
)
_REMEDY_SENT = f"Let the database send the key (ALTER TABLE ... REPLICA IDENTITY DEFAULT, or FULL). Then: {RESNAPSHOT}"
