"""Rows that no record can have, and files that are gone: named, and set right by a repair."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_lakestream.audit.result import AuditResult, AuditVerdict
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.run import repair as repairs
from airflow_lakestream.run.repair import FilesLost
from tests.integration.test_audit import data_files, found
from tests.integration.test_repair import repair, repaired
from tests.support.broker import Producing
from tests.support.delete_files import delete_positions
from tests.support.delta_lake import EACH_FORMAT
from tests.support.lake import TABLE, Lake, assert_landed_once, events

pytestmark = pytest.mark.integration

CLEAN, DAMAGE = AuditVerdict.CLEAN, AuditVerdict.DAMAGE
GREATEST = 2**63 - 1
POSITION = ("_kafka_topic", "_kafka_partition", "_kafka_offset")
Position = tuple[str | None, int | None, int | None]


def append(lake: Lake, positions: list[Position]) -> None:
    """Append rows at these positions, as another writer would."""
    rows = [{"id": 1, "name": "x", "score": 0.0, **dict(zip(POSITION, one, strict=True))} for one in positions]
    lake.append(pa.Table.from_pylist(rows, schema=lake.columns()))


def table_of_cases(topic: str) -> list[list[Position]]:
    """Return what another writer puts into one file, case by case."""
    partitions: list[int | None] = [0, 1, 7, -1, -(2**31), 2**31 - 1, None]
    offsets: list[int | None] = [-1, -(2**63), GREATEST, GREATEST - 1, 10**15, 5_000, None]
    alone = [[(topic, p, o)] for p, o in itertools.product(partitions, offsets)]
    chance = random.Random(16)
    mixed: list[list[Position]] = [
        [(topic, chance.choice(partitions), chance.choice(offsets)) for _ in range(chance.randint(2, 40))]
        for _ in range(6)
    ]
    return [*alone, *mixed]


def named(result: AuditResult, position: Position) -> bool:
    """Whether a result calls a row at this position unexpected."""
    topic, partition, offset = position
    for one in result.impossible:
        within = one.low is not None and offset is not None and one.low <= offset <= (one.high or 0)
        if one.key == (topic, partition) and (within or offset is None):
            return True
    key = topic or "", partition if partition is not None and partition >= 0 else 0
    if offset is None or partition is None or not 0 <= offset < GREATEST or partition < 0:
        return False
    return bool(found(result, "unexpected") & RangeSet.of(*key, offset, offset + 1))


@EACH_FORMAT
def test_each_row_that_no_record_has_is_unexpected_and_a_repair_takes_it_out(lake: Lake, landed: str) -> None:
    cases = table_of_cases(landed)
    append(lake, cases[0])
    assert lake.audit(full=False).verdict is DAMAGE
    for case in cases[-6:]:
        append(lake, case)
    append(lake, [one for case in cases for one in case])
    assert "unexpected" in lake.audit(full=False).render()

    result = lake.audit(full=True)

    assert result.verdict is DAMAGE
    assert [one for case in cases for one in case if not named(result, one)] == []
    json.dumps(result.to_dict())
    assert "unexpected" in result.render()
    if lake.name != TABLE:
        return
    done = repair(lake)
    assert done.verdict is CLEAN, done.render()
    assert lake.audit(full=False).verdict is CLEAN
    assert_landed_once(lake, landed, {0: 30, 1: 10})
    assert any("-9223372036854775808" in text for text in repaired(done).removed)


def test_rows_of_no_topic_and_of_another_are_named_and_left(lake: Lake, landed: str) -> None:
    append(lake, [(None, 0, 5), ("another", 0, -1), ("another", 3, 3), (landed, 0, -1)])
    lake.append_foreign(3)

    result = repair(lake)

    assert result.verdict is DAMAGE
    assert {one.key for one in result.impossible} == {(None, 0), ("another", 0)}
    assert len([text for text in repaired(result).left if "has not landed" in text]) == 2
    assert lake.table().scan().to_arrow().num_rows == 40 + 3 + 3


def test_a_repair_spares_what_lands_behind_the_log_that_it_saw(
    lake: Lake, landed: str, produce: Producing, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(lake, [(landed, 0, -1)])
    real = repairs.repair

    def late(*given: Any) -> Any:
        produce(landed, 0, events(0, 30, 5))
        lake.land(landed)
        return real(*given)

    monkeypatch.setattr(repairs, "repair", late)
    assert repair(lake).verdict is CLEAN
    assert_landed_once(lake, landed, {0: 35, 1: 10})


# Files


def paths(lake: Lake) -> list[Path]:
    """Return the live data files, the smallest first."""
    return sorted(map(Path, lake.live_files()), key=lambda path: path.stat().st_size)


def delete(path: Path) -> None:
    path.unlink()


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@EACH_FORMAT
@pytest.mark.parametrize("lose", [delete, cut_short, empty])
def test_a_file_that_is_lost_is_damage_with_its_ranges(lake: Lake, landed: str, lose: Callable[[Path], None]) -> None:
    last = Path(str(max(paths(lake), key=lambda path: path.stat().st_mtime_ns)))
    lose(last)

    for full in (False, True):
        result = lake.audit(full=full)
        assert result.verdict is DAMAGE
        [lost] = result.lost_files
        assert (lost.path.endswith(last.name), lost.rows) == (True, 10)
        assert lost.ranges == RangeSet.of(landed, 0, 20, 30)
        assert f"{landed}[0] [20,30)" in result.render()
        assert sum(count.expected - count.found for count in result.counts if count.topic) == (0 if full else 10)
    assert found(result, "missing") == RangeSet.of(landed, 0, 20, 30)

    if lake.name != TABLE:
        # As docs/delta.md says.
        last.unlink(missing_ok=True)
        lake.table().repair()
        lake.land(landed, mode="ranges", ranges=[[0, 20, 30]], replace=True)
        assert_landed_once(lake, landed, {0: 30, 1: 10})
        for full in (False, True):
            assert lake.audit(full=full).verdict is CLEAN, lake.audit(full=full).render()
        return
    done = repair(lake)
    assert done.verdict is CLEAN, done.render()
    assert repaired(done).landed == RangeSet.of(landed, 0, 20, 30)
    assert lake.audit(full=False).verdict is CLEAN
    assert_landed_once(lake, landed, {0: 30, 1: 10})


def test_of_a_file_whose_bounds_leave_it_open_the_rows_that_are_lacking_are_named(lake: Lake, landed: str) -> None:
    first = paths(lake)[-1]
    first.unlink()

    quick, full = lake.audit(full=False), lake.audit()

    assert quick.verdict is DAMAGE
    [lost] = full.lost_files
    assert lost.path.endswith(first.name)
    assert found(full, "missing").width == lost.rows > 0
    assert repair(lake).verdict is CLEAN
    assert_landed_once(lake, landed, {0: 30, 1: 10})


def test_rows_of_other_writers_in_a_lost_file_are_given_up_only_when_told(lake: Lake, landed: str) -> None:
    lake.append_foreign(3)
    [foreign] = [file for file in data_files(lake.table()) if file.record_count == 3]
    Path(foreign.file_path.removeprefix("file://")).unlink()
    assert lake.audit(full=False).verdict is DAMAGE
    with pytest.raises(FilesLost, match=r'on_data_loss="record"'):
        repair(lake)
    assert repair(lake, on_data_loss="record").verdict is CLEAN
    assert_landed_once(lake, landed, {0: 30, 1: 10})


def test_without_a_delete_file_nothing_is_guessed(lake: Lake, landed: str) -> None:
    path = data_files(lake.table())[0].file_path
    delete_positions(lake.table(), path, [0])
    [deletes] = Path(lake.table().location().removeprefix("file://"), "data").glob("deletes-*")
    deletes.unlink()
    for full in (False, True):
        result = lake.audit(full=full)
        assert result.verdict is DAMAGE
        assert any("delete file" in text for text in result.findings)
        assert result.blind
    before = lake.snapshots()
    assert repaired(repair(lake)).snapshot_id is None
    assert lake.snapshots() == before
