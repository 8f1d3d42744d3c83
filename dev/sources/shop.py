"""A shop's orders in PostgreSQL, and the transactions that keep changing them: what `dags/orders_cdc.py` mirrors."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dev.services.connect import Connect
    from dev.services.postgres import Postgres

CAPTURE = "shop"
TABLE = "orders"

_CREATE = f"""
create table {TABLE} (
    id bigint generated always as identity primary key,
    customer bigint not null,
    state text not null default 'new',
    cents bigint not null,
    changed_at timestamptz not null default now()
)
"""
_PLACE = f"insert into {TABLE} (customer, cents) values (%s, %s)"
_MOVE = f"update {TABLE} set state = %s, changed_at = now() where id = (select min(id) + %s from {TABLE})"
_DROP = f"delete from {TABLE} where id = (select min(id) from {TABLE})"
_STATES = ("paid", "packed", "sent", "back")
_FIRST = 1_000


def open_shop(postgres: Postgres, connect: Connect) -> None:
    """Create the table with its first orders, and let Debezium send it to the topic `shop.public.orders`."""
    with postgres.connect() as sql:
        sql.execute(_CREATE)
        sql.cursor().executemany(_PLACE, [(i * 7919 % 1_000, i * 31 % 10_000) for i in range(_FIRST)])
    connect.capture(postgres, CAPTURE, f"public.{TABLE}")


def trade(postgres: Postgres, *, rate: float, stop: threading.Event, seed: int = 7) -> int:
    """Place, change and delete orders, `rate` transactions a second, until `stop` is set; return how many."""
    rng = random.Random(seed)
    done, began = 0, time.monotonic()
    with postgres.connect() as sql:
        while not stop.wait(max(0.0, began + done / rate - time.monotonic())):
            kind = rng.random()
            if kind < 0.3:
                sql.execute(_PLACE, (rng.randrange(1_000), rng.randrange(10_000)))
            elif kind < 0.9:
                sql.execute(_MOVE, (rng.choice(_STATES), rng.randrange(_FIRST)))
            else:
                sql.execute(_DROP)
            done += 1
    return done
