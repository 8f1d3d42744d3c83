"""Deletions by a record's columns: a condition in SQL, run by DuckDB in a process with bounds, as statements are."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.decode.connect.unavailable import Mask
from airflow_lakestream.exceptions import InvalidArgument

if TYPE_CHECKING:
    from airflow_lakestream.transform import SqlTransform

_ARGUMENT, _RESULT = "delete_when", "is_deleted"
# The place of a failure in the statement.
_PLACE = re.compile(f"^(column {_RESULT}|sql): ")
_LATER = 'A column that only some records have needs its type from schema="...", such as "is_deleted boolean".'


class DeletionCondition:
    """A condition over rows of plain records, checked and bound. Raises InvalidArgument, and SqlFailed.

    :param sql: the condition, such as "op = 'D'".
    :param columns: the rows' columns.
    """

    def __init__(self, sql: str, columns: pa.Schema) -> None:
        self._transform = _transform(sql, columns)
        self._read = pa.schema([columns.field(name) for name in columns.names if name in self._transform.input_columns])

    def fits(self, columns: pa.Schema) -> bool:
        """Return whether the columns that the condition reads have the same types in `columns`."""
        return all(one.name in columns.names and columns.field(one.name).type == one.type for one in self._read)

    def mask(self, rows: pa.Table) -> tuple[Mask, dict[int, str]]:
        """Return a mask of the deleted rows, and the reasons of rows for which the condition fails, by position.

        NULL is not deleted. Raises SqlFailed.
        """
        found = self._transform.apply(rows)
        mask = np.zeros(len(rows), np.bool_)
        mask[found.kept] = pc.fill_null(found.rows[_RESULT], False).to_numpy()
        return mask, {one.index: f"{_ARGUMENT}: {_PLACE.sub('', one.reason)}" for one in found.bad}


# Decoders of all partitions and threads share the processes of a condition, which take a tenth of a second to start.
@lru_cache(maxsize=4)
def _transform(sql: str, columns: pa.Schema) -> SqlTransform:
    # Imported here: DuckDB takes a tenth of a second to import, also in a task without a condition.
    from airflow_lakestream.transform import SqlTransform

    try:
        # A line of its own: a comment at the condition's end must not hide the bracket.
        statement = "\n".join(["SELECT (", sql, f") AS {_RESULT} FROM {{{{ input }}}}"])
        found = SqlTransform(statement, input_schema=columns)
    except InvalidArgument as refused:
        problem = str(refused).removeprefix(f"{refused.argument}: ").rstrip(".")
        raise InvalidArgument(_ARGUMENT, f"{sql!r}: {problem}.", _LATER if "bind" in problem else "") from None
    kinds = {one.name: one.type for one in found.schema}
    if kinds != {_RESULT: pa.bool_()}:
        made = ", ".join(map(str, kinds.values()))
        remedy = "Compare it with a value: \"op = 'D'\"."
        raise InvalidArgument(_ARGUMENT, f"{sql!r} is {made}, and a condition is true or false.", remedy)
    return found
