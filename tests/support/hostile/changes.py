"""Random transactions on one table: what applications do to rows, and what they rarely do."""

from __future__ import annotations

from typing import Any

import psycopg

from airflow_lakestream.cdc.stops import StopReason
from tests.support.hostile.schema import Column, HostileTable, literal, quoted

Sql = psycopg.Connection[tuple[Any, ...]]


def transaction(sql: Sql, table: HostileTable) -> None:
    """Make one random transaction."""
    random = table.random
    with sql.transaction():
        for _ in range(random.choices([1, 2, 4, 8], [4, 3, 2, 1])[0]):
            change = random.choices(list(CHANGES), list(CHANGES.values()))[0]
            change(sql, table)
        if random.random() < 0.05:
            raise psycopg.Rollback
    table.book.transactions += 1


def run(sql: Sql, table: HostileTable, statement: str) -> None:
    table.book.note(statement)
    sql.execute(statement)


def fill(sql: Sql, table: HostileTable, count: int) -> None:
    """Insert some rows."""
    for _ in range(count):
        insert(sql, table)


def insert(sql: Sql, table: HostileTable) -> None:
    _insert(sql, table, table.some_key())


def _insert(sql: Sql, table: HostileTable, key: list[str]) -> None:
    others = [one for one in table.others if table.random.random() < 0.9]
    keys = [literal(value, table.column(name).kind) for name, value in zip(table.key, key, strict=True)]
    names = ", ".join([*(quoted(name) for name in table.key), *(one.sql for one in others)])
    values = ", ".join([*keys, *(table.value(one) for one in others)])
    if not table.has_primary_key or table.is_deferrable:
        run(sql, table, f"insert into {table.sql} ({names}) select {values} where not exists ({_rows(table, key)})")
        return
    sets = ", ".join(f"{one.sql} = excluded.{one.sql}" for one in others[:4])
    action = f"update set {sets}" if sets and table.random.random() < 0.7 else "nothing"
    on = ", ".join(quoted(name) for name in table.key)
    run(sql, table, f"insert into {table.sql} ({names}) values ({values}) on conflict ({on}) do {action}")


def _rows(table: HostileTable, key: list[str]) -> str:
    return f"select from {table.sql} x where {table.is_key(key, 'x.')}"


def _sets(table: HostileTable, columns: list[Column]) -> str:
    return ", ".join(f"{one.sql} = {table.value(one)}" for one in columns)


def update(sql: Sql, table: HostileTable) -> None:
    if chosen := [one for one in table.others if table.random.random() < 0.3]:
        run(sql, table, f"update {table.sql} set {_sets(table, chosen)} where {table.is_key(table.some_key())}")


def update_many(sql: Sql, table: HostileTable) -> None:
    """Change a column of all rows, or of those that share the first column of the key."""
    if not table.others:
        return
    name, sets = table.key[0], _sets(table, [table.random.choice(table.others)])
    some = f" where {quoted(name)} = {literal(table.random.choice(table.pools[name]), table.column(name).kind)}"
    run(sql, table, f"update {table.sql} set {sets}{some if table.random.random() < 0.7 else ''}")


def delete(sql: Sql, table: HostileTable) -> None:
    run(sql, table, f"delete from {table.sql} where {table.is_key(table.some_key())}")


def move(sql: Sql, table: HostileTable) -> None:
    _move(sql, table, table.some_key(), table.some_key())


def _move(sql: Sql, table: HostileTable, key: list[str], other: list[str]) -> None:
    if table.is_by_index:
        # PostgreSQL sends nothing of the old key, so that the row of the old key stays: docs/cdc-stops.md says so.
        return
    named = zip(table.key, other, strict=True)
    sets = ", ".join(f"{quoted(name)} = {literal(value, table.column(name).kind)}" for name, value in named)
    # Sometimes with another change of the row, of which the rest may be kept outside.
    if table.others and table.random.random() < 0.4:
        sets += f", {_sets(table, [table.random.choice(table.others)])}"
    run(sql, table, f"update {table.sql} set {sets} where {table.is_key(key)} and not exists ({_rows(table, other)})")


def swap(sql: Sql, table: HostileTable) -> None:
    """Let two rows change keys: by way of a third one, or at once where the key is checked later."""
    if table.is_deferrable:
        _swap_at_once(sql, table)
        return
    one, two, third = (table.some_key() for _ in range(3))
    for key, other in ((one, third), (two, one), (third, two)):
        _move(sql, table, key, other)


def _swap_at_once(sql: Sql, table: HostileTable) -> None:
    one, two = table.some_key(), table.some_key()
    sets = ", ".join(
        f"{quoted(name)} = case when {table.is_key(one)} then {literal(theirs, table.column(name).kind)} "
        f"else {literal(ours, table.column(name).kind)} end"
        for name, ours, theirs in zip(table.key, one, two, strict=True)
    )
    table.book.justify(StopReason.ORDER_UNKNOWN, "two rows changed their keys at once")
    run(sql, table, f"update {table.sql} set {sets} where {table.is_key(one)} or {table.is_key(two)}")


def anew(sql: Sql, table: HostileTable) -> None:
    """Delete a row and insert it again."""
    key = table.some_key()
    run(sql, table, f"delete from {table.sql} where {table.is_key(key)}")
    _insert(sql, table, key)


def undone(sql: Sql, table: HostileTable) -> None:
    """Make changes that a savepoint takes back, and one that stays."""
    with sql.transaction():
        table.book.note("savepoint")
        table.random.choice([insert, update, delete, move])(sql, table)
        update_many(sql, table)
        table.book.note("rollback to savepoint")
        raise psycopg.Rollback
    with sql.transaction():
        update(sql, table)


def fails(sql: Sql, table: HostileTable) -> None:
    """Let a statement fail, as an application does that catches the error and goes on."""
    key = table.some_key()
    try:
        with sql.transaction():
            run(sql, table, f"delete from {table.sql} where {table.is_key(key)}")
            run(sql, table, f"insert into {table.sql} ({quoted(table.key[0])}) values (null)")
    except psycopg.IntegrityError:
        table.book.note("rollback to savepoint")


def truncate(sql: Sql, table: HostileTable) -> None:
    if table.random.random() < 0.1:
        # PostgreSQL refuses it while a check of the rows before is still to come.
        run(sql, table, "set constraints all immediate")
        run(sql, table, f"truncate {table.sql}")
        run(sql, table, "set constraints all deferred")
        table.book.ddl["truncate"] += 1


CHANGES = {
    insert: 30,
    update: 30,
    update_many: 5,
    delete: 8,
    move: 8,
    swap: 3,
    anew: 4,
    undone: 4,
    fails: 3,
    truncate: 1,
}
