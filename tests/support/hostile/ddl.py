"""Random changes of a table's definition, and what each of them justifies in its mirror."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from airflow_lakestream.cdc.stops import StopReason
from tests.support.hostile.changes import Sql, run
from tests.support.hostile.features import COLUMNS, KEYS, TYPES, is_on
from tests.support.hostile.forms import NOT_SENT
from tests.support.hostile.kinds import BY_SQL, kinds
from tests.support.hostile.schema import RESERVED, Column, HostileTable, literal, quoted

Change = Callable[[Sql, HostileTable], bool]


def change_definition(sql: Sql, table: HostileTable) -> None:
    """Make one random change that the table allows, in a transaction of its own, often with changes of rows."""
    names = [name for name, one in DDL.items() if is_on(one[2])]
    for name in table.random.choices(names, [DDL[name][1] for name in names], k=8):
        with sql.transaction():
            done = DDL[name][0](sql, table)
        if done:
            table.book.ddl[name] += 1
            return


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _alter(sql: Sql, table: HostileTable, what: str) -> None:
    run(sql, table, f"alter table {table.sql} {what}")


def _set_all(sql: Sql, table: HostileTable, column: Column) -> None:
    """Write a column in all rows: what the database fills in by itself is in no event."""
    run(sql, table, f"update {table.sql} set {column.sql} = {column.sql}")


def add_column(sql: Sql, table: HostileTable) -> bool:
    if len(table.columns) > 16:
        return False
    column = table.new_column(kinds(table.random, 1, delta=table.delta)[0])
    _add(sql, table, column, "")
    # Without the feature, the newest event of a batch has to have it.
    if not is_on(COLUMNS) or table.random.random() < 0.5:
        run(sql, table, f"update {table.sql} set {column.sql} = {table.value(column)}")
    return True


def _add(sql: Sql, table: HostileTable, column: Column, more: str) -> None:
    _alter(sql, table, f"add column {column.sql} {column.kind.sql}{more}")
    table.columns.append(column)


def add_with_default(sql: Sql, table: HostileTable) -> bool:
    if len(table.columns) > 16:
        return False
    column = table.new_column(kinds(table.random, 1, delta=table.delta)[0])
    default = literal(column.kind.value(table.random), column.kind)
    _add(sql, table, column, f" default {default}")
    _set_all(sql, table, column)
    return True


def drop_column(sql: Sql, table: HostileTable) -> bool:
    if len(table.others) < 3:
        return False
    column = table.random.choice(table.others)
    table.columns.remove(column)
    _alter(sql, table, f"drop column {column.sql}")
    return True


def add_again(sql: Sql, table: HostileTable) -> bool:
    """Drop a column, and add one of its name and type: what the old one held is gone."""
    if not table.others:
        return False
    column = table.random.choice(table.others)
    _alter(sql, table, f"drop column {column.sql}")
    table.columns.remove(column)
    _add(sql, table, replace(column, large=False), "")
    _set_all(sql, table, column)
    return True


def rename_column(sql: Sql, table: HostileTable) -> bool:
    found = [one for one in table.others if not one.large]
    if not found:
        return False
    column = table.random.choice(found)
    new = table.new_column(column.kind)
    _alter(sql, table, f"rename column {column.sql} to {new.sql}")
    column.name = new.name
    # The mirror has a column more, which only events fill.
    _set_all(sql, table, column)
    return True


def widen(sql: Sql, table: HostileTable) -> bool:
    found = [one for one in table.others if one.kind.wider]
    if not found:
        return False
    column = table.random.choice(found)
    column.kind = BY_SQL.get(column.kind.wider) or replace(column.kind, sql=column.kind.wider, wider="", other="")
    _alter(sql, table, f"alter column {column.sql} type {column.kind.sql}")
    if table.delta:
        table.book.justify(
            StopReason.TYPE_CHANGED, f"{column.name} became {column.kind.sql}, which Delta does not follow"
        )
    return True


def change_type(sql: Sql, table: HostileTable) -> bool:
    found = [one for one in table.others if one.kind.other]
    if not found or table.random.random() < 0.5:
        return False
    column = table.random.choice(found)
    old, column.kind = (
        column.kind,
        BY_SQL.get(column.kind.other) or replace(column.kind, sql=column.kind.other, wider="", other=""),
    )
    _alter(sql, table, f"alter column {column.sql} type {column.kind.sql} using {column.sql}::{column.kind.sql}")
    table.book.justify(StopReason.TYPE_CHANGED, f"{column.name} was {old.sql} and is {column.kind.sql}")
    _set_all(sql, table, column)
    return True


def change_default(sql: Sql, table: HostileTable) -> bool:
    found = [one for one in table.others if one.kind.form is not NOT_SENT]
    if not found:
        return False
    column = table.random.choice(found)
    if table.random.random() < 0.3:
        _alter(sql, table, f"alter column {column.sql} drop default")
    else:
        default = literal(column.kind.value(table.random), column.kind)
        _alter(sql, table, f"alter column {column.sql} set default {default}")
    return True


def change_identity(sql: Sql, table: HostileTable) -> bool:
    """Let the database send old rows as a whole, or their key only."""
    if not table.has_primary_key or table.is_deferrable:
        return False
    table.is_full, table.is_by_index = not table.is_full, False
    word = "full" if table.is_full else "default"
    for name in [table.name, *(f"{table.name}_p{n}" for n in range(table.partitions))]:
        run(sql, table, f"alter table {quoted(table.schema)}.{quoted(name)} replica identity {word}")
    return True


def add_reserved(sql: Sql, table: HostileTable) -> bool:
    if table.random.random() < 0.95:
        return False
    column = table.new_column(BY_SQL["text"], table.random.choice(RESERVED))
    if column.name in [one.name for one in table.columns]:
        return False
    _add(sql, table, column, "")
    table.book.justify(StopReason.RESERVED_NAME, f"a column {column.name} was added")
    return True


def change_key(sql: Sql, table: HostileTable) -> bool:
    """Let other columns be the primary key."""
    if not table.has_primary_key or table.is_deferrable or table.partitions or table.random.random() < 0.7:
        return False
    column = table.new_column(BY_SQL["integer"])
    name = sql.execute(
        f"select conname from pg_constraint where contype = 'p' and conrelid = {_text(table.sql)}::regclass"
    ).fetchone()
    assert name is not None
    _alter(sql, table, f"add column {column.sql} integer generated by default as identity")
    _alter(sql, table, f"drop constraint {quoted(name[0])}")
    _alter(sql, table, f"add primary key ({column.sql})")
    for old in table.key:
        _alter(sql, table, f"alter column {quoted(old)} drop identity if exists")
        _alter(sql, table, f"alter column {quoted(old)} drop not null")
    table.columns.append(column)
    table.key = [column.name]
    table.pools[column.name] = [str(n) for n in range(1, 60)]
    table.book.justify(StopReason.KEY_CHANGED, f"the primary key is {column.name}")
    return True


def identify_by_index(sql: Sql, table: HostileTable) -> bool:
    """Let the database send another column than the key of old rows, so that no deletion says which row it deletes."""
    if not table.has_primary_key or table.is_deferrable or table.partitions or table.random.random() < 0.7:
        return False
    column = table.new_column(BY_SQL["integer"])
    _alter(sql, table, f"add column {column.sql} integer generated by default as identity")
    table.columns.append(column)
    table.own_values.add(column.name)
    run(sql, table, f"create unique index {quoted(f'{table.name}_i{table.named}')} on {table.sql} ({column.sql})")
    run(sql, table, f"alter table {table.sql} alter column {column.sql} set not null")
    table.is_by_index = True
    index = quoted(f"{table.name}_i{table.named}")
    _alter(sql, table, f"replica identity using index {index}")
    _set_all(sql, table, column)
    table.book.justify(StopReason.KEY_NOT_SENT, f"the replica identity is the index of {column.name}")
    # Nor does a deletion say which of a key's rows it deletes, where a transaction has written one before.
    table.book.justify(StopReason.ORDER_UNKNOWN, f"the replica identity is the index of {column.name}")
    return True


def make_twin(sql: Sql, table: HostileTable) -> bool:
    """Make another table whose changes go to the same topic: of both names the same is left in Kafka."""
    sent = table.topic.removeprefix(f"{table.schema}.{table.schema}.")
    if sent == table.name or table.random.random() < 0.7:
        return False
    # Not the name that is left: Debezium 3.2 takes its underscores for a pattern, which fits both tables, and fails.
    name = "".join(own if own == left else "@" for own, left in zip(table.name, sent, strict=True))
    twin = f"{quoted(table.schema)}.{quoted(name)}"
    if sql.execute(f"select to_regclass({_text(twin)})").fetchone() != (None,):
        return False
    run(sql, table, f"create table {twin} (like {table.sql} including all)")
    if not table.has_primary_key:
        run(sql, table, f"alter table {twin} replica identity full")
    columns = ", ".join(one.sql for one in table.columns if not one.generated)
    run(sql, table, f"insert into {twin} ({columns}) select {columns} from {table.sql} limit 1")
    table.book.justify(StopReason.OTHER_TABLE, f"{name} has the same topic")
    return True


# What is done, how often, and the feature that it needs.
DDL: dict[str, tuple[Change, int, str]] = {
    "add column": (add_column, 6, ""),
    "add column with a default": (add_with_default, 2, ""),
    "drop column": (drop_column, 3, ""),
    "drop and add column": (add_again, 2, ""),
    "rename column": (rename_column, 2, KEYS),
    "widen type": (widen, 3, ""),
    "change type": (change_type, 1, TYPES),
    "change default": (change_default, 2, ""),
    "replica identity": (change_identity, 3, ""),
    "reserved name": (add_reserved, 1, COLUMNS),
    "primary key": (change_key, 1, KEYS),
    "replica identity by index": (identify_by_index, 1, KEYS),
    "table of the same topic": (make_twin, 1, KEYS),
}
