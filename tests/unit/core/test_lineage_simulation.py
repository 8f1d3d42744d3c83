"""Random histories of a table: the ledger that is read is always the true one, or it is refused.

Each defect that the protocol exists to prevent is put in on purpose, to see that the simulation would catch it.
`LAKESTREAM_HISTORIES=20000 pytest tests/unit/core/test_lineage_simulation.py` runs it long; a failure names its seed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable

import pytest

from airflow_lakestream.core import lineage
from airflow_lakestream.core.codec import decode_property, property_key
from airflow_lakestream.core.ledger import Ledger
from airflow_lakestream.core.lineage import LedgerReading, TableFacts
from tests.support.table_model import GROUPS, IDENTITIES, Reader, TableModel

pytestmark = pytest.mark.long

HISTORIES = int(os.environ.get("LAKESTREAM_HISTORIES", "60"))
STEPS = 50


def wrong_histories(*, keep: int = 100, keep_snapshots: int | None = None) -> tuple[list[int], float]:
    """Run seeded histories; return the seeds with a wrong reading or a doubled offset, and the share refused."""
    wrong, refused, readings = [], 0, 0
    for seed in range(HISTORIES):
        table = TableModel(random.Random(seed), keep=keep, keep_snapshots=keep_snapshots)
        if goes_wrong(table):
            wrong.append(seed)
        refused, readings = refused + table.refused, readings + table.readings
    return wrong, refused / readings


def goes_wrong(table: TableModel) -> bool:
    """Go through a history until a reading is wrong, or an offset doubled."""
    for _ in range(STEPS):
        table.step()
        if any(is_wrong(table, group) for group in GROUPS):
            return True
    return False


def is_wrong(table: TableModel, group: str) -> bool:
    if table.doubled(group):
        return True
    reading = table.read(group)
    if reading is None:
        return False
    entry = reading.ledger.entry(IDENTITIES[group])
    return entry.landed != table.true_held(group) or entry.counts.written != table.true_held(group).width


def newest_wins(history: Iterable[TableFacts], group: str) -> LedgerReading:
    facts = next(iter(history))
    text = facts.properties.get(property_key(group))
    if text is None or facts.head_id is None:
        return LedgerReading(None, Ledger(group), ())
    value = decode_property(text, group)
    return LedgerReading(value.base_id, value.base, value.journal)


def head_looks_like_root(history: Iterable[TableFacts], group: str) -> LedgerReading:
    class Credulous(lineage._SnapshotChain):
        def learn(self, facts: TableFacts) -> None:
            super().learn(facts)
            self._roots |= {s.snapshot_id for s in facts.snapshots.values() if s.parent_id is None}

    original, lineage._SnapshotChain = lineage._SnapshotChain, Credulous
    try:
        return lineage.read(history, group)
    finally:
        lineage._SnapshotChain = original


def property_only_when_head_is_unknown(history: Iterable[TableFacts], group: str) -> LedgerReading:
    """The naive rule: the newest ancestor that can be seen to carry the group, else the property."""
    try:
        return lineage.read([next(iter(history))], group)
    except lineage.UndecidedLedger:
        return newest_wins(history, group)


def test_no_reading_is_wrong_and_none_is_refused_with_100_metadata_versions() -> None:
    wrong, refused = wrong_histories()
    assert wrong == []
    assert refused == 0


def test_with_8_metadata_versions_some_are_refused_and_none_is_wrong() -> None:
    wrong, refused = wrong_histories(keep=8)
    assert wrong == []
    assert 0 < refused < 0.25


@pytest.mark.parametrize("keep_snapshots", [1, 4])
def test_landings_that_let_snapshots_expire_make_no_reading_wrong(keep_snapshots: int) -> None:
    wrong, refused = wrong_histories(keep_snapshots=keep_snapshots)
    assert wrong == []
    assert refused == 0
    wrong, _ = wrong_histories(keep_snapshots=keep_snapshots, keep=8)
    assert wrong == []


@pytest.mark.parametrize("mutant", [newest_wins, head_looks_like_root, property_only_when_head_is_unknown])
def test_the_simulation_catches_a_wrong_way_of_reading(mutant: Reader) -> None:
    assert any(goes_wrong(TableModel(random.Random(seed), reader=mutant)) for seed in range(min(HISTORIES, 100)))


def test_the_simulation_catches_a_blind_retry() -> None:
    assert any(goes_wrong(TableModel(random.Random(seed), guarded=False)) for seed in range(min(HISTORIES, 100)))
