from __future__ import annotations

import pytest

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.spark.configuration import check_settings
from airflow_lakestream.spark.session import start_session


@pytest.mark.parametrize(
    "settings", [{"spark.remote": "local"}, {"spark.master": "sc://host:15002"}, {"spark.api.mode": "Connect"}]
)
def test_a_session_of_spark_connect_is_refused(settings: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match=r"asks for Spark Connect.*Name the master itself"):
        start_session("kafka_to_iceberg", settings, ())


@pytest.mark.parametrize(("name", "value"), [("SPARK_REMOTE", "sc://host"), ("SPARK_API_MODE", "connect")])
def test_so_is_one_that_the_environment_asks_for(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidArgument, match=f"environment: {name} asks for Spark Connect"):
        start_session("kafka_to_iceberg", {}, ())


def test_other_settings_are_none_of_its_business() -> None:
    check_settings({"spark.master": "local[2]", "spark.api.mode": "classic", "spark.connect.grpc.binding.port": "1"})
