"""What a decoder makes of a batch: rows, and the records that can't become one, each with its reason.

A value that does not fit its column is told with its place in the document, without dumping the document.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

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
    """A value that a column can't hold without loss; `path` grows while the error passes up through the document."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path: list[str] = []

    def inside(self, step: str) -> Misfit:
        """Return this misfit as seen from one level further out."""
        self.path.append(step)
        return self

    @property
    def reason(self) -> str:
        """The field's path and what is wrong there, of bounded length."""
        if not self.path:
            return self.problem
        path = "".join(reversed(self.path)).removeprefix(".")
        return f"{shorten(path, _PATH)}: {self.problem}"


class SchemaRefused(LakestreamError, Terminal, ValueError):
    """A writer's schema that is not one, or that no table can be made for."""


class SchemaDecoder:
    """What every decoder keeps: the columns it makes, and what becomes of fields without one."""

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
    """Return a value on one line, cut to `limit` characters; what is not printable is escaped."""
    if isinstance(value, bytes):
        value = value[: 4 * limit].decode(errors="backslashreplace")
    text = str(value)[: 4 * limit]
    return shorten(printable(text), limit)


def near_name(name: str, others: Iterable[str]) -> str | None:
    """Return a name among others that differs in case, `_` or `-` only; None without any."""
    wanted = _folded(name)
    return next((other for other in others if _folded(other) == wanted), None)


def _folded(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower() or name


def no_such_field(name: str, written: Collection[str], whose: str) -> str:
    """Say that a required column is not among the fields that were written, and which name comes close."""
    near = near_name(name, written)
    has = "" if near is None else f"; it has {quoted(near)}, and names match exactly"
    return f"the column is required, and the writer's {whose} has no such field{has}"


def quoted(text: str) -> str:
    """Return a short excerpt of a string value, quoted."""
    return repr(shorten(text))


@dataclass(frozen=True, slots=True)
class BadRow:
    """A record that can't become a row without losing something: which of the batch, and why."""

    index: int
    reason: str
    schema_id: int | None = None


@dataclass(frozen=True, slots=True)
class Decoded:
    """One row for each record of a batch that is not bad, in the order of the records.

    `bad` is in that order, too; every record is a row or bad, so `len(rows) + len(bad)` is the length of the batch.
    """

    rows: pa.Table
    bad: Sequence[BadRow] = ()

    @classmethod
    def without(cls, reasons: Mapping[int, str], columns: Sequence[pa.Array], schema: pa.Schema) -> Decoded:
        """Return columns of all records, without those that are bad by these reasons."""
        if reasons:
            kept = pa.array(good_ones(len(columns[0]), reasons))
            columns = [column.filter(kept) for column in columns]
        rows = pa.Table.from_arrays(columns, schema=schema)
        return cls(rows, [BadRow(index, reasons[index]) for index in sorted(reasons)])

    def refined(
        self, places: npt.NDArray[np.int64], reasons: Mapping[int, str], columns: Sequence[pa.Array], schema: pa.Schema
    ) -> Decoded:
        """Return other columns of the rows, without those that turned out to be bad.

        :param places: where the rows' records stand in the batch.
        """
        rest = Decoded.without(reasons, columns, schema)
        bad = [*self.bad, *(BadRow(int(places[row.index]), row.reason) for row in rest.bad)]
        return Decoded(rest.rows, sorted(bad, key=lambda row: row.index))

    def whole(self, batch: RawBatch) -> pa.Table:
        """Return the rows of the batch that was decoded. Raises BadRecord for the first record that is bad."""
        for bad in self.bad:
            raise BadRecord(batch.topic, batch.partition, batch.offsets[bad.index], bad.reason)
        return self.rows


def good_ones(count: int, bad: Iterable[int]) -> npt.NDArray[np.bool_]:
    """Tell of each of `count` records whether it is not among the bad ones."""
    good = np.ones(count, np.bool_)
    good[list(bad)] = False
    return good


Indices = npt.NDArray[np.int64]


def pick(batch: RawBatch, indices: Sequence[int] | Indices) -> RawBatch:
    """Return the records at these places, which rise."""
    places = np.asarray(indices, np.int64)
    taken = pa.array(places)
    return replace(
        batch,
        offsets=_picked(batch.offsets, places),
        timestamps=_picked(batch.timestamps, places),
        values=batch.values.take(taken),
        keys=None if batch.keys is None else batch.keys.take(taken),
        headers=None if batch.headers is None else batch.headers.take(taken),
    )


def _picked(numbers: Sequence[int], places: Indices) -> Sequence[int]:
    # As numbers of Python again: those of NumPy are none for JSON.
    return array("q", np.asarray(numbers, np.int64)[places].tobytes())


def all_but(count: int, indices: Sequence[int] | Indices) -> Indices:
    """Return the places of `count` records without these."""
    return np.delete(np.arange(count, dtype=np.int64), indices)
