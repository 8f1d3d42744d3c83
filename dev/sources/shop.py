"""A shop's orders and customers in PostgreSQL, and the transactions that keep changing them.

`dags/orders_cdc.py` and `dags/customers_mirror.py` mirror them.
"""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dev.services.connect import Connect
    from dev.services.postgres import Postgres

CAPTURE = "shop"
TABLE, CUSTOMERS = "orders", "customers"

_CREATE = f"""
create table {TABLE} (
    id bigint generated always as identity primary key,
    customer bigint not null,
    state text not null default 'new',
    cents bigint not null,
    changed_at timestamptz not null default now()
)
"""
_CREATE_CUSTOMERS = f"""
create table {CUSTOMERS} (
    id bigint primary key,
    name text not null,
    city text,
    changed_at timestamptz not null default now()
)
"""
_WELCOME = f"insert into {CUSTOMERS} (id, name, city) values (%s, %s, %s)"
_RELOCATE = f"update {CUSTOMERS} set city = %s, changed_at = now() where id = %s"
_CITIES = ("Bonn", "Jena", "Kiel", "Ulm")
_PLACE = f"insert into {TABLE} (customer, cents) values (%s, %s)"
_MOVE = f"update {TABLE} set state = %s, changed_at = now() where id = (select min(id) + %s from {TABLE})"
_DROP = f"delete from {TABLE} where id = (select min(id) from {TABLE})"
_STATES = ("paid", "packed", "sent", "back")
_FIRST = 1_000
_BUYERS = 1_000


def open_shop(postgres: Postgres, connect: Connect) -> None:
    """Create the tables with their first rows, and let Debezium send them: `shop.public.orders` and so on."""
    with postgres.connect() as sql:
        sql.execute(_CREATE_CUSTOMERS)
        sql.cursor().executemany(_WELCOME, [(i, f"Customer {i}", _CITIES[i % len(_CITIES)]) for i in range(_BUYERS)])
        sql.execute(_CREATE)
        sql.cursor().executemany(_PLACE, [(i * 7919 % _BUYERS, i * 31 % 10_000) for i in range(_FIRST)])
    connect.capture(postgres, CAPTURE, f"public.({TABLE}|{CUSTOMERS})")


def count(postgres: Postgres, table: str = CUSTOMERS) -> int:
    """Return how many rows a table has."""
    with postgres.connect() as sql:
        [(rows,)] = sql.execute(f"select count(*)::int from {table}").fetchall()
        return int(str(rows))


def trade(postgres: Postgres, *, rate: float, stop: threading.Event, seed: int = 7) -> int:
    """Change orders, and now and then a customer, `rate` transactions a second, until `stop`; return how many."""
    rng = random.Random(seed)
    done, began = 0, time.monotonic()
    with postgres.connect() as sql:
        while not stop.wait(max(0.0, began + done / rate - time.monotonic())):
            kind = rng.random()
            if kind < 0.3:
                sql.execute(_PLACE, (rng.randrange(_BUYERS), rng.randrange(10_000)))
            elif kind < 0.8:
                sql.execute(_MOVE, (rng.choice(_STATES), rng.randrange(_FIRST)))
            elif kind < 0.9:
                sql.execute(_RELOCATE, (rng.choice(_CITIES), rng.randrange(_BUYERS)))
            else:
                sql.execute(_DROP)
            done += 1
    return done
