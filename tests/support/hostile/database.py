"""The hostile database: a schema of a real PostgreSQL, and the connector that sends its changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dev.services.connect import Connect
from dev.services.kafka import Kafka
from dev.services.postgres import Postgres
from tests.support.broker import poll_until
from tests.support.hostile.changes import Sql, fill
from tests.support.hostile.kinds import PREPARE
from tests.support.hostile.schema import COMPUTED, HostileTable, definition, quoted

# Seconds until all changes have to be in the topics, until a connector that sends none of them is restarted, and until
# one that has failed is restarted once more: a restart takes the time that it needs.
PATIENCE = 600
STANDSTILL = 150
APART = 10


@dataclass
class Database:
    """A schema whose tables come and go; each of them is sent, also one that is made later.

    :param name: of schema, slot, publication and connector, and the first word of each topic.
    :param failures: what connectors have failed with; each was restarted.
    """

    sql: Sql
    postgres: Postgres
    connect: Connect
    kafka: Kafka
    name: str
    connectors: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def prepare(self, *, by_root: bool) -> None:
        """Make the schema, and a publication of all that it will have."""
        self.sql.execute("set time zone 'UTC'")
        self.sql.execute("set intervalstyle = 'iso_8601'")
        self.sql.execute("set extra_float_digits = 1")
        for statement in PREPARE:
            self.sql.execute(statement)
        self.sql.execute(f"create schema {self.name}")
        self.sql.execute(f"create table {self.name}.mark (id serial primary key)")
        root = f" with (publish_via_partition_root = {str(by_root).lower()})"
        self.sql.execute(f"create publication {self.name} for tables in schema {self.name}{root}")

    def make(self, table: HostileTable) -> None:
        """Make a table with a few rows."""
        for statement in definition(table):
            table.book.note(statement)
            self.sql.execute(statement)
        with self.sql.transaction():
            # Two, so that it has a topic.
            fill(self.sql, table, 6)

    def drop(self, table: HostileTable) -> None:
        self.sql.execute(f"drop table {table.sql}")

    def begin(self) -> None:
        """Start a connector: it reads what is there, then it follows."""
        self.connectors.append(f"{self.name}_{len(self.connectors)}")
        self.connect.capture(
            self.postgres,
            self.connectors[-1],
            f"{self.name}\\..*",
            topic_prefix=self.name,
            slot_name=self.connectors[-1],
            publication_name=self.name,
            publication_autocreate_mode="disabled",
            interval_handling_mode="string",
            column_exclude_list=f"{self.name}\\..*\\.{COMPUTED}",
            # Connect's converter writes a column's default where the row has NULL, unless it is told not to.
            **{"value.converter": "org.apache.kafka.connect.json.JsonConverter"},
            value_converter_replace_null_with_default="false",
        )
        self.await_all_sent()

    def begin_anew(self, tables: Sequence[HostileTable], meanwhile: Callable[[], object]) -> None:
        """Delete the connector and its slot, and make another one: what happens meanwhile, nobody sends."""
        self.release()
        meanwhile()
        for table in tables:
            # An empty table sends no row, and of the first table a single row is marked as the first, not as the last.
            while len(self.sql.execute(f"select from {table.sql} limit 2").fetchall()) < 2:
                fill(self.sql, table, 1)
        self.begin()

    def restart(self) -> None:
        """Restart the connector, from the place in the log that it wrote down last."""
        self.connect.restart(self.connectors[-1])

    def release(self) -> None:
        """Stop the connector, and take its slot away."""
        if self.connectors:
            name = self.connectors[-1]
            self.connect.release(name)
            slot = f"from pg_replication_slots where slot_name = '{name}'"
            poll_until(lambda: self.sql.execute(f"select {slot} and active").fetchone() is None, f"{name} to end", 180)
            # With those of earlier ones: a task that was being restarted may have made its slot after its end.
            own = f"from pg_replication_slots where starts_with(slot_name, '{self.name}_') and not active"
            self.sql.execute(f"select pg_drop_replication_slot(slot_name) {own}")

    def end(self) -> None:
        """Leave nothing behind."""
        self.release()
        self.sql.execute(f"drop publication if exists {self.name}")
        self.sql.execute(f"drop schema if exists {self.name} cascade")

    def await_all_sent(self) -> None:
        """Wait until all that was committed so far is in the topics: the connector has confirmed it to PostgreSQL."""
        found = self.sql.execute("select pg_current_wal_lsn()").fetchone()
        assert found is not None
        # Not active: it reads its snapshot still, or has failed.
        slot = f"select 1 from pg_replication_slots where slot_name = '{self.connectors[-1]}' and active"
        is_past = f"{slot} and confirmed_flush_lsn > '{found[0]}'"

        begun, restarted = time.monotonic(), float("-inf")

        def confirmed() -> bool:
            nonlocal restarted
            # Debezium 3.2 ends a connector whose predecessor has not quite gone, or whose snapshot meets a change of a
            # table's columns. It may also stand still while its state is RUNNING. People restart its task, then.
            state = self.connect.state(self.connectors[-1])
            now = time.monotonic()
            stands = now - max(begun, restarted) > STANDSTILL
            if stands or ("Exception" in state and now - restarted > APART):
                self.failures.append(f"no event for {STANDSTILL} s, {state}" if stands else state)
                self.restart()
                restarted = now
            # It confirms the place of an event, and there may be no other.
            self.sql.execute(f"insert into {quoted(self.name)}.mark default values")
            return self.sql.execute(is_past).fetchone() is not None

        try:
            poll_until(confirmed, "all changes to be in the topics", PATIENCE, every=0.5)
        except TimeoutError as e:
            raise TimeoutError(f"{e}; the connector: {self.connect.state(self.connectors[-1])[:3000]}") from e
