from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.exceptions import InvalidArgument, UnknownValue
from airflow_lakestream.spark.app_config import AppConfig

LANDING = {"topic": "t", "table": "lake.events", "consumer_group": "g"}
GIVEN: dict[str, Any] = {
    "app": "kafka_to_iceberg",
    "kafka": {"bootstrap.servers": "localhost:9092", "security.protocol": "SASL_SSL", "sasl.password": "hidden"},
    "catalog": {"name": "lake", "properties": {"type": "sql", "uri": "sqlite:///c.db"}},
    "checkpoint_location": "/tmp/c",
    "landing": LANDING,
}


def test_what_is_written_is_read_and_only_its_owner_can(tmp_path: Path) -> None:
    config = AppConfig.parse(GIVEN | {"trigger": "10 seconds", "max_batches": 3, "spark": {"spark.a": "1"}})
    path = tmp_path / "app.json"
    path.touch(0o644)
    assert config.write(path) == path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert AppConfig.read(path) == config
    assert config.extract.table == "lake.events"
    assert [one.name for one in tmp_path.iterdir()] == ["app.json"]


@pytest.mark.parametrize(
    ("trigger", "seconds"),
    [("available_now", None), ("10 seconds", 10), ("1 minute", 60), ("500 milliseconds", 0.5), ("30s", 30)],
)
def test_triggers(trigger: str, seconds: float | None) -> None:
    assert AppConfig.parse(GIVEN | {"trigger": trigger}).seconds_between_batches == seconds


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"checkpoint_locatoin": "/c"}, "Did you mean 'checkpoint_location'?"),
        ({"landing": LANDING | {"tabel": "x"}}, "landing.tabel: is not a setting of the app. Did you mean 'table'?"),
        ({"catalog": {"nam": "x"}}, "Did you mean 'name'?"),
        ({"app": "kafka_to_icberg"}, "Did you mean 'kafka_to_iceberg'?"),
        ({"trigger": "soon"}, "trigger: 'soon'"),
        ({"max_batches": 0}, "max_batches"),
        ({"max_offsets_per_trigger": "many"}, "max_offsets_per_trigger"),
        ({"checkpoint_location": None}, "checkpoint_location: is missing"),
        ({"kafka": {}}, "bootstrap.servers is missing"),
        ({"landing": {"topic": "t", "table": "a.b"}}, "landing.consumer_group: is missing"),
        ({"landing": LANDING | {"idle_timeout": 5}}, "landing.idle_timeout: is not for Spark"),
        ({"landing": LANDING | {"max_records": 5}}, "max_offsets_per_trigger and max_batches"),
        ({"landing": LANDING | {"mode": "ranges", "ranges": [[0, 0, 1]]}}, "checkpoint_location: goes with"),
        ({"run_id": "r"}, "run_id: is not for a query"),
        ({"landing": "t"}, "landing: is a str"),
    ],
)
def test_what_can_not_be_is_refused_by_its_name(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        AppConfig.parse(GIVEN | change)
    assert words in str(caught.value)


def test_a_choice_names_the_known_ones() -> None:
    with pytest.raises(UnknownValue, match="'fail', 'reject', 'skip'"):
        AppConfig.parse(GIVEN | {"landing": LANDING | {"on_error": "ignore"}})


def test_a_file_that_is_none_is_told_without_what_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "app.json"
    path.write_text('{"kafka": {"sasl.password": "hidden"')
    with pytest.raises(InvalidArgument, match="is not JSON in line 1") as caught:
        AppConfig.read(path)
    assert "hidden" not in str(caught.value)
    assert caught.value.__cause__ is None
    path.write_text(json.dumps([1]))
    with pytest.raises(InvalidArgument, match="holds no JSON object"):
        AppConfig.read(path)
    with pytest.raises(InvalidArgument, match="can't be read"):
        AppConfig.read(tmp_path / "missing.json")


def test_the_documented_configuration_is_one() -> None:
    page = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()
    text = page[page.index("    {\n") : page.index("\n    }\n") + len("\n    }\n")]
    config = AppConfig.parse(json.loads(text))
    assert (config.extract.topic, config.seconds_between_batches) == ("clicks", 10)
    # The last is another app's.
    for key in set(AppConfig.__dataclass_fields__) - {"storage"}:
        assert f"| `{key}` |" in page
