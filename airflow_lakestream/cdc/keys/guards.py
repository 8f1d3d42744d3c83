"""Guards: conditions on the table's row of a key, if a batch's events alone can't decide about the row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from airflow_lakestream.cdc.keys.images import Image, is_placeholder
from airflow_lakestream.cdc.merge.snapshots import Version
from airflow_lakestream.cdc.stops import RESNAPSHOT, MirrorStopped, StopReason

Place = tuple[int, int]


class GuardKind(StrEnum):
    """Condition of a guard on the table's row of the key."""

    # A row from before the transaction stays: the transaction has deleted another, equal row.
    KEEP = "keep"
    # No row from before the transaction may exist: the events do not show which of the two was deleted.
    STOP = "stop"
    # No row of the table could decide: the mirror stops.
    UNKNOWN = "unknown"
    # The row must have the deletion's values: the key may be a placeholder.
    SENT = "sent"


@dataclass(frozen=True)
class DeletionGuard:
    """Condition on the table's row of a key, for a row whose last event is before `since`.

    :param since: the place of the deletion, or of the first event of the key in the transaction.
    :param partition: the partition of the guarded event, for errors.
    :param offset: the offset of the guarded event, for errors.
    :param image: the values of the deletion, with the kind `SENT`.
    :param before: the version of the key's event before the transaction, if the batch has one with a row.
    """

    kind: GuardKind
    since: Place
    partition: int
    offset: int
    image: Image = field(default_factory=dict)
    before: Version | None = None


@dataclass
class GuardCheck:
    """Check of guards by the table's rows.

    :param key: the columns of the mirror's key.
    :param done: the Python ids of the guards of the kind `SENT` that were compared with a row.
    """

    table: str
    topic: str
    key: Sequence[str]
    done: set[int] = field(default_factory=set)

    def keeps(self, guards: Iterable[DeletionGuard], place: Place, row: Image) -> bool:
        """Return whether an existing row stays in spite of the deletion.

        Raises MirrorStopped if neither events nor row can decide. Guards of the kind `SENT` are noted as done, and
        never keep a row.

        :param guards: the guards of the key's last event.
        :param place: the place of the row's last event in the source.
        :param row: the row's values in the columns of the guards' images.
        """
        stays = False
        for guard in guards:
            if guard.kind is GuardKind.SENT:
                self.done.add(id(guard))
                # A row with a later event stays: the deletion is late.
                if place < guard.since and not fits(row, guard.image):
                    # An event of the same transaction may be about a second row of the key.
                    raise self.unknown(guard) if place[0] == guard.since[0] else self.not_sent(guard)
            elif place < guard.since:
                if guard.kind is not GuardKind.KEEP:
                    raise self.unknown(guard)
                stays = True
        return stays

    def note_deleted(self, guards: Iterable[DeletionGuard], place: Place) -> None:
        """Note guards of the kind `SENT` as done, for a row already marked as deleted.

        Only guards of a deletion at or before the row's place are noted: the deletion is a repeated one, and means the
        same row.

        :param place: the place of the row's last event in the source.
        """
        self.done.update(id(guard) for guard in guards if guard.kind is GuardKind.SENT and place >= guard.since)

    def check_before(self, guards: Iterable[DeletionGuard], truncated: Version | None) -> None:
        """Refuse guards of a key with an earlier row in the batch, unless truncated since. Raises MirrorStopped.

        :param truncated: the last known truncation, which has removed all rows before, or None.
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
    """Return whether a row may be the deleted row, with equal values in all sent columns.

    Values of the image that may be placeholders are not compared, nor are columns without a value in the row.
    """
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
