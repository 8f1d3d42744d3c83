"""A shop's table of orders, and the events that Debezium's connector for PostgreSQL sends of its changes.

JSON without schemas, as its converter writes it with `schemas.enable=false`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_STATES = ("new", "paid", "packed", "sent", "back")
_BOOLEANS = ("false", "true")
_NOTE = "to be left at the neighbour's, second door on the right, please"
# Of a hundred changes; the others are updates.
_INSERTS, _DELETES = 20, 5
_VALUE = (
    '{"before":%s,"after":%s,"source":{"version":"3.2.0.Final","connector":"postgresql","name":"shop",'
    '"ts_ms":1790000000000,"snapshot":"false","db":"shop","sequence":"[\\"%d\\",\\"%d\\"]","ts_us":1790000000000000,'
    '"ts_ns":1790000000000000000,"schema":"public","table":"orders","txId":%d,"lsn":%d,"xmin":null},'
    '"transaction":null,"op":"%s","ts_ms":1790000000100,"ts_us":1790000000100000,"ts_ns":1790000000100000000}'
)
_ROW = (
    '{"id":%d,"customer":%d,"state":"%s","amount":"%d.50","currency":"EUR","placed_at":"2026-01-02T03:04:05.678901Z",'
    '"changed_at":%d,"items":%d,"express":%s,"note":"' + _NOTE + '"}'
)
_KEYS_ONLY = (
    '{"id":%d,"customer":0,"state":"","amount":"0","currency":"","placed_at":"1970-01-01T00:00:00Z","changed_at":0,'
    '"items":0,"express":false,"note":""}'
)


def orders(ids: npt.NDArray[np.int64]) -> pa.Table:
    """Return rows of the table, as the mirror has them."""
    count = len(ids)
    state = pa.array(_STATES).take(pa.array(ids % len(_STATES)))
    amount = pc.binary_join_element_wise(pa.array(ids % 1000).cast(pa.string()), pa.scalar(".50"), "")
    return pa.table(
        {
            "id": pa.array(ids),
            "customer": pa.array(ids * 7919 % 100_003),
            "state": state,
            "amount": amount,
            "currency": pa.repeat("EUR", count),
            "placed_at": pa.repeat("2026-01-02T03:04:05.678901Z", count).cast(pa.timestamp("us", "UTC")),
            "changed_at": pa.array(ids),
            "items": pa.array(ids % 9),
            "express": pa.array(ids % 2 == 0),
            "note": pa.repeat(_NOTE, count),
        }
    )


def changes(rows: int, count: int, *, recent: bool) -> Iterator[bytes | None]:
    """Yield the values of so many changes of a table of so many rows, and a tombstone after each deletion.

    :param recent: nine of ten changes are of the tenth of the rows that is newest; else they are of any.
    """
    for number, (key, op) in enumerate(_changed_keys(rows, count, recent=recent)):
        place = 1_000 + 60 * number
        before, after = (_KEYS_ONLY % key, "null") if op == "d" else ("null", _ROW % _values(key, number))
        yield (_VALUE % (before, after, place, place, number, place, op)).encode()
        if op == "d":
            yield None


def records(rows: int, count: int, *, deletes: bool = True) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield key and value of so many plain records, each the new row of a key, or a tombstone.

    :param deletes: whether there are tombstones; else a row comes in place of each.
    """
    for number, (key, op) in enumerate(_changed_keys(rows, count, recent=False)):
        is_tombstone = deletes and op == "d"
        yield b'{"id":%d}' % key, None if is_tombstone else (_ROW % _values(key, number)).encode()


def _changed_keys(rows: int, count: int, *, recent: bool) -> Iterator[tuple[int, str]]:
    rng, last = random.Random(7), rows
    for _ in range(count):
        kind = rng.randrange(100)
        if kind < _INSERTS:
            last += 1
            yield last - 1, "c"
        else:
            first = last - last // 10 if recent and rng.randrange(10) else 0
            yield rng.randrange(first, last), "d" if kind < _INSERTS + _DELETES else "u"


def _values(key: int, number: int) -> tuple[Any, ...]:
    return (key, number, _STATES[number % 5], number % 1000, 1_000 + 60 * number, number % 9, _BOOLEANS[number % 2])
