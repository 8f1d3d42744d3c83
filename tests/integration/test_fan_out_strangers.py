"""What a record's values may not reach: tables of other streams, and whatever else is no target of its own fan-out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ForbiddenError, NoSuchIcebergTableError, ServerError
from pyiceberg.table import CommitTableResponse, Table
from pyspark.sql import SparkSession

from airflow_lakestream.core.landing.plan import LandedByAnotherGroup
from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.core.routing import MAX_NAME, MIRROR
from airflow_lakestream.exceptions import BadRecord
from airflow_lakestream.iceberg.fan_out import admission as fan_out_admission
from airflow_lakestream.iceberg.fan_out.books import MEMBER, LandedByFanOut
from airflow_lakestream.run.job import ExtractConfig
from airflow_lakestream.run.topics import RunReport, land_run
from tests.support.broker import Producing, Topics
from tests.support.faults import WrappedCatalog
from tests.support.lake import GROUP, QUICK_RETRIES, Lake
from tests.support.spark import SparkRun

pytestmark = pytest.mark.integration

SCHEMA = "n bigint, kind string"
OTHER = "another-dag"
HOME = "lake.home"
REJECTS = "lake.home__rejected"


def records(*kinds: Any) -> list[str]:
    return [json.dumps({"n": n, "kind": kind}) for n, kind in enumerate(kinds)]


class Streams:
    """A fan-out into `lake.{kind}` and whatever else lands in the same lake."""

    def __init__(self, lake: Lake, topic: Topics, produce: Producing) -> None:
        self.lake, self.topic, self.produce = lake, topic, produce

    def fan_out(self, name: str, run_id: str = "r", catalog: Catalog | None = None, **config: Any) -> RunReport:
        """Land records where they say."""
        given = {"table": "lake.{kind}", "home_table": HOME, "new_tables": "create", "schema": SCHEMA, **config}
        return self.land(name, run_id, catalog, **given)

    def land(self, name: str, run_id: str = "r", catalog: Catalog | None = None, **config: Any) -> RunReport:
        """Land a topic in one table."""
        given = {"consumer_group": GROUP, "table_properties": QUICK_RETRIES, **config}
        lake = catalog or self.lake.catalog()
        return land_run(ExtractConfig(topic=name, **given), self.lake.kafka, lake, run_id=run_id)

    def of(self, *kinds: Any) -> str:
        """Return a topic with these records."""
        name = self.topic(1)
        self.produce(name, 0, records(*kinds))
        return name

    def plain(self, table: str = "lake.plain", group: str = OTHER, **config: Any) -> str:
        """Let another stream fill a table; return its topic."""
        name = self.of("x", "y")
        self.land(name, table=table, consumer_group=group, schema=SCHEMA, **config)
        return name

    def rejected(self, table: str = REJECTS) -> dict[int, str]:
        """Return why records were rejected, by offset; all of them have to be of the stage "route", and whole."""
        found = self.lake.table(table).scan().to_arrow().to_pylist()
        assert {row["stage"] for row in found} <= {"route"}
        assert all(json.loads(row["value"])["n"] == row["_kafka_offset"] for row in found)
        return {row["_kafka_offset"]: row["error"] for row in found}

    def heads(self, *but: str) -> Mapping[str, str]:
        """Return where each table's metadata lies: any change at all makes it another file."""
        catalog = self.lake.catalog()
        names = [".".join(name) for name in catalog.list_tables("lake")]
        return {name: catalog.load_table(name).metadata_location for name in names if name not in but}

    def rows(self, table: str) -> list[int]:
        """Return the numbers in a table."""
        found: list[int] = self.lake.table(table).scan().to_arrow().sort_by("n")["n"].to_pylist()
        return found


@pytest.fixture
def streams(lake: Lake, topic: Topics, produce: Producing) -> Streams:
    """Give the streams of a lake."""
    return Streams(lake, topic, produce)


# The table of another stream


@pytest.mark.parametrize("group", [OTHER, GROUP], ids=["another group", "the same group"])
def test_the_table_of_another_stream_is_out_of_reach(streams: Streams, group: str) -> None:
    plain = streams.plain(group=group)
    before = streams.heads()
    name = streams.of("a", "plain", "b", "Plain", "a")
    report = streams.fan_out(name)
    assert report.tables == {"lake.a": 2, "lake.b": 1}
    assert report.counts == Counts(read=5, written=3, rejected=2)
    assert streams.heads("lake.a", "lake.b", HOME, REJECTS) == before
    why = streams.rejected()
    assert list(why) == [1, 3]
    assert "lake.plain" in why[1]
    assert group in why[1]
    # The other stream goes on.
    streams.produce(plain, 0, records("x"))
    assert streams.land(plain, "next", table="lake.plain", consumer_group=group).tables == {"lake.plain": 1}
    # And so does this one.
    streams.produce(name, 0, records("a", "b"))
    assert streams.fan_out(name, "next").tables == {"lake.a": 1, "lake.b": 1}


def test_the_option_says_whether_the_record_or_the_run_is_refused(streams: Streams) -> None:
    streams.plain()
    before = streams.heads()
    name = streams.of("a", "a", "plain")
    with pytest.raises(BadRecord, match=r"'plain'.*lake\.plain.*another-dag") as refused:
        streams.fan_out(name, on_error="fail")
    assert (refused.value.topic, refused.value.partition, refused.value.offset) == (name, 0, 2)
    assert streams.heads() == before
    assert streams.fan_out(name, "next", on_error="skip").counts == Counts(read=3, written=2, skipped=1)
    assert streams.heads("lake.a", HOME) == before


@pytest.mark.parametrize(
    ("kind", "speaks_of"),
    [
        ("home", "home table"),
        ("Home", "home table"),
        ("home__rejected", "__rejected"),
        ("plain__rejected", "__rejected"),
        ("plain__deleted", "__deleted"),
        ("orders__g__home", "__home"),
        ("x__Rejected", "__rejected"),
    ],
)
def test_no_value_takes_the_name_of_what_stands_beside_a_table(streams: Streams, kind: str, speaks_of: str) -> None:
    streams.plain()
    name = streams.of("a", kind, "a")
    assert streams.fan_out(name).tables == {"lake.a": 2}
    assert set(streams.heads()) == {"lake.plain", "lake.a", HOME, REJECTS}
    assert speaks_of in streams.rejected()[1]


def test_the_reject_table_of_another_table_is_out_of_reach(streams: Streams) -> None:
    other = streams.topic(1)
    streams.produce(other, 0, ["broken", *records("x")])
    streams.land(other, table="lake.plain", schema=SCHEMA)
    before = streams.heads()
    name = streams.of("a", "plain__rejected", "a")
    streams.fan_out(name)
    assert streams.heads("lake.a", HOME, REJECTS) == before
    assert list(streams.rejected()) == [1]


# Other tables that are there


def _make(streams: Streams, kind: str) -> None:
    catalog = streams.lake.catalog()
    columns = pa.schema([("n", pa.int64()), ("kind", pa.string())])
    if kind == "a fan-out of another group":
        streams.fan_out(streams.of("taken"), home_table="lake.other", consumer_group=OTHER)
        return
    if kind == "the home of another fan-out":
        streams.fan_out(streams.of("z"), home_table="lake.taken", consumer_group=OTHER)
        return
    if kind == "of format version 1":
        streams.plain("lake.made")
        fitting = streams.lake.table("lake.made").schema()
        catalog.create_table("lake.taken", fitting, properties={"format-version": "1"})
        return
    catalog.create_namespace_if_not_exists("lake")
    properties = {MIRROR: "{}"} if kind == "a mirror" else {}
    if kind == "other columns":
        columns = pa.schema([("n", pa.int64()), ("kind", pa.float64())])
    table = catalog.create_table("lake.taken", columns, properties=properties)
    if kind == "rows of another tool":
        table.append(pa.table({"n": [1], "kind": ["x"]}, columns))


@pytest.mark.parametrize(
    ("kind", "speaks_of"),
    [
        ("rows of another tool", "has rows"),
        ("a mirror", "mirror"),
        ("of format version 1", "version 1"),
        ("other columns", "kind"),
        ("no metadata columns", "_kafka_"),
        ("a fan-out of another group", OTHER),
        ("the home of another fan-out", "home of a fan-out"),
    ],
)
def test_a_table_that_is_no_target_of_this_fan_out_is_out_of_reach(streams: Streams, kind: str, speaks_of: str) -> None:
    _make(streams, kind)
    before = streams.heads()
    name = streams.of("a", "taken", "a")
    assert streams.fan_out(name).tables == {"lake.a": 2}
    assert streams.heads("lake.a", HOME, REJECTS) == before
    assert speaks_of in streams.rejected()[1]


class Refuses(WrappedCatalog):
    """Answers with an error when it is asked for one table."""

    def __init__(self, catalog: Catalog, table: str, error: Exception) -> None:
        super().__init__(catalog)
        self._table, self._error = table, error

    def load_table(self, identifier: Any) -> Table:
        if identifier == self._table:
            raise self._error
        return self.real.load_table(identifier)


@pytest.mark.parametrize(
    "error",
    [NoSuchIcebergTableError("a Hive table"), ForbiddenError("not yours"), FileNotFoundError("metadata.json")],
    ids=lambda error: type(error).__name__,
)
def test_a_table_that_the_catalog_does_not_give_out_is_out_of_reach(streams: Streams, error: Exception) -> None:
    name = streams.of("a", "taken", "a")
    report = streams.fan_out(name, catalog=Refuses(streams.lake.catalog(), "lake.taken", error))  # type: ignore[arg-type]
    assert report.tables == {"lake.a": 2}
    assert "lake.taken" in streams.rejected()[1]


def test_a_catalog_that_fails_is_no_record_s_fault(streams: Streams) -> None:
    name = streams.of("a", "b", "a")
    failing = Refuses(streams.lake.catalog(), "lake.b", ServerError("try later"))
    with pytest.raises(ServerError):
        streams.fan_out(name, catalog=failing)  # type: ignore[arg-type]
    assert streams.lake.has_nothing()
    assert streams.fan_out(name).tables == {"lake.a": 2, "lake.b": 1}


def test_the_name_of_a_view_is_out_of_reach(streams: Streams) -> None:
    class HasView(WrappedCatalog):
        def view_exists(self, identifier: Any) -> bool:
            return bool(identifier == "lake.taken")

    name = streams.of("a", "taken", "a")
    report = streams.fan_out(name, catalog=HasView(streams.lake.catalog()))  # type: ignore[arg-type]
    assert report.tables == {"lake.a": 2}
    assert "view" in streams.rejected()[1]


# What is admitted


@pytest.mark.parametrize("new_tables", ["create", "fail"])
def test_a_table_made_by_hand_for_the_fan_out_is_taken(streams: Streams, new_tables: str) -> None:
    streams.plain("lake.made")
    empty = streams.lake.table("lake.made").schema()
    catalog = streams.lake.catalog()
    catalog.create_table("lake.a", empty)
    # A table that had rows once is empty, too.
    catalog.create_table("lake.b", empty).append(streams.lake.table("lake.made").scan().to_arrow())
    streams.lake.table("lake.b").delete("n >= 0")
    report = streams.fan_out(streams.of("a", "b", "a"), new_tables=new_tables)
    assert report.tables == {"lake.a": 2, "lake.b": 1}


def test_fan_outs_of_one_group_share_their_tables(streams: Streams) -> None:
    first, second = streams.of("a", "b"), streams.of("a", "b")
    streams.fan_out(first, home_table="lake.home_1")
    assert streams.fan_out(second, home_table="lake.home_2").tables == {"lake.a": 1, "lake.b": 1}
    streams.produce(first, 0, records("a"))
    assert streams.fan_out(first, "next", home_table="lake.home_1").tables == {"lake.a": 1}
    assert streams.rows("lake.a") == [0, 0, 0]


def test_the_owner_of_a_table_may_let_a_fan_out_in(streams: Streams) -> None:
    plain = streams.plain()
    with streams.lake.table("lake.plain").transaction() as changes:
        changes.set_properties({MEMBER + HOME: "let in"})
    name = streams.of("a", "plain", "plain")
    assert streams.fan_out(name).tables == {"lake.a": 1, "lake.plain": 2}
    # The other stream goes on beside it.
    streams.produce(plain, 0, records("x"))
    assert streams.land(plain, "next", table="lake.plain", consumer_group=OTHER).tables == {"lake.plain": 1}
    assert len(streams.rows("lake.plain")) == 5


def test_a_target_that_another_stream_landed_in_stays_a_target(streams: Streams) -> None:
    name = streams.of("a", "b")
    streams.fan_out(name)
    streams.plain("lake.a")
    streams.produce(name, 0, records("a", "b"))
    assert streams.fan_out(name, "next").tables == {"lake.a": 1, "lake.b": 1}


def test_an_own_target_that_was_made_anew_by_another_stream_is_out_of_reach(streams: Streams) -> None:
    name = streams.of("a", "b")
    streams.fan_out(name)
    streams.lake.catalog().drop_table("lake.a")
    streams.plain("lake.a")
    before = streams.heads("lake.b", HOME, REJECTS)
    streams.produce(name, 0, records(*"ab"))
    # Also for a configuration that takes the tables over.
    report = streams.fan_out(name, "next", table="lake.{field:kind}")
    assert report.tables == {"lake.b": 1}
    assert streams.heads("lake.b", HOME, REJECTS) == before


# How many, and of what name


def test_a_value_without_a_table_is_rejected_and_lands_once_there_is_one(streams: Streams) -> None:
    name = streams.of("a", "a")
    streams.fan_out(name)
    streams.produce(name, 0, ['{"n": 2, "kind": "b"}', '{"n": 3, "kind": "a"}'])
    assert streams.fan_out(name, "next", new_tables="fail").counts == Counts(read=2, written=1, rejected=1)
    assert 'new_tables="create"' in streams.rejected()[2]
    streams.produce(name, 0, records("b"))
    assert streams.fan_out(name, "last").tables == {"lake.b": 1}


def test_one_table_too_many_rejects_the_records_that_need_it(streams: Streams) -> None:
    name = streams.of("a", "b", "c", "a", "d")
    assert streams.fan_out(name, max_tables=2).tables == {"lake.a": 2, "lake.b": 1}
    assert list(streams.rejected()) == [2, 4]
    assert "max_tables=2" in streams.rejected()[4]


def test_a_value_whose_name_is_taken_by_another_value_is_rejected(streams: Streams) -> None:
    name = streams.of("page-view", "page_view", "page-view")
    assert streams.fan_out(name).tables == {"lake.page_view": 2}
    assert list(streams.rejected()) == [1]


def test_many_values_without_a_table_ask_the_catalog_a_bounded_number_of_times(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Counting(WrappedCatalog):
        asked = 0

        def load_table(self, identifier: Any) -> Table:
            self.asked += 1
            return self.real.load_table(identifier)

    monkeypatch.setattr(fan_out_admission, "REMEMBERED", 50)
    name = streams.of("a")
    streams.fan_out(name)
    streams.produce(name, 0, [json.dumps({"n": n + 1, "kind": "a" if n % 2 else f"v{n}"}) for n in range(4000)])
    catalog = Counting(streams.lake.catalog())
    report = streams.fan_out(name, "next", catalog, new_tables="fail")  # type: ignore[arg-type]
    assert report.counts == Counts(read=4000, written=2000, rejected=2000)
    assert catalog.asked < 2 * fan_out_admission.LOOKS


# Races


class ActsBefore(WrappedCatalog):
    """Does something before the commit to a table, once, as another run would."""

    def __init__(self, catalog: Catalog, table: str, action: Callable[[], object]) -> None:
        super().__init__(catalog)
        self._table, self._action, self._done = table, action, False

    def commit_table(self, table: Table, *request: Any) -> CommitTableResponse:
        if ".".join(table.name()) == self._table and not self._done:
            self._done = True
            self._action()
        return self.real.commit_table(table, *request)


@pytest.mark.parametrize("before", ["lake.plain", HOME])
@pytest.mark.parametrize("is_there", [False, True], ids=["missing", "empty"])
def test_another_stream_that_comes_first_has_the_table(streams: Streams, before: str, is_there: bool) -> None:
    if is_there:
        streams.plain("lake.made")
        streams.lake.catalog().create_table("lake.plain", streams.lake.table("lake.made").schema())
    name = streams.of("a", "plain", "a")
    racing = ActsBefore(streams.lake.catalog(), before, streams.plain)
    report = streams.fan_out(name, catalog=racing)  # type: ignore[arg-type]
    assert report.tables == {"lake.a": 2}
    assert list(streams.rejected()) == [1]
    assert streams.rows("lake.plain") == [0, 1]


# The other stream


def test_a_stream_whose_table_a_fan_out_of_the_same_topic_reached_is_told_the_truth(streams: Streams) -> None:
    name = streams.of("a", "plain")
    streams.land(name, table="lake.plain", consumer_group=OTHER, schema=SCHEMA)
    with streams.lake.table("lake.plain").transaction() as changes:
        changes.set_properties({MEMBER + HOME: "let in"})
    streams.produce(name, 0, records("plain", "a"))
    streams.fan_out(name, mode="ranges", ranges=[[0, 2, 4]])
    with pytest.raises(LandedByAnotherGroup, match=r"one table of a fan-out.*lake\.home"):
        streams.land(name, "next", table="lake.plain", consumer_group=OTHER)


@pytest.mark.parametrize("group", [GROUP, OTHER])
def test_no_plain_stream_lands_in_a_home(streams: Streams, group: str) -> None:
    name = streams.of("a")
    streams.fan_out(name)
    with pytest.raises(LandedByFanOut, match="without rows"):
        streams.land(name, "next", table=HOME, consumer_group=group)


# Spark


def test_spark_keeps_to_its_own_tables_too(streams: Streams, spark: SparkSession) -> None:
    streams.plain()
    _make(streams, "rows of another tool")
    before = streams.heads()
    name = streams.of("a", "plain", "a", "taken", "b", "home", "x__rejected", "a", "a")
    landing = {"table": "lake.{kind}", "home_table": HOME, "new_tables": "create", "schema": SCHEMA}
    SparkRun(streams.lake, name, landing).run(spark)
    assert streams.heads("lake.a", "lake.b", HOME, REJECTS) == before
    assert (streams.rows("lake.a"), streams.rows("lake.b")) == ([0, 2, 7, 8], [4])
    assert list(streams.rejected()) == [1, 3, 5, 6]


# Templates


def test_names_are_as_long_as_file_systems_take_them(streams: Streams) -> None:
    name = streams.of("a", "x" * (MAX_NAME - len("lake.")), "y" * 250)
    assert len(streams.fan_out(name).tables) == 2
    assert list(streams.rejected()) == [2]
