"""Values left out of change events: a bad record, NULL with a note, or the old value by a merge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.types as t

from airflow_lakestream.core.policies import UnavailableValues
from airflow_lakestream.decode.connect.unavailable import USUAL, Mask, ValuePlaceholder, left_out, may_be_left_out
from airflow_lakestream.exceptions import InvalidArgument

# The column with the names of the row's columns whose values were left out.
NOTE = "_unavailable"


@dataclass(frozen=True)
class UnavailablePolicy:
    """Policy for values left out of change events.

    :param placeholder: the text or bytes that the connector writes in place of a value.
    :param policy: REJECT: the event is bad. NULL: the value is null, and its column's name is noted in the column
        `NOTE`. None: for a mirror, whose merge puts in the old value; the merge knows only the default placeholder.
    """

    placeholder: ValuePlaceholder = USUAL
    policy: UnavailableValues | None = UnavailableValues.REJECT

    def without_note(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns except `NOTE`, which no event has. Raises InvalidArgument if `NOTE` is not a list of text.

        For a mirror, `NOTE` is a column like others, and stays.
        """
        if self.policy is None or NOTE not in schema.names:
            return schema
        kind = schema.field(NOTE).type
        if not ((t.is_list(kind) or t.is_large_list(kind)) and t.is_string(kind.value_type)):
            raise InvalidArgument("schema", f"{NOTE} can't be {kind}: it has names.", "Make it array<string>.")
        return pa.schema([field for field in schema if field.name != NOTE])

    def settled(
        self, schema: pa.Schema, columns: Sequence[pa.Array], parts: Mapping[str, str], wrong: dict[int, str]
    ) -> list[pa.Array]:
        """Return all columns of `schema`, with left-out values replaced; add the reasons for bad events to `wrong`.

        A left-out value becomes null, or the default placeholder for a mirror. The column `NOTE`, if the schema has it,
        gets the names of each event's columns with left-out values.

        An event with a left-out value is bad if the policy is REJECT; or if the policy is NULL and the schema lacks
        `NOTE`, except for a value in an image. For a mirror, an event is bad if a value is the default placeholder and
        the connector has another one.

        :param columns: the columns of `without_note(schema)`.
        :param parts: columns for parts of the event, with the event's member for each part.
        :param wrong: reasons by row.
        """
        found: dict[str, pa.Array] = {}
        # By row: the names of the row's columns whose values were left out.
        named: dict[int, list[str]] = {}
        for field, column in zip(self.without_note(schema), columns, strict=True):
            if (member := parts.get(field.name)) is None:
                column = self._settled(field.name, column, named, wrong)
            elif member in ("before", "after"):
                column = self._image(field.name, column, wrong)
            found[field.name] = column
        has_note = self.policy is not None and NOTE in schema.names
        if self.policy is UnavailableValues.NULL and not has_note:
            for row, names in named.items():
                reason = f"{names[0]}: Debezium left the value out, and the table has no column {NOTE} to note it"
                wrong.setdefault(row, reason)
        if has_note:
            rows = len(columns[0]) if columns else 0
            found[NOTE] = pa.array([named.get(row) for row in range(rows)], schema.field(NOTE).type)
        return [found[field.name] for field in schema]

    def _image(self, name: str, image: pa.Array, wrong: dict[int, str]) -> pa.Array:
        """Return an image of the row with left-out values replaced, as in columns; `NOTE` does not name the fields."""
        parts = zip(image.type, map(image.field, range(image.type.num_fields)), strict=True)
        found = [self._settled(f"{name}.{one.name}", column, {}, wrong) for one, column in parts]
        return pa.StructArray.from_arrays(found, fields=list(image.type), mask=image.is_null())

    def _settled(self, name: str, column: pa.Array, named: dict[int, list[str]], wrong: dict[int, str]) -> pa.Array:
        # Returns a column with left-out values replaced; `named` gets the name for each row, `wrong` the reason.
        if not may_be_left_out(column.type):
            return column
        if self.policy is None:
            return self._for_merge(name, column, wrong)
        mask = left_out(column, self.placeholder)
        for row in np.flatnonzero(mask).tolist():
            named.setdefault(row, []).append(name)
            if self.policy is UnavailableValues.REJECT:
                wrong.setdefault(row, f"{name}: Debezium left the value out, since the update did not touch it")
        return column.take(pa.array(np.arange(len(column)), mask=mask)) if mask.any() else column

    def _for_merge(self, name: str, column: pa.Array, wrong: dict[int, str]) -> pa.Array:
        # Any text may be the connector's value: only with the default placeholder are both the same.
        if self.placeholder == USUAL:
            return column
        for row in np.flatnonzero(left_out(column)).tolist():
            wrong.setdefault(row, f"{name}: has {USUAL.text}, which is not the connector's placeholder")
        mask: Mask = left_out(column, self.placeholder)
        if not mask.any():
            return column
        both = pa.concat_arrays([column, USUAL.of(column.type)])
        return both.take(pa.array(np.where(mask, len(column), np.arange(len(column)))))


UNAVAILABLE = UnavailablePolicy()
