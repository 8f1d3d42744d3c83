"""Tables and driver folders that an earlier version has written are read as it meant them, and continued.

The files are of the version before the package's names were made plain.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.delta.ledger_store import read_ledger as read_delta_ledger
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.driver.driver_folder import DriverFolder
from airflow_lakestream.driver.lease import HeldLease, OtherInputs, read_lease
from airflow_lakestream.driver.lease_record import DriverOutcome
from airflow_lakestream.driver.progress import BatchProgress, ProgressLog, read_progress
from airflow_lakestream.iceberg.ledger_store import read_ledger
from tests.support.given_records import FORMATS, GROUP, TOPIC, GivenLake

KEPT = Path(__file__).with_name("kept")
INPUTS = {"app": "kafka_to_iceberg", "topic": "clicks", "table": "lake.clicks", "consumer_group": "g"}
RECORDS = [b'{"id": 1, "name": "a"}', b"{", b'{"id": 2, "name": "b"}', b'{"id": 3, "name": "c"}']


def kept_table(folder: Path, table_format: str) -> GivenLake:
    """Return a lake with the earlier version's table: of Iceberg its properties and snapshots, of Delta all files."""
    lake = GivenLake(folder, table_format)
    if table_format == "delta":
        shutil.copytree(KEPT / "delta", folder, dirs_exist_ok=True)
        return lake
    lake.land(RECORDS[:3], schema="id bigint, name string", max_rejected=1.0, consumer_group="another")
    kept = json.loads((KEPT / "iceberg.json").read_text())
    table = lake.iceberg()
    for snapshot in kept["snapshots"]:
        with table.transaction() as transaction:
            producer = transaction.update_snapshot(snapshot_properties=snapshot["summary"]).fast_append()
            producer._snapshot_id = snapshot["id"]
            producer.commit()
    with table.transaction() as transaction:
        transaction.set_properties(kept["properties"])
    return lake


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_table_of_an_earlier_version_is_read_and_continued(table_format: str, tmp_path: Path) -> None:
    lake = kept_table(tmp_path, table_format)

    def ledger() -> tuple[RangeSet, Counts]:
        found = (
            read_ledger(lake.iceberg(), GROUP)
            if table_format == "iceberg"
            else read_delta_ledger(DeltaStorage().open(lake.name), GROUP)
        )
        entry = found.topics[TOPIC]
        assert entry.origin == {0: 0}
        return entry.landed, entry.counts

    assert ledger() == (RangeSet.of(TOPIC.topic, 0, 0, 3), Counts(read=3, written=2, rejected=1))
    report = lake.land(RECORDS, allow_group_overlap=True)
    assert report.counts.written == 1
    assert ledger() == (RangeSet.of(TOPIC.topic, 0, 0, 4), Counts(read=4, written=3, rejected=1))
    # Nothing is landed twice.
    assert lake.land(RECORDS, allow_group_overlap=True).snapshot_ids == []
    if table_format == "delta":
        assert [row["id"] for row in lake.rows()] == [1, 2, 3]
        assert list(lake.rejected()) == [1]


def test_the_folder_of_an_earlier_version_s_driver_is_taken_over(tmp_path: Path) -> None:
    shutil.copytree(KEPT / "checkpoint", tmp_path, dirs_exist_ok=True)
    location = str(tmp_path / "clicks")
    lease = read_lease(location)
    assert lease is not None
    assert (lease.generation, lease.outcome, lease.inputs) == (1, DriverOutcome.DONE, INPUTS)
    progress = read_progress(location)
    assert (progress.batches, progress.rows_out, progress.rejected) == (1, 90, 10)
    assert progress.landed == (("clicks", 0, 0, 100),)
    assert progress.sums() == DriverFolder(location).read("told-run-1.json")
    with pytest.raises(OtherInputs, match=r"lake\.clicks"):
        HeldLease.take(location, "f", "this version", inputs=INPUTS | {"table": "lake.others"})
    with HeldLease.take(location, "f", "this version", inputs=INPUTS) as taken:
        assert taken.record.generation == 2
        ProgressLog(location).report(BatchProgress(1, 10, 10, ranges=(("clicks", 0, 100, 110),)))
    assert read_progress(location).landed == (("clicks", 0, 0, 110),)
