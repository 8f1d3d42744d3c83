"""Notes in a table on groups landed by a function of DataFrames: the function, and whether rows keep positions.

Once rows without positions have landed, the group's rows can't be found by record any more: a replace would add rows
again that it can't remove. So the note stays, even if a later function keeps the positions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from airflow_lakestream.core.ports import CannotReplace
from airflow_lakestream.tables.rejects.settlement import names_of

# Prefix of a table property, followed by a group's name: the note.
PREFIX = "lakestream.transform."


@dataclass(frozen=True, slots=True)
class TransformNote:
    """Note on the function of a group's last landing.

    :param function: the function as text, module:function.
    :param fingerprint: the fingerprint of the function's source.
    :param positions: whether all rows of the group keep topic, partition and offset.
    """

    function: str
    fingerprint: str
    positions: bool

    def __str__(self) -> str:
        return f"{self.function} ({self.fingerprint})"

    def noted(self, consumer_group: str, before: TransformNote | None) -> dict[str, str]:
        """Return the table property with this note, for the landing's commit.

        If `before` has rows without positions, so has the new note.

        :param before: the group's note before this landing, or None.
        """
        positions = self.positions and (before is None or before.positions)
        return {PREFIX + consumer_group: json.dumps({**asdict(self), "positions": positions})}


def transformed(properties: Mapping[str, str], consumer_group: str) -> TransformNote | None:
    """Return the function of a group's last landing, or None if the group never landed by a function."""
    names = (PREFIX + name for name in names_of(properties, consumer_group))
    return next((TransformNote(**json.loads(properties[name])) for name in names if name in properties), None)


def without_positions(properties: Mapping[str, str]) -> dict[str, TransformNote]:
    """Return the notes of the groups with rows without positions, by group."""
    groups = [name.removeprefix(PREFIX) for name in properties if name.startswith(PREFIX)]
    notes = {group: transformed(properties, group) for group in groups}
    return {group: note for group, note in notes.items() if note is not None and not note.positions}


def refuse_without_spark(table: str, properties: Mapping[str, str], consumer_group: str, run: str) -> None:
    """Refuse a replace of rows made by a function, since only Spark runs functions. Raises CannotReplace.

    Also refuse a group with rows without positions.

    :param run: the replacing run in words, such as "a repair", for the error.
    """
    refuse_replacing(table, properties, consumer_group)
    if (note := transformed(properties, consumer_group)) is not None:
        raise CannotReplace(
            f"{table}: the rows of consumer group {consumer_group!r} are made by {note.function}, which {run} does "
            "not run. Nothing was changed. Land the ranges again on Spark, by the same app and transform, with "
            'mode="ranges" and replace=True.'
        )


def refuse_replacing(table: str, properties: Mapping[str, str], consumer_group: str) -> None:
    """Refuse a replace if the group has rows without positions. Raises CannotReplace."""
    note = transformed(properties, consumer_group)
    if note is not None and not note.positions:
        raise CannotReplace(
            f"{table} has rows that {note.function} made of records of consumer group {consumer_group!r}, without "
            "topic, partition and offset: the record of each row is unknown, so no row can be replaced. "
            "Nothing was changed. Roll the table back to a snapshot before them and land again, or land into a new "
            "table."
        )
