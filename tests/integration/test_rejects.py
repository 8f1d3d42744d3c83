"""Records that fit no row: kept beside the table, each once, whatever happens between the two commits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import CommitTableResponse

from airflow_lakestream.core.bad_records import TooManyRejected
from airflow_lakestream.core.ledger import Counts, Landing
from airflow_lakestream.core.lineage import JOURNAL_LENGTH
from airflow_lakestream.core.names import REJECTED
from airflow_lakestream.delta import committing as delta_commits
from airflow_lakestream.exceptions import BadRecord, InvalidArgument
from airflow_lakestream.iceberg.commit.committing import CommitOutcomeUnknown
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.rejects.settlement import rejects_of
from tests.support.broker import Producing, TopicOf, Topics
from tests.support.delta_lake import EACH_FORMAT
from tests.support.faults import ReadTimeout, WrappedCatalog, unapplied
from tests.support.lake import GROUP, TABLE, Lake
from tests.support.lake_reading import at, numbers

pytestmark = pytest.mark.integration

SCHEMA = "n bigint not null"
REJECTS = rejects_of(TABLE)
BAD = ['{"n": "x"}', '{"n": 1.5}', "not json"]


def mixed(good: int) -> list[str]:
    """Return good values with a bad one before each third of them."""
    values = numbers(good)
    return [value for pair in zip(values, BAD * good, strict=False) for value in pair][: 2 * good]


def positions(rows: Iterable[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Return partition and offset of each row, sorted."""
    return sorted((row["_kafka_partition"], row["_kafka_offset"]) for row in rows)


def rejected(lake: Lake) -> list[tuple[int, int]]:
    """Return partition and offset of each row of the reject table; nothing without the table."""
    return positions(lake.scan(REJECTED).to_pylist())


def counting(lake: Lake) -> list[tuple[int, int]]:
    """Return partition and offset of the rejected records that count."""
    return positions(lake.counting())


@EACH_FORMAT
def test_a_bad_record_is_kept_whole_with_its_reason(lake: Lake, topic_of: TopicOf) -> None:
    name = topic_of([numbers(1)[0], '{"n": 1.5}', numbers(1)[0]], keys=[b"a", b"b", None], headers=[("h", b"1")])

    report = lake.land(name, run_id="this-run", schema=SCHEMA)

    assert lake.offsets() == at(0, [0, 2])
    (row,) = lake.scan(REJECTED).to_pylist()
    assert (row["value"], row["_kafka_key"]) == (b'{"n": 1.5}', b"b")
    assert row["_kafka_headers"] == [{"key": "h", "value": b"1"}]
    assert (row["_kafka_topic"], row["_kafka_partition"], row["_kafka_offset"]) == (name, 0, 1)
    assert row["_kafka_timestamp"] is not None
    assert row["rejected_at"] is not None
    assert (row["stage"], row["run_id"], row["consumer_group"]) == ("decode", "this-run", GROUP)
    assert "n: 1.5" in row["error"]
    assert report.counts == Counts(read=3, written=2, rejected=1)
    assert report.to_dict()["partitions"] == {"0": {"read": 3, "rows": 2, "rejected": 1, "skipped": 0, "filtered": 0}}
    assert counting(lake) == at(0, [1])
    assert lake.entry(name).counts == report.counts


@EACH_FORMAT
def test_counts_add_up_in_each_partition_and_another_try_reports_them(lake: Lake, topic_of: TopicOf) -> None:
    name = topic_of(mixed(6), [*numbers(5), None])

    first = lake.land(name, run_id="r", schema=SCHEMA, tombstones="skip", max_batch_bytes=1)
    again = lake.land(name, run_id="r", schema=SCHEMA, tombstones="skip")

    assert first.counts == Counts(read=18, written=11, rejected=6, skipped=1)
    assert again.to_dict() == first.to_dict()
    partitions = first.to_dict()["partitions"]
    assert partitions["0"] == {"read": 12, "rows": 6, "rejected": 6, "skipped": 0, "filtered": 0}
    assert partitions["1"] == {"read": 6, "rows": 5, "rejected": 0, "skipped": 1, "filtered": 0}
    assert rejected(lake) == counting(lake) == at(0, range(1, 12, 2))
    # Nothing is left to be decided once a later landing has looked.
    assert len(lake.pending()) <= 1


@pytest.mark.parametrize(
    ("tombstones", "rows", "kept", "counts"),
    [
        ("keep", [0, 1], [], Counts(2, 2)),
        ("skip", [0], [], Counts(2, 1, 0, 1)),
        ("reject", [0], [1], Counts(2, 1, 1)),
    ],
)
def test_tombstones(
    lake: Lake, topic_of: TopicOf, tombstones: str, rows: list[int], kept: list[int], counts: Counts
) -> None:
    name = topic_of([*numbers(1), None], keys=[b"k", b"gone"])
    metadata = ["topic", "partition", "offset", "key"]
    report = lake.land(name, schema="n bigint", tombstones=tombstones, metadata_columns=metadata)
    assert (lake.offsets(), rejected(lake), report.counts) == (at(0, rows), at(0, kept), counts)
    if tombstones == "keep":
        assert [(row["n"], row["_kafka_key"]) for row in lake.records()] == [(0, b"k"), (None, b"gone")]


@EACH_FORMAT
def test_skipping_counts_and_keeps_nothing(lake: Lake, topic_of: TopicOf) -> None:
    name = topic_of(mixed(3))
    report = lake.land(name, schema=SCHEMA, on_error="skip")
    assert report.counts == Counts(read=6, written=3, skipped=3)
    assert not rejected(lake)


@EACH_FORMAT
def test_failing_names_the_first_and_leaves_nothing(lake: Lake, topic_of: TopicOf) -> None:
    name = topic_of(mixed(3))
    with pytest.raises(BadRecord, match=r'offset 1: n: .* on_error="reject"'):
        lake.land(name, schema=SCHEMA, on_error="fail")
    assert lake.has_nothing()


@EACH_FORMAT
@pytest.mark.parametrize(("most", "fails"), [(2, True), (3, False), ("40%", True), (0.5, False), ("50%", False)])
def test_too_many_rejected_ones_fail_the_run(lake: Lake, topic_of: TopicOf, most: Any, fails: bool) -> None:
    name = topic_of(mixed(3))
    if not fails:
        assert lake.land(name, schema=SCHEMA, max_rejected=most).counts.rejected == 3
        return
    with pytest.raises(TooManyRejected, match=r"3 of 6 records .* max_rejected="):
        lake.land(name, schema=SCHEMA, max_rejected=most)
    assert lake.has_nothing()


def test_max_rejected_goes_with_reject_and_skip(lake: Lake) -> None:
    with pytest.raises(InvalidArgument, match="max_rejected: goes with"):
        lake.land("t", on_error="fail", max_rejected=1)
    for wrong in (-1, "many", True, "150%", 1.5):
        with pytest.raises(InvalidArgument, match="max_rejected"):
            lake.land("t", max_rejected=wrong)


NO_ANSWER = unapplied(ReadTimeout("no answer"))


class FailingMain(WrappedCatalog):
    """Fails the commits of the main table, after the rejected records are written."""

    def __init__(self, real: Any, *, applies: bool = False) -> None:
        super().__init__(real)
        self._applies = applies
        self.failed = 0

    def commit_table(self, table: Any, *request: Any) -> CommitTableResponse:
        if table.name()[-1] != TABLE.split(".")[-1]:
            return self.real.commit_table(table, *request)
        self.failed += 1
        if self._applies:
            self.real.commit_table(table, *request)
        raise ReadTimeout("no answer")

    def load_table(self, identifier: Any) -> Any:
        # Down for the main table from the failure on, so that what became of it stays unknown.
        if self.failed and identifier in (TABLE, tuple(TABLE.split("."))):
            raise ReadTimeout("no answer")
        return self.real.load_table(identifier)


@pytest.mark.parametrize(
    ("lake", "applies"), [("iceberg", False), ("iceberg", True), ("delta", False)], indirect=["lake"]
)
def test_a_run_that_ends_between_the_two_commits_counts_as_the_table_says(
    lake: Lake, topic_of: TopicOf, produce: Producing, applies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_commits, "RETRY_PAUSE", 0)
    name = topic_of(numbers(2))
    lake.land(name, schema=SCHEMA)
    produce(name, 0, mixed(3))
    failing = FailingMain(lake.catalog(), applies=applies) if lake.name == TABLE else lake.failing(*[NO_ANSWER] * 50)
    with pytest.raises((CommitOutcomeUnknown, delta_commits.DeltaCommitUnknown)):
        lake.land(name, schema=SCHEMA, catalog=failing)
    assert rejected(lake) == at(0, [3, 5, 7])
    assert counting(lake) == (at(0, [3, 5, 7]) if applies else [])

    lake.land(name, schema=SCHEMA)
    # What did not land is gone as soon as another landing has its offsets.
    assert rejected(lake) == counting(lake) == at(0, [3, 5, 7])
    assert lake.offsets() == at(0, [0, 1, 2, 4, 6])


def test_what_is_decided_is_forgotten_and_stays_decided(lake: Lake, topic: Topics, produce: Producing) -> None:
    name = topic(partitions=1)
    for number in range(4):
        produce(name, 0, mixed(1))
        lake.land(name, schema=SCHEMA, table_properties={"lakestream.snapshots.keep": "2"})
        assert len(lake.pending()) <= 1
        assert rejected(lake) == counting(lake) == at(0, range(1, 2 * number + 2, 2))
    lake.land(name, schema=SCHEMA)
    assert lake.pending() == []


def test_what_landed_is_known_when_snapshots_and_journal_have_forgotten_it(
    lake: Lake, topic_of: TopicOf, produce: Producing
) -> None:
    name = topic_of(mixed(1))
    lake.land(name, schema=SCHEMA, table_properties={"lakestream.snapshots.keep": "2"})
    produce(name, 0, mixed(2))
    with pytest.raises(CommitOutcomeUnknown):
        lake.land(name, schema=SCHEMA, catalog=FailingMain(lake.catalog(), applies=True))
    # Receipts are landings that look at no reject table, and so settle nothing.
    receipts = IcebergSink(lake.catalog(), TABLE, GROUP, TableDesign(metadata=pa.schema([])), allow_group_overlap=True)
    for number in range(JOURNAL_LENGTH + 2):
        receipts.load("receipts")
        receipts.commit(Landing(f"receipt-{number}", "receipts", {}))
    assert len(lake.pending()) == 1
    assert counting(lake) == at(0, [1, 3, 5])
    produce(name, 0, mixed(1))
    lake.land(name)
    assert rejected(lake) == counting(lake) == at(0, [1, 3, 5, 7])


def test_what_another_schema_takes_is_not_left_among_the_rejected(
    lake: Lake, topic_of: TopicOf, produce: Producing
) -> None:
    name = topic_of([*numbers(1), '{"n": 1, "s": 5}'])
    lake.land(name, schema="n bigint, s string")
    produce(name, 0, ['{"n": 1, "x": 5}'])
    with pytest.raises(CommitOutcomeUnknown):
        lake.land(name, unknown_fields="fail", catalog=FailingMain(lake.catalog()))
    assert rejected(lake) == at(0, [2])
    lake.land(name)
    assert lake.offsets() == at(0, [0, 1, 2])
    assert rejected(lake) == []


@EACH_FORMAT
def test_a_rollback_takes_the_rejected_records_back(lake: Lake, topic_of: TopicOf, produce: Producing) -> None:
    name = topic_of(numbers(2))
    lake.land(name, schema=SCHEMA)
    produce(name, 0, mixed(2))
    lake.land(name, schema=SCHEMA)
    lake.roll_back(lake.snapshots()[0])
    assert rejected(lake) == at(0, [3, 5])
    assert counting(lake) == []

    assert lake.land(name, schema=SCHEMA).counts.rejected == 2
    assert rejected(lake) == counting(lake) == at(0, [3, 5])


def test_after_a_rollback_a_decoding_that_takes_them_leaves_none(
    lake: Lake, topic_of: TopicOf, produce: Producing
) -> None:
    name = topic_of(numbers(1))
    lake.land(name, schema=SCHEMA)
    produce(name, 0, ['{"n": 1, "x": 5}'])
    lake.land(name, unknown_fields="fail")
    assert rejected(lake) == at(0, [1])
    lake.roll_back(lake.snapshots()[0])
    lake.land(name)
    assert rejected(lake) == []
    assert lake.offsets() == at(0, [0, 1])


@EACH_FORMAT
def test_a_replace_replaces_the_rejected_records_too(lake: Lake, topic_of: TopicOf) -> None:
    name = topic_of(['{"n": 1}', '{"n": 2, "x": 1}', "broken", '{"n": 4, "x": 2}'])
    lake.land(name, schema=SCHEMA, unknown_fields="fail")
    assert rejected(lake) == at(0, [1, 2, 3])

    report = lake.land(name, mode="ranges", ranges=[[0, 0, 3]], replace=True)

    assert lake.offsets() == at(0, [0, 1])
    assert rejected(lake) == counting(lake) == at(0, [2, 3])
    assert report.counts == Counts(read=3, written=2, rejected=1)
    assert lake.entry(name).counts == Counts(read=4, written=2, rejected=2)
    # To do it again changes nothing.
    lake.land(name, mode="ranges", ranges=[[0, 0, 3]], replace=True)
    assert rejected(lake) == counting(lake) == at(0, [2, 3])
    assert lake.entry(name).counts == Counts(read=4, written=2, rejected=2)


def test_rejected_records_of_a_replace_that_was_rolled_back_do_not_count(lake: Lake, topic_of: TopicOf) -> None:
    name = topic_of(['{"n": 1}', '{"n": 2, "x": 1}'])
    lake.land(name, schema=SCHEMA)
    lake.land(name, mode="ranges", ranges=[[0, 0, 2]], replace=True, unknown_fields="fail")
    assert counting(lake) == at(0, [1])
    before, after = lake.snapshots()
    lake.table().manage_snapshots().set_current_snapshot(before).commit()
    assert counting(lake) == []
    # A run has looked, and the snapshot is gone: still nobody takes them for landed.
    lake.land(name, schema=SCHEMA)
    lake.table().maintenance.expire_snapshots().by_ids([after]).commit()
    lake.land(name, schema=SCHEMA)
    assert counting(lake) == []
    assert lake.offsets() == at(0, [0, 1])


class AfterLook(WrappedCatalog):
    """Does something once, right after the reject table was looked at for the first time."""

    def __init__(self, real: Any, then: Callable[[], None]) -> None:
        super().__init__(real)
        self._then: Callable[[], None] | None = then

    def load_table(self, identifier: Any) -> Any:
        try:
            return self.real.load_table(identifier)
        finally:
            if self._then is not None and identifier in (REJECTS, tuple(REJECTS.split("."))):
                then, self._then = self._then, None
                then()


def test_rejected_records_that_came_and_were_rolled_back_while_a_run_read_do_not_count(
    lake: Lake, topic_of: TopicOf, produce: Producing
) -> None:
    name = topic_of(mixed(1))
    lake.land(name, schema=SCHEMA)
    (before,) = lake.snapshots()
    produce(name, 0, mixed(2))

    def land_and_roll_back() -> None:
        lake.land(name, schema=SCHEMA)
        # The next run finds the landing decided, and takes its note away.
        lake.land(name, schema=SCHEMA)
        assert lake.pending() == []
        lake.table().manage_snapshots().set_current_snapshot(before).commit()

    lake.land(name, schema=SCHEMA, catalog=AfterLook(lake.catalog(), land_and_roll_back))
    _, rolled_back, _ = lake.snapshots()
    lake.table().maintenance.expire_snapshots().by_ids([rolled_back]).commit()
    assert rejected(lake) == counting(lake) == at(0, [1, 3, 5])


def test_two_groups_keep_their_rejected_records_apart(lake: Lake, topic_of: TopicOf) -> None:
    name = topic_of(mixed(2))
    lake.land(name, schema=SCHEMA)
    lake.land(name, consumer_group="other", allow_group_overlap=True)
    assert rejected(lake) == at(0, [1, 1, 3, 3])
    assert counting(lake) == at(0, [1, 3])


def test_a_fan_out_keeps_them_beside_its_home(lake: Lake, topic_of: TopicOf) -> None:
    name = topic_of(['{"n": 1, "kind": "a"}', '{"n": 2}', '{"n": 3, "kind": "b"}', "broken"])
    settings = {"table": "lake.{kind}", "home_table": "lake.home", "new_tables": "create"}
    report = lake.land(name, schema="n bigint, kind string", **settings)
    assert report.counts == Counts(read=4, written=2, rejected=2)
    rows: Sequence[Any] = lake.table(rejects_of("lake.home")).scan().to_arrow().to_pylist()
    found = sorted((row["_kafka_offset"], row["stage"]) for row in rows)
    assert found == [(1, "route"), (3, "decode")]
