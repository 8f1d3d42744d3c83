"""Admission of tables named by records: checked for each route before a row is made, and again before a write.

A route is the values of a record that choose its table; the home is the table with the ledger of the fan-out. An error
that a record's value causes makes the record a bad one, and ends no run: see `decode.metadata.RecordRouter`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from airflow_lakestream.core.routing import SEPARATOR, NewTables, TableTemplate
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg.fan_out.books import NotItsOwn

log = logging.getLogger(__name__)

# Limit of the refused routes and missing tables to remember: records can name any number.
REMEMBERED = 10_000
# After this many missing tables, the catalog is asked once for the names of all its tables.
LOOKS = 100


@dataclass(frozen=True)
class FanOut:
    """Configuration of a fan-out.

    :param decoding: all further settings with influence on the rows.
    :param max_tables: limit of the tables that records may choose.
    """

    topic: str
    template: TableTemplate
    home: str
    decoding: tuple[str, ...] = ()
    new_tables: NewTables = NewTables.FAIL
    max_tables: int = 100


class RouteAdmission:
    """Decision on each route, kept until the home is loaded again; thread-safe.

    :param noted_tables: returns the tables known to the home, with the routes that name them.
    :param is_there: returns whether a table exists. Raises NotItsOwn for a table that no record may reach.
    :param names: returns the names of all existing tables, or None if the catalog does not list them.
    :param lock: held during calls of the other three.
    """

    def __init__(
        self,
        fan_out: FanOut,
        noted_tables: Callable[[], Mapping[str, str | None]],
        is_there: Callable[[str], bool],
        names: Callable[[], Iterable[str] | None],
        lock: threading.RLock,
    ) -> None:
        self._fan_out = fan_out
        self._noted_tables, self._is_there, self._names = noted_tables, is_there, names
        self._lock = lock
        # The table of each admitted route. New tables and the tables known to the home count towards `max_tables`.
        self._tables: dict[str, str] = {}
        # The reason against each refused route.
        self._refused: dict[str, str] = {}
        # Reasons against a table, by its name: many routes may lead to one table.
        self._foreign_tables: dict[str, str] = {}
        # The last missing table that must not be made.
        self._missing_table: str | None = None
        # The number of missing tables that were looked up, and the names of all tables, asked for after LOOKS of them.
        self._misses = 0
        self._all_names: frozenset[str] | None = None

    def refusals(self, routes: Iterable[str]) -> dict[str, str]:
        """Return the refused routes with reasons; admitted routes are left out.

        New routes are decided, and the decision is kept. Raises InvalidArgument if new tables must not be made and no
        table exists yet: the records are not to blame.
        """
        refused = {}
        for route in routes:
            if route not in self._tables and (reason := self._refused.get(route) or self._decide(route)) is not None:
                refused[route] = reason
        if self._missing_table is not None and not self._tables and not self._noted_tables():
            raise InvalidArgument(
                "new_tables",
                f'"fail" makes no table, and {self._fan_out.home} has none yet: {self._missing_table} does not exist.',
                'Give new_tables="create" until the tables are there, or create them.',
            )
        return refused

    def table_of(self, route: str) -> str:
        """Return the table of an admitted route."""
        return self._tables[route]

    def _decide(self, route: str) -> str | None:
        """Admit or refuse a route, and keep the decision; return the reason of a refusal, or None."""
        with self._lock:
            name = self._fan_out.template.table(route.split(SEPARATOR))
            reason = self._refusal_of(name, route)
            if reason is None:
                self._tables[route] = name
            else:
                _remember(self._refused, route, reason)
        return reason

    def peek(self, routes: Iterable[str]) -> dict[str, str]:
        """Return the presently refused routes with reasons, without admission of any route.

        All routes not returned could be admitted now.
        """
        with self._lock:
            names = {route: self._fan_out.template.table(route.split(SEPARATOR)) for route in routes}
            decided = {route: self._refusal_of(name, route) for route, name in names.items()}
        return {route: reason for route, reason in decided.items() if reason is not None}

    @property
    def admitted(self) -> Mapping[str, str]:
        """The tables of the admitted routes."""
        return self._tables

    def _refusal_of(self, name: str, route: str) -> str | None:
        """Return the reason against the table of a route, or None for a table that the records may have."""
        fan_out = self._fan_out
        if (reason := refusal(fan_out, known_tables(self._noted_tables(), self._tables), name, route)) is not None:
            return reason
        subject = f"its {fan_out.template.describe(route)}"
        try:
            is_there = self._table_exists(name)
        except NotItsOwn as e:
            # The table is there, and no record may reach it. The reason holds for further routes, too.
            _remember(self._foreign_tables, name, e.reason)
        if (reason := self._foreign_tables.get(name)) is not None:
            return f"{subject} names {name}, which {reason.rstrip('.')}. {_REMEDY}"
        if not is_there and fan_out.new_tables is NewTables.FAIL:
            self._missing_table = name
            return f'{subject} has no table yet: {name} does not exist. Give new_tables="create", or create it.'
        return None

    def _table_exists(self, name: str) -> bool:
        """Return whether a table exists; the catalog is asked as seldom as possible. Raises NotItsOwn."""
        if name in self._foreign_tables:
            return True
        if self._fan_out.new_tables is NewTables.FAIL and self._misses >= LOOKS:
            # After many missing tables, the names of all tables are asked for once, instead of each table.
            if self._misses == LOOKS:
                self._misses += 1
                listed = self._names()
                self._all_names = None if listed is None else frozenset(listed_name.lower() for listed_name in listed)
            if self._all_names is not None and name.lower() not in self._all_names:
                return False
        is_there = self._is_there(name)
        if not is_there and self._misses < LOOKS:
            self._misses += 1
        return is_there


_REMEDY = "No value reaches a table that this fan-out did not make. Correct the producer, or give another template."


def known_tables(noted_tables: Mapping[str, str | None], admitted: Mapping[str, str]) -> dict[str, str | None]:
    """Return the tables known to the home and the tables of admitted routes, with the routes."""
    return {**noted_tables, **{table: route for route, table in admitted.items()}}


def refusal(fan_out: FanOut, tables: Mapping[str, str | None], name: str, route: str) -> str | None:
    """Return the reason against a route, as far as the known tables decide, or None.

    A refusal stays a refusal, however many tables are known later.
    """
    subject = f"its {fan_out.template.describe(route)}"
    # Some catalogs fold case.
    if name.lower() == fan_out.home.lower():
        return f"{subject} names the home table {name}. Give another home_table."
    if tables.get(name) not in (None, route):
        other = fan_out.template.describe(str(tables[name]))
        return f"{subject} would go to {name}, which is the table of {other}. Correct the producer, or the template."
    if name not in tables and len(tables) >= fan_out.max_tables:
        return f"{subject} would need one table more than max_tables={fan_out.max_tables}. Raise it if they are meant."
    return None


def _remember(reasons: dict[str, str], key: str, reason: str) -> None:
    """Add a reason; a dictionary that is full is emptied before."""
    if len(reasons) >= REMEMBERED:
        reasons.clear()
    reasons[key] = reason
