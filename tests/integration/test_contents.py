"""The contents of a table, as reported: files, snapshots, and the rejected records that count, the newest first."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_lakestream.iceberg.upkeep import reject_summary
from airflow_lakestream.run.replay import RejectReplay
from airflow_lakestream.watching import contents
from airflow_lakestream.watching.contents import TableContents
from tests.support.broker import Producing, Topics
from tests.support.lake import GROUP, TABLE, Lake

pytestmark = pytest.mark.integration

ATTACK = '<img src=x onerror="taken()">\u202e'


def contents_of(lake: Lake, samples: int = 3) -> dict[str, Any]:
    return TableContents(TABLE, GROUP, samples).look(lake.catalog())


@pytest.fixture
def name(lake: Lake, topic: Topics, produce: Producing) -> str:
    """Give a topic that is landed in two runs, each with a record that is rejected."""
    made = topic(partitions=1)
    produce(made, 0, ['{"n": 0}', ATTACK, '{"n": "x", "password": "word-3"}'])
    lake.land(made, schema="n bigint")
    produce(made, 0, ['{"n": 3}', '{"n": 4, "y": 1}'])
    lake.land(made, schema="n bigint", unknown_fields="fail")
    return made


def test_files_and_snapshots_are_those_of_the_table(lake: Lake, name: str) -> None:
    found, table = contents_of(lake), lake.table()
    files = table.inspect.data_files().to_pylist()
    assert found["files"] == {
        "data_files": len(files),
        "delete_files": 0,
        "bytes": sum(one["file_size_in_bytes"] for one in files),
        "rows": 2,
        "small_files": len(files),
        "compacted_at": None,
    }
    assert found["snapshots"]["count"] == len(table.snapshots())
    lake.compact()
    compacted = contents_of(lake)["files"]
    newest = contents_of(lake)["snapshots"]["newest"]
    assert (compacted["small_files"], compacted["compacted_at"]) == (0, newest[0]["at"])
    assert [one["kind"] for one in newest[:3]] == ["compaction", "landing", "landing"]
    assert newest[0]["snapshot_id"] == str(lake.table().metadata.current_snapshot_id)
    assert (newest[1]["consumer_group"], newest[1]["rows"]) == (GROUP, 1)


def test_rejected_records_are_the_newest_that_count(lake: Lake, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rejects = contents_of(lake)["rejects"]
    assert (rejects["count"], rejects["looked_at"], rejects["kinds"]) == (3, 3, 3)
    samples = {one["offset"]: one for reason in rejects["reasons"] for one in reason["samples"]}
    assert samples[1]["value"] == ATTACK.replace("\u202e", "\\u202e")
    assert samples[2]["value"] == '{"n": "x", "password":***'
    assert samples[4]["topic"] == name

    # Files that are read are bounded: the newest ones are.
    sizes = [one["file_size_in_bytes"] for one in lake.table(f"{TABLE}__rejected").inspect.data_files().to_pylist()]
    monkeypatch.setattr(contents, "READ_BYTES", max(sizes))
    some = contents_of(lake)["rejects"]
    assert (some["count"], some["looked_at"]) == (3, 1)
    assert [one["offset"] for reason in some["reasons"] for one in reason["samples"]] == [4]
    monkeypatch.setattr(contents, "READ_BYTES", 1)
    assert (contents_of(lake)["rejects"]["looked_at"], contents_of(lake)["rejects"]["reasons"]) == (0, [])


def test_without_samples_no_value_is_told(lake: Lake, name: str) -> None:
    rejects = contents_of(lake, samples=0)["rejects"]
    assert [one["records"] for one in rejects["reasons"]] == [1, 1, 1]
    assert [one["samples"] for one in rejects["reasons"]] == [[], [], []]
    assert "taken" not in str(rejects)


def test_what_is_rolled_back_or_replayed_does_not_count(lake: Lake, name: str) -> None:
    def counted() -> tuple[int, int]:
        rejects = contents_of(lake)["rejects"]
        return rejects["count"], rejects["looked_at"]

    first, _ = lake.snapshots()
    assert counted() == (3, 3)
    lake.roll_back(first)
    assert counted() == (2, 2)
    RejectReplay(table=TABLE, consumer_group=GROUP).run(lake.catalog())
    assert counted() == (2, 2)


def test_the_count_is_that_of_the_command(lake: Lake, name: str) -> None:
    from airflow_lakestream.audit.run import load_both
    from airflow_lakestream.iceberg.reject_table import counting_rows

    main, rejects = load_both(lake.catalog(), TABLE)
    assert rejects is not None
    shown = reject_summary.by_reason(counting_rows(rejects, main, GROUP, columns=reject_summary.COLUMNS), 3)
    found = contents_of(lake)["rejects"]["reasons"]
    assert {(one.stage, one.kind, one.count) for one in shown} == {
        (one["stage"], one["reason"], one["records"]) for one in found
    }
