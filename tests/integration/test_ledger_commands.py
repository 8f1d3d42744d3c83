"""`lakestream plan` and `lakestream ledger ...` against a real broker and a real catalog."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from airflow_lakestream.cli.app import run
from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.plan import LandedByAnotherGroup
from airflow_lakestream.core.landing.report import LandingReport
from airflow_lakestream.core.landing.unaccounted import RowsUnaccounted
from airflow_lakestream.core.ledger import Ledger
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.source_types import SourceTypeChanged
from airflow_lakestream.iceberg.ledger_store import read_ledger
from airflow_lakestream.iceberg.upkeep.ledger_edit import restate_ledgers
from airflow_lakestream.run.job import build_job
from dev.services.kafka import Kafka
from tests.support.airflow_home import Connections
from tests.support.broker import Producing, TopicOf, Topics
from tests.support.damaged_log import batches
from tests.support.faults import Fault, FaultyCatalog, applied, unapplied
from tests.support.lake import assert_files_are_whole, compact
from tests.support.lake_reading import numbers
from tests.support.typed_events import DATE, INT, typed_change

pytestmark = pytest.mark.integration

TABLE, GROUP = "lake.t", "g"
ON = ("--table", TABLE, "--group", GROUP)

Land = Callable[..., LandingReport]
Command = Callable[..., tuple[int, str]]


@pytest.fixture
def land_it(connections: Connections, kafka: Kafka) -> Land:
    def go(topic: str, run_id: str = "", group: str = GROUP, **options: Any) -> LandingReport:
        config = ExtractConfig(topic=topic, table=TABLE, consumer_group=group, **options)
        return land(build_job(config, kafka.client_config(), connections.catalog, run_id=run_id or group))

    return go


@pytest.fixture
def landed(topic: Topics, produce: Producing, land_it: Land) -> str:
    """Give a topic of two partitions with 20 and 5 records, landed by the runs r1 and r2."""
    name = topic(partitions=2)
    produce(name, 0, numbers(20))
    land_it(name, "r1")
    produce(name, 1, numbers(5))
    land_it(name, "r2")
    return name


@pytest.fixture
def lakestream(capsys: pytest.CaptureFixture[str]) -> Command:
    """Give `lakestream(*arguments)`: the exit code and what was printed, errors included."""

    def go(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = run(arguments)
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return go


def ledger(connections: Connections, group: str = GROUP) -> Ledger:
    return read_ledger(connections.catalog.load_table(TABLE), group)


def offsets(connections: Connections) -> list[tuple[int, int]]:
    rows = connections.catalog.load_table(TABLE).scan().to_arrow()
    return sorted(zip(rows["_kafka_partition"].to_pylist(), rows["_kafka_offset"].to_pylist(), strict=True))


# plan


def test_a_plan_says_what_the_next_run_lands_and_writes_nothing(
    connections: Connections, landed: str, produce: Producing, land_it: Land, lakestream: Command
) -> None:
    produce(landed, 0, ['{"n": 1}'] * 1500)
    before = connections.catalog.load_table(TABLE).metadata_location

    code, text = lakestream("plan", *ON, "--topic", landed, "--max-batch-bytes", "4000", "--json")

    plan = json.loads(text)
    assert code == 0
    assert plan["ranges"] == [[0, 20, 1520]]
    assert plan["records_at_most"] == 1500
    assert (plan["bytes_estimated"], plan["offsets_sampled"]) == (1500 * len('{"n": 1}'), 500)
    assert plan["commits_at_least"] == 3
    assert f"{landed}[0] [20,1520): 1,500 offsets" in lakestream("plan", *ON, "--topic", landed)[1]
    assert connections.catalog.load_table(TABLE).metadata_location == before
    assert land_it(landed, "r3").to_dict()["ranges"] == plan["ranges"]
    # The ledger has the topic's name.
    assert lakestream("plan", *ON)[1] == lakestream("plan", *ON, "--topic", landed)[1]
    assert "nothing to do" in lakestream("plan", *ON)[1]


def test_a_plan_for_a_table_that_is_not_there_says_where_it_begins(
    connections: Connections, topic_of: TopicOf, lakestream: Command
) -> None:
    name = topic_of(numbers(4))
    code, text = lakestream("plan", *ON, "--topic", name, "--max-records", "3", "--json")
    plan = json.loads(text)
    assert (code, plan["ranges"], plan["origin"], plan["records_at_most"]) == (0, [[0, 0, 4]], {"0": 0}, 3)
    assert connections.catalog.list_namespaces() == []
    code, text = lakestream("plan", *ON)
    assert (code, "Name the topic to land." in text) == (2, True), text


def test_a_plan_from_before_1970_begins_at_the_beginning(
    connections: Connections, topic_of: TopicOf, lakestream: Command
) -> None:
    name = topic_of(numbers(4))
    for start in ("-1", "-2", "-5000", "1969-12-31T23:59:59.999Z"):
        given = ("--start-offset", "timestamp", f"--start-timestamp={start}", "--json")
        code, text = lakestream("plan", *ON, "--topic", name, *given)
        assert (code, json.loads(text)["origin"], json.loads(text)["ranges"]) == (0, {"0": 0}, [[0, 0, 4]])


def test_a_plan_fails_as_the_run_would(
    connections: Connections, landed: str, produce: Producing, admin: AdminClient, lakestream: Command
) -> None:
    produce(landed, 0, numbers(10))
    admin.delete_records([TopicPartition(landed, 0, 25)])[TopicPartition(landed, 0, 25)].result(30)

    code, text = lakestream("plan", *ON, "--topic", landed)
    assert code == 2
    assert f"{landed}[0] [20,25)" in text
    assert lakestream("plan", *ON, "--topic", "no-such-topic")[0] == 2
    assert lakestream("plan", *ON, "--topic", landed, "--start-offset", "then")[0] == 2

    code, text = lakestream("plan", *ON, "--topic", landed, "--on-data-loss", "record", "--json")
    assert (code, json.loads(text)["lost"]) == (0, [[0, 20, 25]])


# show, history


def test_show_prints_the_ledger(connections: Connections, landed: str, lakestream: Command) -> None:
    code, text = lakestream("ledger", "show", *ON)
    assert code == 0
    for line in (f"topic {landed}, id ", "25 records read, 25 rows", "[0] from 0:", "landed [0,20)", "landed [0,5)"):
        assert line in text
    code, text = lakestream("ledger", "show", *ON, "--json")
    [entry] = json.loads(text)["topics"]
    assert (code, entry["topic"], entry["landed"]) == (0, landed, [[0, 0, 20], [1, 0, 5]])
    assert (entry["origin"], entry["counts"]["written"]) == ({"0": 0, "1": 0}, 25)

    assert lakestream("ledger", "show", "--table", TABLE, "--group", "nobody")[0] == 2


def test_history_says_which_landing_wrote_which_file(
    connections: Connections, landed: str, lakestream: Command
) -> None:
    code, text = lakestream("ledger", "history", *ON, "--json")
    newest, oldest = json.loads(text)
    table = connections.catalog.load_table(TABLE)
    files = {task.file.record_count: task.file.file_path for task in table.scan().plan_files()}
    assert code == 0
    assert (newest["run_id"], newest["files"]) == ("r2", [files[5]])
    assert (oldest["run_id"], oldest["files"]) == ("r1", [files[20]])
    assert newest["snapshot_id"] == str(table.current_snapshot().snapshot_id)
    assert newest["topics"][0]["landed"] == [[1, 0, 5]]

    table.maintenance.expire_snapshots().by_id(int(oldest["snapshot_id"])).commit()

    code, text = lakestream("ledger", "history", *ON)
    assert code == 0
    assert "run r1: 20 rows" in text
    assert "the snapshot has expired" in text
    assert files[5] in text
    assert files[20] not in text


def test_history_sums_up_the_ranges_of_a_landing(
    connections: Connections, landed: str, land_it: Land, lakestream: Command
) -> None:
    land_it(landed, "r3", mode="ranges", ranges=[[0, n, n + 1] for n in range(0, 20, 2)], replace=True)
    code, text = lakestream("ledger", "history", *ON)
    assert code == 0
    assert f"  replaced {landed}[0] [0,1), [2,3), [4,5), [6,7) and 6 ranges more: 10 offsets\n" in text
    assert json.loads(lakestream("ledger", "history", *ON, "--json")[1])[0]["topics"][0]["replaced"][9] == [0, 18, 19]


# Changes


def test_a_renamed_ledger_goes_on_under_its_new_name(
    connections: Connections, landed: str, produce: Producing, land_it: Land, lakestream: Command
) -> None:
    before = ledger(connections)

    code, text = lakestream("ledger", "rename", "--table", TABLE, "--group", GROUP, "--to", "new")

    assert (code, "from snapshot" in text) == (0, True)
    assert ledger(connections, "new").topics == before.topics
    assert not ledger(connections).topics
    assert lakestream("audit", "--table", TABLE, "--group", "new", "--full")[0] == 0
    produce(landed, 0, numbers(2, 20))
    assert land_it(landed, "r3", "new").to_dict()["ranges"] == [[0, 20, 22]]
    assert len(offsets(connections)) == 27
    # The old name has nothing, and is no way to land twice.
    with pytest.raises(LandedByAnotherGroup):
        land_it(landed, "r4")
    # Rolled back to before it, the table has the old ledger again.
    table = connections.catalog.load_table(TABLE)
    table.manage_snapshots().rollback_to_snapshot(sorted(table.snapshots(), key=sequence)[1].snapshot_id).commit()
    assert ledger(connections).topics == before.topics
    assert not ledger(connections, "new").topics


def test_a_name_that_is_taken_or_unknown_renames_nothing(
    connections: Connections, landed: str, land_it: Land, lakestream: Command
) -> None:
    land_it(landed, "r3", "other", allow_group_overlap=True)
    head = connections.catalog.load_table(TABLE).metadata_location
    assert "has a ledger of its own" in lakestream("ledger", "rename", *ON, "--to", "other")[1]
    assert "is not a name" in lakestream("ledger", "rename", *ON, "--to", "no name")[1]
    assert lakestream("ledger", "rename", "--table", TABLE, "--group", "nobody", "--to", "new")[0] == 2
    assert connections.catalog.load_table(TABLE).metadata_location == head


def test_a_reset_is_done_when_confirmed_and_the_next_run_begins_anew(
    connections: Connections, landed: str, land_it: Land, lakestream: Command
) -> None:
    code, text = lakestream("ledger", "reset", *ON)
    assert (code, "like a first run, and is refused if" in text) == (2, True)
    assert ledger(connections).topics

    assert lakestream("ledger", "reset", *ON, "--yes")[0] == 0

    assert not ledger(connections).topics
    assert len(offsets(connections)) == 25
    # What it landed before is not in the table twice: by default the run is refused, with the way out.
    with pytest.raises(RowsUnaccounted, match=f"adopt --table {TABLE} --group {GROUP} --topic {landed}"):
        land_it(landed, "r3")
    assert land_it(landed, "r4", start_offset="latest").to_dict()["rows_beside"] == 25
    assert len(offsets(connections)) == 25
    assert lakestream("audit", *ON, "--full")[0] == 0


def test_a_change_that_meets_another_writer_is_decided_anew(
    connections: Connections, landed: str, produce: Producing, land_it: Land
) -> None:
    seen: list[int] = []

    def decide(table: Table) -> dict[str, Ledger]:
        held = read_ledger(table, GROUP)
        seen.append(held.entry(next(iter(held.topics))).landed.width)
        if len(seen) == 1:
            produce(landed, 0, numbers(1, 20))
            land_it(landed, "r3")
        return {GROUP: Ledger(GROUP), "new": Ledger("new", held.topics)}

    restate_ledgers(connections.catalog, TABLE, decide)

    assert seen == [25, 26]
    assert [entry.landed.width for entry in ledger(connections, "new").topics.values()] == [26]


@pytest.mark.parametrize("fault", [applied(TimeoutError("lost")), unapplied(TimeoutError("lost"))])
def test_a_change_whose_outcome_was_not_told_is_made_once(connections: Connections, landed: str, fault: Fault) -> None:
    faulty = FaultyCatalog(connections.catalog, fault)
    before = len(connections.catalog.load_table(TABLE).snapshots())

    snapshot_id = restate_ledgers(faulty, TABLE, lambda _: {GROUP: Ledger(GROUP)})

    table = connections.catalog.load_table(TABLE)
    assert len(table.snapshots()) == before + 1
    assert table.current_snapshot().snapshot_id == snapshot_id
    assert_files_are_whole(table)


def test_an_intended_deletion_is_no_damage_once_it_has_its_receipt(
    connections: Connections, landed: str, land_it: Land, lakestream: Command
) -> None:
    text = lakestream("ledger", "forget", *ON, "--rows", f"{landed}[0]:3-6")[1]
    assert f"{landed}[0] [3,6) still has rows" in text

    connections.catalog.load_table(TABLE).delete("_kafka_partition = 0 and _kafka_offset in (3, 4, 5, 9)")
    assert lakestream("ledger", "forget", *ON, "--rows", f"{landed}[0]:3-6")[0] == 0

    assert lakestream("audit", *ON)[0] == 1
    code, text = lakestream("audit", *ON, "--full", "--json")
    [of_first, _] = json.loads(text)["partitions"]
    assert (code, of_first["missing"], of_first["forgotten"]) == (1, [[9, 10]], [[3, 6]])

    assert lakestream("ledger", "forget", *ON, "--missing")[0] == 0
    assert [lakestream("audit", *ON, *options)[0] for options in ([], ["--full"])] == [0, 0]
    assert "forgotten [3,6), [9,10)" in lakestream("ledger", "show", *ON)[1]
    assert not land_it(landed, "r3").snapshot_ids
    for wrong in (["--missing"], ["--rows", "x"], ["--rows", f"{landed}[0]:90-99"], [], ["--rows", "x", "--missing"]):
        assert lakestream("ledger", "forget", *ON, *wrong)[0] == 2


def test_damaged_batches_are_forgotten(
    kafka: Kafka, topic: Topics, produce: Producing, land_it: Land, lakestream: Command
) -> None:
    name = topic(partitions=1)
    for batch in range(3):
        produce(name, 0, numbers(10, 10 * batch))
    land_it(name, "r1", mode="ranges", ranges=[[0, 0, 10]])
    code, text = lakestream("ledger", "forget", *ON, "--damaged")
    assert (code, "can be read" in text) == (2, True)
    stored = batches(kafka.folder, name)[1]
    stored.write(stored.read()[:-1] + b"?")

    code, text = lakestream("ledger", "forget", *ON, "--damaged")

    assert (code, f"{name}[0] [10,20)" in text) == (0, True)
    land_it(name, "r2")
    assert "lost [10,20)" in lakestream("ledger", "show", *ON)[1]
    assert lakestream("audit", *ON, "--full")[0] == 0


def test_what_was_deleted_below_the_logs_start_can_be_forgotten_too(
    connections: Connections, landed: str, admin: AdminClient, lakestream: Command
) -> None:
    admin.delete_records([TopicPartition(landed, 0, 10)])[TopicPartition(landed, 0, 10)].result(30)
    connections.catalog.load_table(TABLE).delete("_kafka_partition = 0 and _kafka_offset < 4")
    assert lakestream("audit", *ON, "--full")[0] == 1

    assert lakestream("ledger", "forget", *ON, "--rows", f"{landed}[0]:0-4")[0] == 0

    assert [lakestream("audit", *ON, *options)[0] for options in ([], ["--full"])] == [0, 0]


def test_an_undecided_ledger_is_rebuilt_from_the_rows(
    connections: Connections, landed: str, produce: Producing, land_it: Land, admin: AdminClient, lakestream: Command
) -> None:
    assert "there is nothing to rebuild" in lakestream("ledger", "rebuild", *ON)[1]
    before = ledger(connections)
    # Below the log's start, and above it: the one is lost for good, the other will be landed.
    connections.catalog.load_table(TABLE).delete("_kafka_partition = 0 and _kafka_offset in (2, 15)")
    admin.delete_records([TopicPartition(landed, 0, 8)])[TopicPartition(landed, 0, 8)].result(30)
    forget_history(connections)
    assert lakestream("audit", *ON)[0] == 2

    code, text = lakestream("ledger", "rebuild", *ON)

    assert code == 0, text
    assert f"the next run lands: {landed}[0] [15,16)" in text
    assert f"taken as lost: {landed}[0] [2,3)" in text
    [(identity, entry)] = ledger(connections).topics.items()
    assert [identity] == list(before.topics)
    assert entry.landed == before.topics[identity].landed - ranges(landed, 2, 3) - ranges(landed, 15, 16)
    assert entry.lost == ranges(landed, 2, 3)
    assert lakestream("audit", *ON, "--full")[0] == 0
    produce(landed, 1, numbers(1, 5))
    assert land_it(landed, "r3").to_dict()["ranges"] == [[0, 15, 16], [1, 5, 6]]
    assert len(offsets(connections)) == len(set(offsets(connections))) == 25


@pytest.mark.parametrize("lost", [False, True])
def test_a_rebuilt_ledger_knows_what_the_sources_columns_are(
    lost: bool, connections: Connections, topic: Topics, produce: Producing, land_it: Land, lakestream: Command
) -> None:
    name, given = topic(1), {"envelope": "debezium"}
    produce(name, 0, [typed_change("c", {"id": n, "v": n}, n, {"v": DATE}) for n in (1, 2, 3)])
    land_it(name, "r1", **given)
    before = ledger(connections)
    assert before.types["v"].meaning == "date"
    if lost:
        forget_history(connections)
    else:
        assert lakestream("ledger", "reset", *ON, "--yes")[0] == 0
    code, text = lakestream("ledger", "rebuild", *ON)
    assert code == 0, text
    assert (ledger(connections).types, ledger(connections).filled) == (before.types, before.filled)
    produce(name, 0, [typed_change("u", {"id": 1, "v": 2026}, 9, {"v": INT})])
    with pytest.raises(SourceTypeChanged):
        land_it(name, "r2", **given)


def test_rows_that_say_no_position_are_no_ground_for_a_ledger(
    connections: Connections, landed: str, lakestream: Command
) -> None:
    table = connections.catalog.load_table(TABLE)
    table.append(pa.Table.from_pylist([{"n": 1}], schema=table.schema().as_arrow()))
    forget_history(connections)
    code, text = lakestream("ledger", "rebuild", *ON)
    assert (code, "1 rows of lake.t have no topic, partition or offset" in text) == (2, True)


def forget_history(connections: Connections) -> None:
    """Leave no trace of how the rows came: the snapshots expired, the older metadata files are gone."""
    table = connections.catalog.load_table(TABLE)
    compact(table)
    table = connections.catalog.load_table(TABLE)
    old = [s.snapshot_id for s in table.snapshots() if s.snapshot_id != table.current_snapshot().snapshot_id]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    table = connections.catalog.load_table(TABLE)
    for entry in table.metadata.metadata_log:
        table.io.delete(entry.metadata_file)


def sequence(snapshot: Snapshot) -> int:
    return snapshot.sequence_number or 0


def ranges(topic: str, start: int, end: int) -> RangeSet:
    return RangeSet.of(topic, 0, start, end)


def test_the_group_is_asked_for_only_where_a_table_has_several_ledgers(
    landed: str, land_it: Land, lakestream: Command
) -> None:
    table, topic = ("--table", TABLE), ("--topic", landed)
    hand_over = ("hand-over", *table, *topic, "--to", "group", "heir")
    adopt = ("adopt", *table, *topic, "--from", "rows")
    commands = [
        ("ledger", "reset", *table),
        ("ledger", "rebuild", *table),
        ("ledger", "forget", *table, "--missing"),
        ("ledger", "forget", *table, "--damaged"),
        ("mirror", "resnapshot", *table),
        hand_over,
        adopt,
        ("ledger", "rename", *table, "--to", "h"),
    ]
    of_one = [
        "the next run of 'g' begins",
        "of 'g' on lake.t exists",
        "no row is missing",
        "",
        "is not a mirror",
        "heir",
        "",
    ]
    for command, said in zip(commands, [*of_one, "the ledger of g is that of h"], strict=True):
        _, printed = lakestream(*command)
        assert said in printed, (command, printed)
        assert "--group" not in printed, (command, printed)
    land_it(landed, group="second", allow_group_overlap=True)
    for command in commands:
        code, printed = lakestream(*command)
        assert (code, "--group: lake.t has ledgers of h, second. Say which" in printed) == (2, True), (command, printed)
