"""Executors' part of a fan-out: routes are admitted as by one process, and memory is bounded whatever their number."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog

from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.core.ports import RowsNotWritable
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.routing import ROUTE_COLUMNS, NewTables, TableTemplate
from airflow_lakestream.core.sharing.pieces import SharePiece, split
from airflow_lakestream.core.sharing.rounds import RoundAnswer, Undecided, UndecidedChunks, read_in_rounds
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg.fan_out.admission import FanOut, RouteAdmission, known_tables
from airflow_lakestream.iceberg.fan_out.books import NotItsOwn
from airflow_lakestream.iceberg.fan_out.share import FanOutOutline, FanOutShare
from airflow_lakestream.iceberg.write import handover
from airflow_lakestream.iceberg.write.files import list_files
from tests.support.core_strategies import IDENTITY, TOPIC

ROUTES = st.sampled_from(["a", "A", "b-1", "b 1", "c", "taken", "there", "home", *map(str, range(4))])
NOTHING = pa.schema([])


@dataclass
class Lake:
    """Tables by name, and how an admission asks for them."""

    fan_out: FanOut
    noted_tables: dict[str, str | None]
    tables: set[str]
    refused: dict[str, str] = field(default_factory=dict)

    def admission(self) -> RouteAdmission:
        lock = threading.RLock()
        return RouteAdmission(self.fan_out, lambda: self.noted_tables, self.is_there, lambda: sorted(self.tables), lock)

    def is_there(self, name: str) -> bool:
        if name == "lake.taken":
            raise NotItsOwn(name, "is somebody else's")
        return name in self.tables


def answer(admission: RouteAdmission, routes: Iterable[str]) -> dict[str, str | None]:
    """Return what becomes of each record's route, by the order in which records come."""
    return {route: admission.refusals([route]).get(route) for route in routes}


def by_executors(lake: Lake, routes: Sequence[str], tasks: int, width: int) -> dict[str, str | None]:
    admission, refused, found = lake.admission(), dict[str, str](), dict[str, str | None]()

    def read(ranges: RangeSet) -> list[RoundAnswer]:
        tables = cast(Any, dict.fromkeys(admission.admitted))
        known = known_tables(lake.noted_tables, admission.admitted)
        told = FanOutOutline(lake.fan_out, cast(Any, None), NOTHING, tables, dict(refused), known)
        return [work(told, share) for share in split(ranges, tasks)]

    def work(told: FanOutOutline, share: RangeSet) -> RoundAnswer:
        done, left = RangeSet(), UndecidedChunks()
        for r in share:
            for start in range(r.from_offset, r.until_offset, width):
                chunk = RangeSet.of(TOPIC, 0, start, min(start + width, r.until_offset))
                [whole] = chunk
                # Each route of a chunk once, as the router asks.
                wanted = list(dict.fromkeys(routes[whole.from_offset : whole.until_offset]))
                try:
                    refusals = told.refusals(wanted, NOTHING)
                except Undecided as undecided:
                    left.add(whole, undecided)
                else:
                    found.update({route: refusals.get(route) for route in wanted})
                    done |= chunk
        counts = Counts(done.width, done.width)
        return RoundAnswer(SharePiece(IDENTITY, done, {0: counts}, {}, {}) if done else None, left)

    read_in_rounds(RangeSet.of(TOPIC, 0, 0, len(routes)), read, lambda some: refused.update(admission.refusals(some)))
    return found


@given(
    st.lists(ROUTES, min_size=1, max_size=20),
    st.integers(1, 5),
    st.integers(1, 6),
    st.integers(1, 8),
    st.sampled_from(NewTables),
    st.sets(st.sampled_from(["lake.a", "lake.c", "lake.there", "lake.0", "lake.1"])),
)
def test_each_route_is_admitted_or_refused_as_by_one_process(
    routes: list[str], tasks: int, width: int, most: int, new_tables: NewTables, there: set[str]
) -> None:
    template = TableTemplate.parse("lake.{event}")
    fan_out = FanOut(TOPIC, template, "lake.home", new_tables=new_tables, max_tables=most)
    lake = Lake(fan_out, {"lake.there": "there", "lake.c": None}, {"lake.there", *there})
    assert by_executors(lake, routes, tasks, width) == answer(lake.admission(), routes)


def test_without_any_table_it_is_not_the_records_fault() -> None:
    lake = Lake(FanOut(TOPIC, TableTemplate.parse("lake.{event}"), "lake.home"), {}, set())
    with pytest.raises(InvalidArgument, match="new_tables"):
        by_executors(lake, ["a"], 1, 1)


def test_what_is_peeked_at_is_not_admitted() -> None:
    fan_out = FanOut(TOPIC, TableTemplate.parse("lake.{event}"), "lake.home", max_tables=1)
    admission = Lake(fan_out, {}, {"lake.a"}).admission()
    assert list(admission.peek(["a", "b"])) == ["b"]
    assert admission.admitted == {}


@dataclass
class Share:
    """An executor's sink over a number of tables."""

    sink: FanOutShare
    outlines: dict[str, handover.IcebergOutline]

    def write(self, first: int, count: int) -> None:
        """Write rows, nine of ten of them for the first table, and the others for the rest in turn."""
        numbers = pa.array(range(first, first + count), pa.int64())
        routes = pa.array([route_of(n, len(self.outlines)) for n in range(first, first + count)]).dictionary_encode()
        columns = [numbers, pa.array(["x" * 100] * count), routes, pa.array([0] * count, pa.int32()), numbers]
        self.sink.write(pa.table(columns, ["n", "text", *ROUTE_COLUMNS]), IDENTITY)

    def files(self) -> int:
        return sum(len(list(list_files(one.io, f"{one.metadata.location}/data"))) for one in self.outlines.values())


def route_of(n: int, tables: int) -> str:
    return "0" if n % 10 else str(1 + n // 10 % (tables - 1))


def share(catalog: SqlCatalog, tables: int, most: int) -> Share:
    catalog.create_namespace_if_not_exists("lake")
    schema = pa.schema([("n", pa.int64()), ("text", pa.string())])
    made = {str(n): catalog.create_table(f"lake.t{n}", schema, properties={"lakestream.x": "y"}) for n in range(tables)}
    outlines = {
        route: handover.IcebergOutline(".".join(table.name()), table.metadata, table.io).without_history()
        for route, table in made.items()
    }
    fan_out = FanOut(TOPIC, TableTemplate.parse("lake.{event}"), "lake.home")
    sink = FanOutShare(FanOutOutline(fan_out, cast(Any, None), NOTHING, outlines), "g", most)
    sink.write_below("runs/r1")
    return Share(sink, outlines)


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    return SqlCatalog("c", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")


def test_all_tables_together_hold_no_more_than_one_file(catalog: SqlCatalog) -> None:
    most, chunk = 400_000, 1_000
    worker = share(catalog, 50, most)
    before, peak = pa.total_allocated_bytes(), 0
    for n in range(40):
        worker.write(n * chunk, chunk)
        peak = max(peak, pa.total_allocated_bytes() - before)
    # Rows of 5 MB were written; beside what is held there is the last chunk, and a copy of what stays.
    assert peak < 3 * most
    files = json.loads(json.dumps(worker.sink.hand_over()))["routes"]
    assert set(files) == {str(n) for n in range(50)}
    decoded = {route: handover.decode_files(handed) for route, handed in files.items()}
    for route, some in decoded.items():
        assert all(f"t{route}/data/runs/r1/" in file.file_path for file in some)
        with (
            catalog.load_table(f"lake.t{route}").transaction() as changes,
            changes.update_snapshot().fast_append() as to,
        ):
            for file in some:
                to.append_data_file(file)
        numbers = catalog.load_table(f"lake.t{route}").scan().to_arrow()["n"].to_pylist()
        assert sorted(numbers) == [n for n in range(40 * chunk) if route_of(n, 50) == route]


def test_a_large_table_gives_way_before_small_ones(catalog: SqlCatalog) -> None:
    worker = share(catalog, 30, 100_000)
    routes = itertools.chain.from_iterable(["0"] * 20 + [str(n)] for n in range(1, 30))
    encoded = pa.array(list(routes)).dictionary_encode()
    count = len(encoded)
    numbers = pa.array(range(count), pa.int64())
    columns = [numbers, pa.array(["x" * 200] * count), encoded, pa.array([0] * count, pa.int32()), numbers]
    worker.sink.write(pa.table(columns, ["n", "text", *ROUTE_COLUMNS]), IDENTITY)
    assert worker.files() == 1
    worker.sink.discard()
    assert worker.files() == 0


def test_rows_that_no_file_can_hold_are_told_with_what_finds_them(catalog: SqlCatalog) -> None:
    worker = share(catalog, 1, 1)
    numbers, place = pa.array([1, 2], pa.int64()), pa.array([0, 0], pa.int32())
    texts = pa.array([b"good", b"\xff"]).cast(pa.binary()).view(pa.string())
    columns = [pa.array(["not", "numbers"]), texts, pa.array(["0", "0"]).dictionary_encode(), place, numbers]
    with pytest.raises(RowsNotWritable) as caught:
        worker.sink.write(pa.table(columns, ["n", "text", *ROUTE_COLUMNS]), IDENTITY)
    assert caught.value.trial is not None
    worker.sink.discard()
    assert worker.files() == 0
