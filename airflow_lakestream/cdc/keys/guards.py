"""Guards of deletions: comparison of a deletion's row with the table's row of the key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from airflow_lakestream.cdc.keys.images import Image, is_placeholder
from airflow_lakestream.cdc.merge.snapshots import Version
from airflow_lakestream.cdc.stops import RESNAPSHOT, MirrorStopped, StopReason

Place = tuple[int, int]


class GuardKind(StrEnum):
    """Requirement of an event on the table."""

    # A row from before the transaction stays: the transaction has deleted another, equal row.
    KEEP = "keep"
    # No row from before the transaction may exist: the events do not show which of the two was deleted.
    STOP = "stop"
    # Undecidable with any row of the table.
    UNKNOWN = "unknown"
    # The row must have the deletion's values: the key may be a placeholder.
    SENT = "sent"


@dataclass(frozen=True)
class DeletionGuard:
    """Check for the table's row of a key, if the row's place is before `since`.

    `image` are the values of the deletion. `before` is the version of the key's event before the transaction, if the
    batch has one with a row.
    """

    kind: GuardKind
    since: Place
    partition: int
    offset: int
    image: Image = field(default_factory=dict)
    before: Version | None = None


@dataclass
class GuardCheck:
    """Judge of guards by the table's rows; `done` has the ids of guards answered by a row."""

    table: str
    topic: str
    key: Sequence[str]
    done: set[int] = field(default_factory=set)

    def keeps(self, guards: Iterable[DeletionGuard], place: Place, row: Image) -> bool:
        """Return whether an existing row stays in spite of the deletion. Raises MirrorStopped.

        :param place: the place of the row's last event in the source.
        :param row: its values, for the columns of the guards' images.
        """
        kept = False
        for guard in guards:
            if guard.kind is GuardKind.SENT:
                self.done.add(id(guard))
                # The row has had a later event: the deletion is late.
                if place < guard.since and not fits(row, guard.image):
                    # An event of the same transaction may be about a second row of the key.
                    raise self.unknown(guard) if place[0] == guard.since[0] else self.not_sent(guard)
            elif place < guard.since:
                if guard.kind is not GuardKind.KEEP:
                    raise self.unknown(guard)
                kept = True
        return kept

    def is_gone(self, guards: Iterable[DeletionGuard], place: Place) -> None:
        """Mark guards as done if a row is already marked as deleted: a repeated deletion means the same row."""
        self.done.update(id(guard) for guard in guards if guard.kind is GuardKind.SENT and place >= guard.since)

    def check_before(self, guards: Iterable[DeletionGuard], truncated: Version | None) -> None:
        """Refuse guards of a key with an earlier row in the batch, unless truncated since. Raises MirrorStopped.

        :param truncated: the last known truncation; a row before it is gone.
        """
        for guard in guards:
            if guard.before is not None and (truncated is None or guard.before >= truncated):
                raise self.unknown(guard)

    def unknown(self, guard: DeletionGuard) -> MirrorStopped:
        """Return the error for a transaction with several rows of the same key."""
        return MirrorStopped(self.table, StopReason.ORDER_UNKNOWN, self._at(guard) + _UNKNOWN, _REMEDY_UNKNOWN)

    def not_sent(self, guard: DeletionGuard) -> MirrorStopped:
        """Return the error for a deletion of an unknown row."""
        key = ", ".join(self.key)
        return MirrorStopped(self.table, StopReason.KEY_NOT_SENT, self._at(guard) + _NOT_SENT.format(key), _REMEDY_SENT)

    def _at(self, guard: DeletionGuard) -> str:
        return f"{self.topic}[{guard.partition}] offset {guard.offset}: "


def fits(row: Mapping[str, object], image: Image) -> bool:
    """Return whether a row may be the deleted row, with equal values in all sent columns."""
    sent = {name: value for name, value in image.items() if not is_placeholder(value)}
    return all(row.get(name) is None or row[name] == value for name, value in sent.items())


_UNKNOWN = (
    "a transaction has had several rows of one key, and these events do not show which one remains in the end. Either "
    "its constraint is DEFERRABLE, or the table was truncated before it, and that is in a partition that is behind."
)
_REMEDY_UNKNOWN = (
    "If these events come in several batches, land them in one: run once without max_offsets_per_trigger (in the "
    "worker: with larger max_batch_bytes and checkpoint_interval, without max_records). Otherwise: "
    f"{RESNAPSHOT[0].lower()}{RESNAPSHOT[1:]}"
)
_NOT_SENT = (
    "a deletion does not show which row it means: it has placeholders in the key ({}), and values of another row. The "
    "database's table has REPLICA IDENTITY USING INDEX on other columns."
)
_REMEDY_SENT = f"Let the database send the key (ALTER TABLE ... REPLICA IDENTITY DEFAULT, or FULL). Then: {RESNAPSHOT}"
