"""Renaming: decoders know the names of fields, the table the names of columns."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pyarrow as pa

from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.json.column_names import NameRules
from airflow_lakestream.decode.keys import ColumnDecoder
from airflow_lakestream.decode.values.outcome import DecoderResult
from airflow_lakestream.exceptions import InvalidArgument


@dataclass(frozen=True)
class NewNames:
    """Names of columns by names of the records' fields, as pairs (field, column)."""

    pairs: tuple[tuple[str, str], ...] = ()

    def check(self, rules: NameRules) -> None:
        """Refuse new names unfit for columns of the table, or for several fields. Raises InvalidArgument."""
        taken = Counter(new.lower() for _, new in self.pairs)
        for name, new in self.pairs:
            problem = rules.problem(new, top=True) or ("two columns get it" if taken[new.lower()] > 1 else None)
            if problem is not None:
                raise InvalidArgument("rename_columns", f"{name!r} can't become {new!r}: {problem}.")

    def columns(self, fields: pa.Schema) -> pa.Schema:
        """Return the columns for fields of records.

        Raises InvalidArgument for two columns with names that differ in case only, or not at all.
        """
        if not self.pairs:
            return fields
        names = self.of(fields.names)
        twice = next((name for name, count in Counter(map(str.lower, names)).items() if count > 1), None)
        if twice is not None:
            both = [old for old, name in zip(fields.names, names, strict=True) if name.lower() == twice]
            raise InvalidArgument("rename_columns", f"the fields {both} of records would be one column, {twice!r}.")
        return pa.schema([field.with_name(name) for field, name in zip(fields, names, strict=True)])

    def fields(self, columns: pa.Schema) -> pa.Schema:
        """Return the fields of records for the table's columns.

        Raises InvalidArgument if a column has the old name of a renamed field: no field would fill the column.
        """
        if not self.pairs:
            return columns
        renamed, old = dict(self.pairs), {new: name for name, new in self.pairs}
        for name in columns.names:
            if name in renamed and name not in old:
                problem = (
                    f"the table has a column {name!r} as well, which {renamed[name]!r} would leave without a value."
                )
                raise InvalidArgument("rename_columns", problem, "Leave the name out, or drop the column.")
        return pa.schema([column.with_name(old.get(column.name, column.name)) for column in columns])

    def of(self, names: list[str]) -> list[str]:
        """Return the names of columns for names of fields."""
        renamed = dict(self.pairs)
        return [renamed.get(name, name) for name in names]


@dataclass(frozen=True)
class RenamedDecoder:
    """Decoder of fields of records into columns with new names."""

    decoder: ColumnDecoder
    names: NewNames

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self.names.columns(self.decoder.schema)

    def decode(self, batch: RawBatch) -> DecoderResult:
        """Return the rows and the bad records of a batch."""
        decoded = self.decoder.decode(batch)
        return DecoderResult(decoded.rows.rename_columns(self.names.of(decoded.rows.column_names)), decoded.bad)
