"""Result of a decoder for a batch: rows, and the bad records with reasons.

A reason contains the value's path in the document, but not the document.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_lakestream.core.policies import UnknownFields, choose
from airflow_lakestream.core.printable import printable
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.exceptions import BadRecord, InvalidArgument, LakestreamError, Terminal

_EXCERPT = 80
_PATH = 160


class Misfit(ValueError):
    """A column can't represent a value without loss; `path` has the steps to the value, the innermost step first."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path: list[str] = []

    def inside(self, step: str) -> Misfit:
        """Add the next outer step to the path, such as ".name" or "[3]"; return this misfit."""
        self.path.append(step)
        return self

    @property
    def reason(self) -> str:
        """Path of the field and the problem, of bounded length."""
        if not self.path:
            return self.problem
        path = "".join(reversed(self.path)).removeprefix(".")
        return f"{shorten(path, _PATH)}: {self.problem}"


class SchemaRefused(LakestreamError, Terminal, ValueError):
    """A writer's schema is invalid, or unfit for a table."""


class SchemaDecoder:
    """Base of the decoders: the columns, and the policy for fields without a column.

    Raises InvalidArgument without columns, or for an unknown policy.
    """

    def __init__(self, schema: pa.Schema, unknown_fields: UnknownFields | str) -> None:
        if not len(schema):
            raise InvalidArgument("schema", "it has no columns.")
        self.schema = schema
        self.unknown_fields = choose(UnknownFields, "unknown_fields", unknown_fields)


def shorten(text: str, limit: int = _EXCERPT) -> str:
    """Return `text` cut to `limit` characters, fit for a log line."""
    cut = text[:limit] + ("..." if len(text) > limit else "")
    # Lone surrogates can't be written to any log or table.
    return cut.encode("utf-8", "backslashreplace").decode()


def excerpt(value: object, limit: int = 100) -> str:
    """Return a value in a single line, cut to `limit` characters, with unprintable characters escaped."""
    if isinstance(value, bytes):
        value = value[: 4 * limit].decode(errors="backslashreplace")
    text = str(value)[: 4 * limit]
    return shorten(printable(text), limit)


def near_name(name: str, names: Iterable[str]) -> str | None:
    """Return the first of `names` that differs from `name` in case, `_` or `-` only, or None."""
    folded = _folded(name)
    return next((other for other in names if _folded(other) == folded), None)


def _folded(name: str) -> str:
    # A name of only `_` and `-` stays unchanged: without these characters, all such names would be the same.
    return name.replace("_", "").replace("-", "").lower() or name


def no_such_field(name: str, written: Collection[str], whose: str) -> str:
    """Return the problem of a required column whose field the writer's schema lacks, with the name of a similar field.

    :param written: names of the written fields.
    :param whose: the word for the writer's type, such as "schema".
    """
    near = near_name(name, written)
    has = "" if near is None else f"; it has {quoted(near)}, and names match exactly"
    return f"the column is required, and the writer's {whose} has no such field{has}"


def quoted(text: str) -> str:
    """Return a short excerpt of a string value, quoted."""
    return repr(shorten(text))


@dataclass(frozen=True, slots=True)
class BadRow:
    """Bad record, without a lossless row: the position in the batch, and the reason."""

    index: int
    reason: str
    schema_id: int | None = None


@dataclass(frozen=True, slots=True)
class DecoderResult:
    """Rows of the good records of a batch, in the order of the records, and the bad records.

    `bad` is in that order, too. `filtered` has the positions of records that a statement leaves out. Each record is a
    row, bad or filtered.
    """

    rows: pa.Table
    bad: Sequence[BadRow] = ()
    filtered: Sequence[int] = ()

    @classmethod
    def without(cls, reasons: Mapping[int, str], columns: Sequence[pa.Array], schema: pa.Schema) -> DecoderResult:
        """Return the columns as rows, without the records in `reasons`, which are bad.

        :param reasons: reasons by position; the columns have a value for each record, good or bad.
        """
        if reasons:
            kept = pa.array(good_mask(len(columns[0]), reasons))
            columns = [column.filter(kept) for column in columns]
        rows = pa.Table.from_arrays(columns, schema=schema)
        return cls(rows, [BadRow(index, reasons[index]) for index in sorted(reasons)])

    def refined(
        self, places: npt.NDArray[np.int64], reasons: Mapping[int, str], columns: Sequence[pa.Array], schema: pa.Schema
    ) -> DecoderResult:
        """Return the result with new columns, and with the rows in `reasons` moved to the bad records.

        :param places: positions of the rows' records in the batch.
        :param reasons: reasons by row of this result.
        :param columns: a value for each row of this result; the rows in `reasons` are left out.
        """
        good = DecoderResult.without(reasons, columns, schema)
        bad = [*self.bad, *(BadRow(int(places[row.index]), row.reason) for row in good.bad)]
        return DecoderResult(good.rows, sorted(bad, key=lambda row: row.index))

    def whole(self, batch: RawBatch) -> pa.Table:
        """Return the rows of a batch without bad records. Raises BadRecord for the first bad record."""
        for bad in self.bad:
            raise BadRecord(batch.topic, batch.partition, batch.offsets[bad.index], bad.reason)
        return self.rows


def good_mask(count: int, bad: Iterable[int]) -> npt.NDArray[np.bool_]:
    """Return a mask of the good records among `count` records.

    :param bad: positions of the bad records.
    """
    good = np.ones(count, np.bool_)
    good[list(bad)] = False
    return good


Indices = npt.NDArray[np.int64]


def pick(batch: RawBatch, indices: Sequence[int] | Indices) -> RawBatch:
    """Return the records at these ascending positions."""
    places = np.asarray(indices, np.int64)
    taken = pa.array(places)
    return batch.selected(lambda numbers: _picked(numbers, places), lambda column: column.take(taken))


def _picked(numbers: Sequence[int], places: Indices) -> Sequence[int]:
    # An array of Python's numbers: JSON can't have NumPy's.
    return array("q", np.asarray(numbers, np.int64)[places].tobytes())


def all_but(count: int, indices: Sequence[int] | Indices) -> Indices:
    """Return the positions of `count` records except those in `indices`."""
    return np.delete(np.arange(count, dtype=np.int64), indices)
