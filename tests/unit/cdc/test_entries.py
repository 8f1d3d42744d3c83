"""A memory of deleted rows that is read file by file, and put together in parts, tells what all of it would tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.cdc.keys.identity import KeySearch
from airflow_lakestream.cdc.merge import entries as module
from airflow_lakestream.cdc.merge import memory
from airflow_lakestream.cdc.merge.entries import EntryFile, EntryFiles, condensed
from airflow_lakestream.cdc.merge.memory import MirrorMemory, entry_schema
from airflow_lakestream.cdc.merge.pool import MergeThreads
from tests.support.mirroring import IDENTITY, TABLE, Event, HandDeltaMirror, HandMirror, landing_of, rows_of

KEY = ("tenant", "id")
SCHEMA = entry_schema(pa.schema([("tenant", pa.string()), ("id", pa.int64())]))
KEYS = [(tenant, number) for tenant in "abcd" for number in range(3)]

Row = tuple[tuple[str, int] | None, int, int, int, bool]
ROWS = st.tuples(
    st.one_of(st.none(), st.sampled_from(KEYS)), st.integers(1, 9), st.integers(0, 1), st.integers(0, 30), st.booleans()
)


def table_of(rows: Sequence[Row]) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "tenant": key and key[0],
                "id": key and key[1],
                "_cdc_commit": commit,
                "_cdc_position": 0,
                "_kafka_partition": partition,
                "_kafka_offset": offset,
                "_row": b"row" if kept else None,
            }
            for key, commit, partition, offset, kept in rows
        ],
        SCHEMA,
    )


def file_of(rows: Sequence[Row], *, has_bounds: bool) -> EntryFile:
    """Return a file, with bounds in its metadata if `has_bounds`."""
    tenants = [key[0] for key, *_ in rows if key is not None]
    bounds = (min(tenants), max(tenants)) if has_bounds and tenants else None
    others = any(key is None or kept for key, *_, kept in rows)

    def read(names: Sequence[str]) -> Iterator[pa.Table]:
        # In parts, as files are read.
        whole = table_of(rows).select(list(names) or SCHEMA.names)
        yield from (whole.slice(start, 3) for start in range(0, len(whole), 3))

    return EntryFile(len(rows), bounds, others, read)


def as_one(parts: Iterator[pa.Table]) -> pa.Table:
    return pa.concat_tables([SCHEMA.empty_table(), *parts])


def told_by(known: MirrorMemory, keys: Sequence[tuple[str, int]]) -> Any:
    """Return all that a merge asks of a memory."""
    asked = [
        {
            "tenant": key[0],
            "id": key[1],
            "_cdc_commit": at,
            "_cdc_position": 0,
            "_kafka_partition": 0,
            "_kafka_offset": 9,
        }
        for key in keys
        for at in range(10)
    ]
    rows = pa.Table.from_pylist(asked, schema=pa.schema([one for one in SCHEMA if one.name != "_row"]))
    seen = [known.knows_deletion(rows.slice(at, 1)) for at in range(len(rows))]
    return known.truncated, known.is_dead(rows).tolist(), seen


FILES = st.lists(st.tuples(st.lists(ROWS, max_size=8), st.booleans()), max_size=5)


@given(FILES, st.sets(st.sampled_from(KEYS)))
def test_what_is_read_for_some_keys_tells_of_them_what_all_entries_tell(
    held: list[tuple[list[Row], bool]], keys: set[tuple[str, int]]
) -> None:
    files, wanted = [file_of(rows, has_bounds=has_bounds) for rows, has_bounds in held], sorted(keys)
    columns = [pa.array([key[at] for key in wanted], SCHEMA.field(name).type) for at, name in enumerate(KEY)]
    opened = EntryFiles(files, SCHEMA)
    (parts,) = MergeThreads().do(opened.wanted(KEY, KeySearch(pa.table(columns, names=list(KEY)), KEY)))
    some, all_ = opened.joined(chain.from_iterable(parts)), opened.read()
    assert told_by(MirrorMemory(KEY, some), wanted) == told_by(MirrorMemory(KEY, all_), wanted)
    others = [row for rows, _ in held for row in rows if row[0] is None or row[4]]
    assert len(some) == len(others) + sum(row[0] in keys and not row[4] for rows, _ in held for row in rows)


@given(FILES, st.dictionaries(st.integers(0, 1), st.integers(0, 31)), st.sampled_from([1, 3, 100]))
def test_entries_put_together_in_parts_tell_what_they_told_but_for_what_the_topic_has_lost(
    held: list[tuple[list[Row], bool]], lows: dict[int, int], most: int
) -> None:
    files, before = [file_of(rows, has_bounds=has_bounds) for rows, has_bounds in held], module.PART_ENTRIES
    module.PART_ENTRIES = most
    try:
        parts = list(condensed(files, KEY, lows))
    finally:
        module.PART_ENTRIES = before
    newest: dict[tuple[str, int], tuple[int, ...]] = {}
    for key, commit, partition, offset, _ in (row for rows, _ in held for row in rows):
        if key is not None:
            newest[key] = max(newest.get(key, (0,)), (commit, 0, partition, offset))
    kept = as_one(iter(parts))
    with_key = kept.filter(kept["tenant"].is_valid()).to_pylist()
    assert {(row["tenant"], row["id"]): tuple(row[name] for name in memory.VERSION) for row in with_key} == {
        key: one for key, one in newest.items() if one[3] >= lows.get(one[2], 0)
    }
    assert [(row["tenant"], row["id"]) for row in with_key] == sorted(
        newest.keys() & {(r["tenant"], r["id"]) for r in with_key}
    )
    assert len(kept) - len(with_key) == sum(row[0] is None for rows, _ in held for row in rows)
    assert kept["_row"].null_count == len(kept)


@given(FILES)
def test_for_a_history_of_rows_each_deletion_is_kept_once(held: list[tuple[list[Row], bool]]) -> None:
    files = [file_of(rows, has_bounds=has_bounds) for rows, has_bounds in held]
    kept = as_one(condensed(files, KEY, {}, keeps_all=True))
    names = (*KEY, *memory.VERSION)
    found = [tuple(row[name] for name in names) for row in kept.to_pylist() if row["tenant"] is not None]
    every = (row for rows, _ in held for row in rows)
    assert sorted(found) == sorted({(*row[0], row[1], 0, row[2], row[3]) for row in every if row[0] is not None})


@pytest.mark.parametrize("kind", [HandMirror, HandDeltaMirror])
def test_many_deletions_in_sorted_files_are_remembered_but_for_those_that_the_topic_has_lost(
    kind: type[HandMirror], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_FILES", 3)
    monkeypatch.setattr(module, "PART_ENTRIES", 12)
    mirror, rng = kind(tmp_path), np.random.default_rng(3)
    mirror.land([Event("c", key, ("a", "A"), 100, key, offset=key) for key in range(60)])
    keys = rng.permutation(40).tolist()
    for start in range(0, 40, 5):
        offset = 1000 + start
        events = [Event("d", key, None, 200, key, offset=offset + n) for n, key in enumerate(keys[start : start + 5])]
        land(mirror, events, lows={0: 1010})
    assert len(mirror.rows()) == 20
    # The first ten deletions are out of the topic: older events of their rows can't be told any more, all others can.
    late = [Event("u", key, ("late", "L"), 150, key, partition=1, offset=key) for key in range(40)]
    mirror.land(late)
    assert set(mirror.rows()) == set(range(40, 60)) | set(keys[:10])


def test_entries_of_a_mirror_with_several_topics_are_all_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FILES", 1)
    mirror, other = HandMirror(tmp_path), replace(IDENTITY, topic="shop.public.orders_old")
    mirror.land([Event("c", key, ("a", "A"), 100, key, offset=key) for key in range(4)])
    first = Event("d", 1, None, 200, 1, offset=10)
    sink = mirror.sink()
    sink.load("run")
    sink.write(rows_of([first], mirror.kind), other)
    landing = landing_of([first])
    sink.commit(
        replace(
            landing,
            topics={
                other: replace(
                    landing.topics[IDENTITY], landed=type(landing.topics[IDENTITY].landed).of(other.topic, 0, 10, 11)
                )
            },
            by_partition={},
        )
    )
    for offset in (20, 21):
        land(mirror, [Event("d", offset - 18, None, 200, offset, offset=offset)], lows={0: 21})
    held = mirror.catalog.load_table(f"{TABLE}{memory.SUFFIX}").scan().to_arrow()
    assert sorted(held["id"].to_pylist()) == [1, 2, 3]


def land(mirror: HandMirror, events: Sequence[Event], lows: dict[int, int]) -> None:
    """Land events of a topic that begins at these offsets by now."""
    sink = mirror.sink()
    sink.load("run")
    sink.write(rows_of(events, mirror.kind), IDENTITY)
    sink.commit(replace(landing_of(events), lows=lows))
