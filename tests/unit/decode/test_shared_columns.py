"""Columns that come up in the records of several workers: the same as if one decoder had all records at once."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.sharing.pieces import SharePiece, split
from airflow_lakestream.core.sharing.rounds import RoundAnswer, Undecided, UndecidedChunks, read_in_rounds
from airflow_lakestream.decode.formats import PayloadFormats
from airflow_lakestream.decode.json.column_names import MOST_COLUMNS
from tests.support.core_strategies import IDENTITY
from tests.unit.decode.support import batch

TOPIC = "orders"
ITEM = pa.struct([("q", pa.int64())])
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("s", pa.struct([("a", pa.string())])),
        ("l", pa.list_(ITEM)),
        ("m", pa.map_(pa.string(), ITEM)),
    ]
)
SCALARS = st.sampled_from(
    [1, 2**63, 1.5, True, None, "", "text", "1", "2026-11-22T00:00:00Z", "2026-11-22T00:00:00", "2026-11-22"]
)
# Names that are columns, that can be none, and that can be none beside another.
NAMES = st.sampled_from(["id", "s", "l", "m", "a", "A", "q", "x", "X", "y", "s.a", "", "_kafka_z", "\x01"])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
)
KNOWN = st.fixed_dictionaries(
    {},
    optional={
        "id": st.integers(0, 9) | st.just("no number"),
        "s": st.dictionaries(NAMES, SCALARS, max_size=3),
        "l": st.lists(st.dictionaries(NAMES, SCALARS, max_size=2), max_size=2),
        "m": st.dictionaries(NAMES, st.dictionaries(NAMES, SCALARS, max_size=2), max_size=2),
    },
)
DOCUMENTS = st.builds(lambda known, new: {**new, **known}, KNOWN, st.dictionaries(NAMES, VALUES, max_size=3))
Outcome = tuple[pa.Schema, dict[int, Any], dict[int, str]]


class Workers:
    """Workers that decode values, and the columns as they are decided between the rounds."""

    def __init__(self, values: Sequence[bytes], cuts: Sequence[int], tasks: int) -> None:
        self.values, self.cuts, self.tasks = values, sorted({*cuts, len(values)}), tasks
        self.payload, self.schema, self.decided = PayloadFormats(unknown_fields="evolve"), SCHEMA, False
        self.rows: dict[int, Any] = {}
        self.bad: dict[int, str] = {}
        self.rounds = 0

    def run(self) -> Outcome:
        read_in_rounds(RangeSet.of(TOPIC, 0, 0, len(self.values)), self.read, self.decide)
        return self.schema, self.rows, self.bad

    def read(self, ranges: RangeSet) -> list[RoundAnswer]:
        self.rounds += 1
        return [pickle.loads(pickle.dumps(self.work(share))) for share in split(ranges, self.tasks)]

    def work(self, share: RangeSet) -> RoundAnswer:
        decoder = replace(self.payload, decided=self.decided).decoder(self.schema)
        done, left = RangeSet(), UndecidedChunks()
        for r in share:
            edges = [r.from_offset, *(cut for cut in self.cuts if r.from_offset < cut < r.until_offset), r.until_offset]
            for start, end in itertools.pairwise(edges):
                chunk = RangeSet.of(TOPIC, 0, start, end)
                try:
                    found = decoder.decode(batch(self.values[start:end]))
                except Undecided as undecided:
                    left.add(next(iter(chunk)), undecided)
                    continue
                self.note(start, end, found)
                done |= chunk
        counts = Counts(done.width, done.width)
        return RoundAnswer(SharePiece(IDENTITY, done, {0: counts}, {}, {}) if done else None, left)

    def note(self, start: int, end: int, found: Any) -> None:
        bad = {start + row.index: row.reason for row in found.bad}
        good = [n for n in range(start, end) if n not in bad]
        self.bad |= bad
        self.rows |= dict(zip(good, found.rows.to_pylist(), strict=True))

    def decide(self, brought: Sequence[Any]) -> None:
        grown = self.payload.grown(self.schema, brought)
        self.decided = grown.equals(self.schema)
        self.schema = grown


def by_one(values: Sequence[bytes]) -> Outcome:
    decoder = PayloadFormats(unknown_fields="evolve").decoder(SCHEMA)
    found, workers = decoder.decode(batch(values)), Workers(values, (), 1)
    workers.note(0, len(values), found)
    return decoder.schema, workers.rows, workers.bad


def said(value: Any) -> Any:
    """Return a value without the members that are null: a row of fewer columns says the same."""
    if isinstance(value, dict):
        return {name: said(item) for name, item in value.items() if item is not None}
    return [said(item) for item in value] if isinstance(value, list | tuple) else value


def field_of(reason: str) -> str:
    return reason.partition(": ")[0]


@given(st.lists(DOCUMENTS, min_size=1, max_size=12), st.lists(st.integers(1, 11), max_size=6), st.integers(1, 4))
def test_columns_rows_and_rejects_do_not_depend_on_how_records_are_shared_out(
    documents: list[dict[str, Any]], cuts: list[int], tasks: int
) -> None:
    values = [json.dumps(document).encode() for document in documents]
    schema, rows, bad = by_one(values)
    found = Workers(values, cuts, tasks).run()
    assert found[0] == schema
    assert found[2].keys() == bad.keys()
    # A record with two bad fields may name either: which of them had a column first depends on what was read with it.
    assert all(reason == bad[n] for n, reason in found[2].items() if field_of(reason) == field_of(bad[n]))
    assert {n: said(row) for n, row in found[1].items()} == {n: said(row) for n, row in rows.items()}


def test_what_has_a_column_already_is_read_once() -> None:
    known, new = b'{"id":1}', b'{"id":1,"x":1.5}'
    workers = Workers([known] * 6 + [new] * 2 + [known] * 4, range(12), 3)
    reads: list[int] = []
    read = workers.read
    workers.read = lambda ranges: reads.append(ranges.width) or read(ranges)  # type: ignore[method-assign,func-returns-value]  # counted
    schema, rows, bad = workers.run()
    assert reads == [12, 2]
    assert schema.names == [*SCHEMA.names, "x"]
    assert (len(rows), bad) == (12, {})


def test_keys_that_are_data_take_a_bounded_number_of_rounds() -> None:
    many = range(0, MOST_COLUMNS + 50, 10)
    values = [json.dumps({"id": n, **{f"user{key}": 1 for key in range(n, n + 10)}}).encode() for n in many]
    workers = Workers(values, range(0, len(values), 7), 4)
    assert workers.run() == by_one(values)
    assert workers.rounds == 3
