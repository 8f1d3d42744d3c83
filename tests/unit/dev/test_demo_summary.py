"""The commands that the demo prints can be copied into a shell and have no password; tables fit 80 characters."""

from __future__ import annotations

import ast
import json
import shlex
from datetime import UTC, datetime

import pytest
from rich.console import Console

from airflow_lakestream.cli.app import app
from dev.demo_summary import _CDC, _COLUMNS, _MORE, _rows, print_login, print_more, print_next
from dev.services.airflow import Airflow, environment_of
from tests.support.airflow_home import DAGS

AIRFLOW = Airflow(
    url="http://127.0.0.1:8080",
    username="admin",
    password="not-to-be-shown",
    home="/some where/home",
    catalog_uri="sqlite:////some where/catalog.db",
    warehouse="file:///some%20where/warehouse",
    database="",
    pid=1,
    folder="/some where",
)


class Broker:
    def client_config(self) -> dict[str, str]:
        return {"bootstrap.servers": "127.0.0.1:9092"}


def test_what_to_try_next_is_copied_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    print_next(Console(width=80), AIRFLOW, Broker(), table="lake.clickstream", group="clickstream_to_lake")  # type: ignore[arg-type]
    printed = capsys.readouterr().out
    assert AIRFLOW.password not in printed
    lines = [shlex.split(line) for line in printed.splitlines() if line.startswith(("export", ".venv"))]
    exported = dict(words[1].split("=", 1) for words in lines if words[0] == "export")
    assert exported["AIRFLOW_HOME"] == AIRFLOW.home
    iceberg = json.loads(exported["AIRFLOW_CONN_ICEBERG_DEFAULT"])
    assert iceberg["extra"]["uri"] == AIRFLOW.catalog_uri
    assert json.loads(exported["AIRFLOW_CONN_KAFKA_DEFAULT"])["extra"] == Broker().client_config()
    commands = {words[1] for words in lines if words[0].endswith("/lakestream")}
    known = {one.name or getattr(one.callback, "__name__", "") for one in app.registered_commands}
    assert commands <= known | {one.name for one in app.registered_groups}
    ast.parse(next(words[2] for words in lines if words[0].endswith("/python")))
    assert "/some where/warehouse/lake/clickstream" in printed


def test_the_page_of_streams_is_named_by_its_place_in_the_menu(capsys: pytest.CaptureFixture[str]) -> None:
    print_login(Console(width=80), AIRFLOW)
    printed = capsys.readouterr().out
    assert AIRFLOW.url in printed
    assert "Lakestream in the menu" in printed
    # The page shows the lag that this DAG finds, which is among those to trigger.
    streams = json.loads(environment_of(AIRFLOW, {})["AIRFLOW_VAR_LAKESTREAM_STREAMS"])
    assert {"table": "lake.clickstream", "consumer_group": "clickstream_to_lake"} in streams
    assert "supervise_lakestream" in _MORE


def test_each_dag_to_trigger_is_there_and_says_by_itself_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    more = {**_MORE, **_CDC}
    assert [name for name in more if not (DAGS / f"{name}.py").is_file()] == []
    assert [name for name, text in more.items() if "the same" in text] == []
    print_more(Console(width=80), cdc=True)
    printed = capsys.readouterr().out
    assert [name for name in more if name not in printed] == []


def test_a_table_of_rows_fits_80_characters_and_its_head_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    url = "https://s10.example.com/customers/1234"
    row = dict(zip(_COLUMNS, (3, 123_456, datetime.now(UTC), "add_to_cart", "u038529", url), strict=True))
    Console(width=80).print(_rows([row]))
    printed = capsys.readouterr().out
    for whole in ("partition", "offset", "123456", "timestamp", "add_to_cart", "u038529", "s10.example.com…"):
        assert whole in printed
