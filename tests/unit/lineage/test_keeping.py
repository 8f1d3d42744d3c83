"""The facts of a run in the worker, where the catalog answers and where it does not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

from airflow_lakestream.core.landing.job import CommittedLanding
from airflow_lakestream.core.ledger import Counts, Landing, TopicEntry, TopicIdentity
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.lineage.facts import LineageFacts
from airflow_lakestream.lineage.looking import FactsKeeper

TABLE = "lake.t"
OFFLINE = SimpleNamespace()


def landing(number: int, *, topic: str = "t", replaced: bool = False) -> Landing:
    ranges = RangeSet([OffsetRange(topic, 0, 10 * number, 10 * number + 10)])
    counts = Counts(read=10, written=9, rejected=1)
    entry = TopicEntry(replaced=ranges, counts=counts) if replaced else TopicEntry(landed=ranges, counts=counts)
    return Landing(f"l{number}", "run", {TopicIdentity(topic, "id", "cluster"): entry})


def keeper(lake: Any = OFFLINE) -> FactsKeeper:
    return FactsKeeper(LineageFacts("b:9092", "g"), lake)


def test_commits_add_up_even_if_the_catalog_does_not_answer() -> None:
    kept = keeper()
    for number in range(2):
        kept(CommittedLanding(TABLE, 100 + number, landing(number), 0.1))
    written, read = kept.facts.tables[TABLE], kept.facts.topics["t"]
    assert (written.rows, written.size, written.snapshots, written.place) == (18, None, ["100", "101"], None)
    assert read.counts == Counts(read=20, written=18, rejected=2)
    assert [(one.from_offset, one.until_offset) for one in read.ranges] == [(0, 20)]
    assert kept.facts.landings == ["l0", "l1"]


def test_offsets_that_were_landed_again_are_told() -> None:
    kept = keeper()
    kept(CommittedLanding(TABLE, 100, landing(3, replaced=True), 0.1))
    assert [(one.from_offset, one.until_offset) for one in kept.facts.topics["t"].ranges] == [(30, 40)]


def test_what_earlier_tries_have_committed_is_named_and_not_counted() -> None:
    kept = keeper()
    kept(CommittedLanding(TABLE, 102, landing(2), 0.1))
    kept.ended(["t"], {TABLE: 27}, ["100", "101", "102"])
    assert kept.facts.recovered == ["100", "101"]
    assert kept.facts.tables[TABLE].rows == 9


def test_a_run_without_anything_new_knows_its_topic_and_where_its_table_lies(tmp_path: Path) -> None:
    catalog = SqlCatalog("mine", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("lake")
    table = catalog.create_table(TABLE, pa.schema([("id", pa.int64())]))
    kept = keeper(catalog)
    kept.ended(["t"], {TABLE: 0}, [])
    written = kept.facts.tables[TABLE]
    assert written.place is not None
    assert (written.place.location, written.rows, written.snapshots) == (table.location(), 0, [])
    assert list(kept.facts.topics) == ["t"]
