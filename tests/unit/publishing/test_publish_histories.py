"""Random histories of an engine, publications and roll backs: main never has a row that the ledger lacks."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from airflow_lakestream.core.publishing.publish import Rowless
from airflow_lakestream.core.publishing.refusals import PublicationRefused
from tests.support.fault_log import Kind
from tests.support.publishing import TOPIC, World

KINDS = (Kind.DATA, Kind.DATA, Kind.DATA, Kind.MARKER, Kind.ABORTED, Kind.TOMBSTONE, Kind.HOLE)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_main_never_has_a_row_that_the_ledger_lacks(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    world = World(tmp_path)
    filters = chance.random() < 0.3
    rowless = Rowless.FILTERED if filters else Rowless.MISSING
    world.begin()
    checkpoints = [dict(world.at)]
    for _ in range(14):
        match chance.choice(
            ["produce", "produce", "step", "step", "step", "publish", "publish", "restore", "roll back"]
        ):
            case "produce":
                world.produce(chance.randrange(2), *chance.choices(KINDS, k=chance.randrange(1, 9)))
            case "step":
                rows = world.read()
                world.write([row for row in rows if not (filters and row[1] % 3)])
                checkpoints.append(dict(world.at))
            case "publish":
                publish(world, rowless)
            case "restore":
                world.at = dict(chance.choice(checkpoints[-2:]))
            case "roll back":
                snapshots = [one.snapshot_id for one in world.table().history()]
                world.table().manage_snapshots().set_current_snapshot(chance.choice(snapshots)).commit()
        check(world)
    publish(world, rowless)
    check(world)


def publish(world: World, rowless: Rowless) -> None:
    """Publish; where that is refused, do what the error says: a new branch, and the engine without its state."""
    try:
        world.publish(rowless=rowless)
    except PublicationRefused:
        check(world)
        world.table().manage_snapshots().remove_branch("engine").commit()
        world.begin()
        world.positions.said.clear()


def check(world: World) -> None:
    """Assert that each row of main is a record, is there once, and is in the ledger, and that the counts say so."""
    entry, rows = world.entry(), world.rows()
    assert not [row for row, times in Counter(rows).items() if times > 1]
    assert set(rows) <= set(world.expected())
    held = {
        (p, o) for _, p in entry.landed.partitions for a, b in entry.landed.intervals(TOPIC, p) for o in range(a, b)
    }
    assert set(rows) <= held
    assert entry.counts.written == len(rows)
    # What the ledger has without a row was no record with a value, unless the engine leaves some out.
    if not entry.counts.filtered:
        assert held & set(world.expected()) == set(rows)
