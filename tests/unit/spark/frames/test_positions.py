"""Positions of rows as tasks tell them, whatever task has which."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.spark.frames.tasks import NotOnce, ResultPositions, count, joined, offsets_of
from airflow_lakestream.tables.coordinates import COORDINATES


def rows(partition: int, offsets: list[int | None]) -> pa.RecordBatch:
    topic = pa.array(["t"] * len(offsets), pa.string())
    columns = [topic, pa.array([partition] * len(offsets), pa.int32()), pa.array(offsets, pa.int64())]
    return pa.record_batch(columns, list(COORDINATES))


def of_task(*batches: pa.RecordBatch) -> ResultPositions:
    found = ResultPositions()
    for batch in batches:
        found.add(batch)
    return found


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(0, 3)), max_size=60))
def test_all_tasks_together_have_each_offset_or_one_of_them_is_there_twice(placed: list[tuple[int, int, int]]) -> None:
    wanted = [(partition, offset) for partition, offset, _ in placed]
    try:
        tasks = [of_task(*(rows(p, [o]) for p, o, task in placed if task == number)) for number in range(4)]
        found = joined(task.intervals() for task in tasks)
    except NotOnce:
        assert len(set(wanted)) < len(wanted)
        return
    assert len(set(wanted)) == len(wanted)
    for partition in range(3):
        offsets = sorted(o for p, o in wanted if p == partition)
        assert offsets_of(found.get(("t", partition))).tolist() == offsets
        assert count(found.get(("t", partition))) == len(offsets)


def test_neighbours_are_one_interval() -> None:
    [(starts, ends)] = of_task(rows(0, [*range(500, 1000), *range(500)])).intervals().values()
    assert (starts.tolist(), ends.tolist()) == ([0], [1000])


def test_a_row_without_a_position_is_told() -> None:
    with pytest.raises(NotOnce, match="rows with NULL in _kafka_topic"):
        of_task(rows(0, [1, None]))


def test_the_record_of_several_rows_is_named() -> None:
    with pytest.raises(NotOnce, match=r"several rows for the record t\[1\] offset 5"):
        of_task(rows(1, [4, 5]), rows(1, [5])).intervals()
    with pytest.raises(NotOnce, match=r"several rows for the record t\[1\] offset 5"):
        joined([of_task(rows(1, [4, 5])).intervals(), of_task(rows(1, [5, 6])).intervals()])
