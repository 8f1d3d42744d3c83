"""Columns of a database's table that become other ones, in any database."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

# By column: the type before, a value, the type after, and a value.
Columns = Mapping[str, tuple[str, str, str, str]]


@dataclass(frozen=True)
class Retyped:
    """One table with the key `id`; `run` runs a statement, in which `{table}` is its name."""

    run: Callable[[str], object]

    def add(self, columns: Columns, *, anew: bool = False) -> None:
        """Add columns, with the types before or after."""
        for name, kinds in columns.items():
            self.run(f"alter table {{table}} add column {name} {kinds[2 if anew else 0]}")

    def drop(self, columns: Columns) -> None:
        """Drop columns."""
        for name in columns:
            self.run(f"alter table {{table}} drop column {name}")

    def write(self, key: int, columns: Columns, *, anew: bool = False) -> None:
        """Insert a row, with the values before or after."""
        values = ", ".join(one[3 if anew else 1] for one in columns.values())
        self.run(f"insert into {{table}} (id, {', '.join(columns)}) values ({key}, {values})")
