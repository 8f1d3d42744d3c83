"""A play: random databases are changed while their mirrors are killed, and in each quiet moment both are the same."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING

from tests.support.hostile.changes import transaction
from tests.support.hostile.database import Database
from tests.support.hostile.ddl import change_definition
from tests.support.hostile.features import RESNAPSHOT, TYPES, is_on
from tests.support.hostile.mirrors import App, Stop, mirror_name, stopped_table
from tests.support.hostile.oracle import compare, database_rows
from tests.support.hostile.readers import Readers
from tests.support.hostile.schema import HostileTable, make_table
from tests.support.lake import Lake, compact

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

# How many tables there are at a time, in a short play and in a long one.
TABLES_SHORT, TABLES = 4, 6
# One of so many transactions is followed by a change of some table's definition.
DDL_EVERY = 12
RESTART_EVERY = 250
ANEW_EVERY = 300
# One of so many mirrors is compacted in a quiet moment.
COMPACT_EVERY = 4
# One of so many quiet moments comes after few changes more.
FEW_EVERY, FEW = 2, 8
# Longer plays have a quiet moment after each kill.
QUIET_FROM = 1_000


@dataclass
class Play:
    """One seed's play. `failures` are what no mirror may do; each says how it is seen again.

    :param readers: who reads each Iceberg mirror besides PyIceberg.
    :param delta: how many tables are mirrored into Delta, too.
    """

    seed: int
    database: Database
    lake: Lake
    folder: Path
    spark: SparkSession
    readers: Readers
    transactions: int
    kills: int
    delta: int = 1
    tables: list[HostileTable] = field(default_factory=list)
    retired: list[HostileTable] = field(default_factory=list)
    apps: list[App] = field(default_factory=list)
    figures: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = Random(f"{self.seed}/play")
        # Of its own: when a kill comes changes nothing of what is done to the database.
        self._fate = Random(f"{self.seed}/kills")
        self._by_root = self._random.random() < 0.6
        self._most_tables = TABLES if self.transactions > QUIET_FROM else TABLES_SHORT
        self._out_of_range = self._random.choice(["reject", "clamp", "null"]) if is_on(TYPES) else "reject"
        self._landing = {"out_of_range": self._out_of_range} if is_on(TYPES) else {}
        self._main = App([], self.lake, self.folder / "main", landing=self._landing, chance=self._fate)
        self._main.folder.mkdir()
        self.apps.append(self._main)

    def run(self) -> None:
        """Play from begin to end."""
        self.database.prepare(by_root=self._by_root)
        for number in range(self._most_tables):
            self._new_table(is_delta=number < self.delta)
        self.database.begin()
        rounds = max(1, self.kills)
        for number in range(rounds):
            share = self.transactions * (number + 1) // rounds - self.transactions * number // rounds
            # A mirror that stops meanwhile ends its app before the kill: without that mirror, once more.
            while not self._round(share) and self.kills:
                self.quiet()
                assert self.figures["quiet moments"] < 20 * rounds, f"{self.again}\nNo app lives until its kill."
            if number == rounds - 1 or self.transactions > QUIET_FROM:
                self.quiet()
        self.figures["transactions"] = sum(one.book.transactions for one in [*self.tables, *self.retired])
        self.figures["connectors failed"] = len(self.database.failures)
        self.figures["tables"] = len(self.tables) + len(self.retired)
        for one in [*self.tables, *self.retired]:
            self.figures.update({f"ddl: {name}": count for name, count in one.book.ddl.items()})

    def _new_table(self, *, is_delta: bool = False) -> None:
        number = len(self.tables) + len(self.retired)
        table = make_table(
            self.database.name,
            number,
            str(self.seed),
            delta=is_delta,
            by_root=self._by_root,
            out_of_range=self._out_of_range,
        )
        self.database.make(table)
        self.tables.append(table)
        if table.has_primary_key:
            self._main.join(table)
        else:
            self._add_app(table, f"keyless-{number}")
        if is_delta:
            self._add_app(table, f"delta-{number}", is_delta=True)

    def _add_app(self, table: HostileTable, name: str, *, is_delta: bool = False) -> None:
        landing = self._landing if table.has_primary_key else {**self._landing, "key": table.key}
        app = App([table], self.lake, self.folder / name, is_delta, landing, self._fate)
        app.folder.mkdir()
        self.apps.append(app)

    def _round(self, transactions: int) -> bool:
        """Make transactions while the app runs, and kill it; return whether it was there to be killed."""
        app, before = None, self._main.progress
        if self.kills and self._main.tables:
            app = self._main.start()
        for _ in range(transactions):
            self._change()
            if self._random.random() < 1 / RESTART_EVERY:
                self.database.restart()
                self.figures["connector restarts"] += 1
            if is_on(RESNAPSHOT) and self._random.random() < 1 / ANEW_EVERY:
                self.database.begin_anew(self.tables, lambda: [self._change() for _ in range(10)])
                self.figures["connectors made anew"] += 1
        if app is None:
            return False
        self._main.kill_after(app, before, self._fate.randint(3, 40))
        is_killed = app.returncode == -signal.SIGKILL
        self.figures["kills" if is_killed else "stopped before its kill"] += 1
        return is_killed

    def _change(self) -> None:
        """Make a transaction, and seldom a change of a definition."""
        transaction(self.database.sql, self._random.choice(self.tables))
        if self._random.random() < 1 / DDL_EVERY:
            change_definition(self.database.sql, self._random.choice(self.tables))

    def quiet(self) -> None:
        """Let all mirrors read to the end, and compare them."""
        self._read_to_the_end()
        if self.tables and self._fate.random() < 1 / FEW_EVERY:
            # A connector that was made anew sends each row again, and no delete is left. Those of few changes stay.
            for _ in range(FEW):
                transaction(self.database.sql, self._fate.choice(self.tables))
            self._read_to_the_end()
        for table in list(self.tables):
            self._compare(table)
            self._compact(table)
        self.figures["quiet moments"] += 1
        print(f"{dict(self.figures)}; {len(self.failures)} failures", flush=True)
        while len(self.tables) < self._most_tables:
            self._new_table(is_delta=sum(one.delta for one in self.tables) < self.delta)

    def _read_to_the_end(self) -> None:
        self.database.await_all_sent()
        for app in list(self.apps):
            for _ in range(len(app.tables)):
                stop = app.run(self.spark) if app.tables else None
                if stop is None:
                    break
                self._has_stopped(app, stop)

    def _has_stopped(self, app: App, stop: Stop) -> None:
        table = stopped_table(stop, app.tables) or self._found_alone(app, stop)
        if stop.reason in table.book.justified:
            self.figures[f"stop: {stop.reason}"] += 1
        else:
            self._fail(table, f"stopped for {stop.reason or 'no reason of the list'}: {stop.text[-2000:]}")
        self._retire(table)

    def _found_alone(self, app: App, stop: Stop) -> HostileTable:
        """Return the table whose mirror has stopped with an error that does not name it, which is a failure, too."""
        for table in app.tables:
            alone = replace(app, tables=[table], checkpoints=app.checkpoints + 1_000 + table.number)
            if alone.run(self.spark) is not None:
                self._fail(table, f"an error that names neither mirror nor topic: {stop.text[-2000:]}")
                return table
        raise AssertionError(
            f"{self.again}\nThe app has stopped, and none of its tables alone has: {stop.text[-4000:]}"
        )

    def _compact(self, table: HostileTable) -> None:
        """Now and then let a foreign writer compact a mirror, which takes its position deletes along."""
        if self._fate.random() < 1 / COMPACT_EVERY and table in self.tables:
            name = mirror_name(table)
            if self.lake.catalog().table_exists(name) and (found := self.lake.table(name)).current_snapshot():
                self.figures["with deletes"] += any(task.delete_files for task in found.scan().plan_files())
                compact(found)
                self.figures["compactions"] += 1

    def _compare(self, table: HostileTable) -> None:
        theirs = database_rows(self.database.sql, table, self._out_of_range)
        for app in self.apps:
            if table in app.tables:
                found = app.found(table)
                compared = compare(table, theirs, found)
                self.figures.update(comparisons=1, rows=compared.rows, values=compared.values)
                differences = [*compared.differences, *([] if app.is_delta else self._read_by_others(table, found))]
                if differences:
                    kind = "Delta" if app.is_delta else "Iceberg"
                    shown = "\n  ".join(one[:600] for one in differences[:6])
                    self._fail(table, f"{len(differences)} differences in {kind}:\n  {shown}")
        if table not in self.tables or (self.failures and self.failures[-1].startswith(f"{table.topic}: ")):
            self._retire(table)

    def _read_by_others(self, table: HostileTable, found: pa.Table) -> list[str]:
        mirror = self.lake.table(mirror_name(table))
        self.figures.update({f"read by {name}": 1 for name in self.readers.names(mirror)})
        self.figures["read with deletes"] += any(task.delete_files for task in mirror.scan().plan_files())
        return list(self.readers.differences(mirror, found))

    def _fail(self, table: HostileTable, what: str) -> None:
        statements = "\n  ".join(table.book.statements[-25:])
        text = f"{table.topic}: {what}\n justified: {table.book.justified}\n the last statements:\n  {statements}"
        (self.folder / "failures.log").open("a").write(f"{text}\n\n")
        self.failures.append(text)

    def _retire(self, table: HostileTable) -> None:
        """Mirror a table no more: another one takes its place."""
        if table in self.tables:
            self.tables.remove(table)
            self.retired.append(table)
        for app in [one for one in self.apps if table in one.tables]:
            app.leave(table)

    @property
    def again(self) -> str:
        """The line that plays it again."""
        return f"make soak-cdc SEED={self.seed} N={self.transactions} KILLS={self.kills}"


def as_table(figures: Mapping[str, int]) -> str:
    """Return the figures of a play as the docs have them."""
    return "\n".join(
        ["", "| what | how often |", "|---|---|", *(f"| {n} | {c:,} |" for n, c in sorted(figures.items()))]
    )
