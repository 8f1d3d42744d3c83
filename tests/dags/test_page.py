"""The page of streams, as Airflow's API server answers: who sees what, and what is said of each stream."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dev.services.airflow import database_settings
from dev.stack import Stack
from tests.support.airflow_home import CHECKOUT, settings
from tests.support.page_answers import ALL, HOSTILE, ONE, PRESS, USERS, contents

# It has a PostgreSQL, and an API server.
pytestmark = pytest.mark.long

HOURS = "/lakestream/api/hours"


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory, stack: Stack) -> dict[str, Any]:
    """Give the answers of an API server, in an Airflow of its own, on PostgreSQL."""
    home = tmp_path_factory.mktemp("page")
    (home / "written").mkdir()
    users = ",".join(f"{name}:{role}" for name, role in USERS.items() if role)
    environment = {
        **os.environ,
        **settings(home),
        **database_settings(database := stack.up_postgres().new_database("page")),
        # By psycopg 3, which is stricter about types; the demo's Airflow has psycopg2.
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database,
        "AIRFLOW__CORE__AUTH_MANAGER": "tests.support.picky_auth.PickyAuthManager",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": users,
        "AIRFLOW__API__BASE_URL": "http://localhost:8080/behind/a/path",
    }

    def python(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], env=environment, cwd=CHECKOUT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    python("-m", "airflow", "db", "migrate")
    return dict(json.loads(python("-m", "tests.support.page_answers").splitlines()[-1]))


def streams(said: dict[str, Any], user: str) -> dict[str, Any]:
    status, answer = said[f"{user} GET {ALL}"]
    assert status == 200
    return {one["dag_id"]: one for one in answer["streams"]}


def test_every_route_refuses_who_is_not_logged_in(said: dict[str, Any]) -> None:
    assert {ALL, HOURS} <= {path for _, path in said["routes"]}
    assert {method for method, _ in said["routes"]} == {"GET"}
    for method, path in said["routes"]:
        assert said[f"anonymous {method} {path}"][0] == 401, path
        assert said[f"ada {method} {path}"][0] == 200, path
    # Files without secrets.
    assert said["mounts"] == ["/static", "/docs"]


def test_a_dag_that_may_not_be_read_never_shows(said: dict[str, Any]) -> None:
    assert "secret" in streams(said, "ada")
    assert "secret" not in streams(said, "vera")
    assert said[f"ada GET {ONE.format('secret')}"][0] == 200
    hidden, nowhere = (said[f"vera GET {ONE.format(name)}"] for name in ("secret", "nowhere"))
    assert (hidden[0], nowhere[0]) == (404, 404)
    assert hidden[1]["detail"] == nowhere[1]["detail"].replace("nowhere", "secret")
    everything = json.dumps([answer for name, answer in said.items() if name.startswith("vera")])
    assert "hidden_group" not in everything
    assert "lake.secret" not in everything


def test_the_states_are_those_of_the_newest_runs_and_of_the_supervision(said: dict[str, Any]) -> None:
    found = streams(said, "vera")
    assert {name: one["state"] for name, one in found.items()} == {
        "lands": "idle",
        "fails": "failing",
        "behind": "stalled",
        "waits": "paused",
        "no_outlet": "idle",
        "by_form": "landing",
        "on_spark": "landing",
    }
    assert found["fails"]["why"][0]["cause"] == "failed run"
    why = found["behind"]["why"]
    assert [one["cause"] for one in why] == ["stopped consumer", "slow consumer"]
    assert "1,234 offsets wait" in why[1]["text"]
    assert found["behind"]["supervised"]["looks"]["lag"]["value"]["seconds"] == 7200


def test_a_run_that_was_told_another_table_is_a_stream_of_its_own(said: dict[str, Any]) -> None:
    both = [one for one in said[f"vera GET {ALL}"][1]["streams"] if one["dag_id"] == "by_form"]
    assert [(one["table"], one["state"], one["landing"]["rows"], one["conf"], one["usual"]) for one in both] == [
        ("lake.by_form", "landing", 1, {}, True),
        ("lake.elsewhere", "landing", 6, {"table": "lake.elsewhere"}, False),
    ]
    # Each has a history of its own, and no other table is a stream.
    asked = [said[f"vera GET {ONE.format('by_form')}{more}"] for more in ("", "?table=lake.elsewhere")]
    assert [[landing["rows"] for landing in one["landings"]] for _, one in asked] == [[1], [6]]
    assert said[f"vera GET {ONE.format('by_form')}?table=lake.nowhere"][0] == 404


def test_names_are_those_of_the_newest_run_and_not_the_template(said: dict[str, Any]) -> None:
    found = streams(said, "vera")
    assert (found["lands"]["topic"], found["lands"]["consumer_group"]) == ("orders", "orders_group")
    # No run has rendered it yet.
    assert (found["waits"]["topic"], found["waits"]["written"]["topic"]) == (None, "{{ params.topic }}")


def test_a_landing_is_known_by_its_asset_by_its_report_or_by_its_progress(said: dict[str, Any]) -> None:
    found = streams(said, "vera")
    assert (found["lands"]["landing"]["rows"], found["lands"]["landing"]["snapshot_id"]) == (30, str(10**18 + 150))
    # Without an outlet; a later run that landed nothing hides it not.
    assert (found["no_outlet"]["landing"]["rows"], found["no_outlet"]["landing"]["rejected"]) == (1, 2)
    assert found["no_outlet"]["landing"]["at"].startswith("2026-11-01T12:00")
    # A run that goes on.
    assert (found["on_spark"]["landing"]["rows"], found["on_spark"]["landing"]["lag"]) == (39, 5)
    assert found["fails"]["landing"] is None


def test_a_stream_has_its_history_with_holes_and_losses(said: dict[str, Any]) -> None:
    status, one = said[f"vera GET {ONE.format('lands')}"]
    assert status == 200
    assert [landing["rows"] for landing in one["landings"]] == [30, 100]
    assert one["landings"][0]["schema_changes"] == ["column added: city string"]
    assert one["offsets"] == [
        {
            "topic": "orders",
            "partition": 0,
            "landed": [[0, 100], [120, 150]],
            "lost": [[150, 160]],
            "holes": [[100, 120]],
        }
    ]
    assert said[f"vera GET {ONE.format('no_stream')}"][0] == 404


def test_a_backfill_is_offered_where_it_lands_intervals(said: dict[str, Any]) -> None:
    why = {
        name: said[f"ada GET {ONE.format(name)}"][1]["no_backfill"] for name in ("lands", "fails", "behind", "secret")
    }
    assert why["lands"] is None
    assert why["secret"].startswith("The DAG has no schedule")
    assert "points in time, not for intervals" in why["fails"]
    assert 'mode="interval"' in why["behind"]


def test_a_press_is_told_which_table_it_is_and_how_records_are_decoded(said: dict[str, Any]) -> None:
    status, audit = said[f"uma GET {PRESS.format('lands', 'audit')}"]
    assert status == 200
    names = {"table": "lake.lands", "consumer_group": "orders_group"}
    names |= {"kafka_conn_id": "kafka_default", "iceberg_conn_id": "iceberg_default"}
    assert audit == {"dag_id": "lake_audit", "paused": True, "conf": names}
    status, replay = said[f"uma GET {PRESS.format('lands', 'replay')}"]
    assert status == 200
    # A template is as the newest run rendered it; all else as the DAG file has it now.
    decoding = {"schema": "id bigint, n120 bigint", "csv_delimiter": "\t", "unknown_fields": "rescue"}
    decoding |= {"format": "json", "schema_evolution": "none"}
    assert {name: replay["conf"][name] for name in (*names, *decoding)} == {**names, **decoding}
    assert "storage_conn_id" not in replay["conf"]
    buttons = said[f"vera GET {ONE.format('lands')}"][1]["buttons"]
    assert buttons == {
        "audit": {"dag_id": "lake_audit", "is_there": True, "why_not": None},
        "replay": {"dag_id": "lake_replay", "is_there": True, "why_not": None},
    }


def test_a_press_needs_permission_on_the_dag_of_the_stream(said: dict[str, Any]) -> None:
    def status(user: str, dag: str) -> int:
        return int(said[f"{user} GET {PRESS.format(dag, 'audit')}"][0])

    assert [status("anonymous", dag) for dag in ("lands", "no_outlet", "secret", "nowhere")] == [401] * 4
    # May read, and start nothing.
    assert [status("vera", dag) for dag in ("lands", "no_outlet", "secret", "nowhere")] == [403, 403, 404, 404]
    # May start runs of the bundled DAG, and not of this stream's.
    assert [status("uma", dag) for dag in ("lands", "no_outlet", "secret", "nowhere")] == [200, 403, 404, 404]
    assert [status("ada", dag) for dag in ("lands", "no_outlet", "secret", "nowhere")] == [200, 200, 200, 404]


def test_what_a_table_holds_is_told_of_one_stream_with_its_age(said: dict[str, Any]) -> None:
    def told(name: str, user: str = "vera") -> Any:
        return said[f"{user} GET {ONE.format(name)}"][1]["contents"]

    place = {"dag_id": "supervises", "run_id": "manual__2026-11-01T12:15:00+00:00", "task_id": "looks_inside"}
    at = "2026-11-01T12:15:00+00:00"
    assert told("behind") == {
        **place,
        "map_index": 0,
        "at": at,
        "document": contents("slow_group", HOSTILE),
        "problem": None,
    }
    assert told("secret", "ada")["document"] == contents("hidden_group", "hidden")
    # It could not be looked at.
    assert told("fails") == {**place, "map_index": 2, "at": at, "document": None, "problem": None}
    # Nobody looks.
    assert told("lands") is None
    # Of all streams it is not told, and is no look of theirs.
    assert all("contents" not in one for one in streams(said, "ada").values())
    assert set(streams(said, "ada")["behind"]["supervised"]["looks"]) == {"lag", "freshness"}


def test_rows_by_the_hour_are_those_of_the_last_day(said: dict[str, Any]) -> None:
    def hours(user: str) -> dict[str, Any]:
        status, answer = said[f"{user} GET {HOURS}"]
        assert status == 200
        return {one["dag_id"]: one["rows"] for one in answer["streams"]}

    found = hours("ada")
    assert [rows for rows in found["secret"] if rows] == [7] * 5
    assert found["lands"] == [0] * 24
    # A run that goes on tells only of its sum.
    assert found["on_spark"] is None
    assert hours("vera") == {name: rows for name, rows in found.items() if name != "secret"}


def test_what_comes_next_is_seen(said: dict[str, Any]) -> None:
    status, one = said["later"]
    assert (status, one["state"], one["landing"]["rows"], len(one["landings"])) == (200, "landing", 40, 3)


def test_what_is_older_than_the_newest_landings_of_all_is_found_too(said: dict[str, Any]) -> None:
    assert said["all by search"] == said["all later"]
    assert len(said["all later"]) == 8
    assert [rows for rows in said["hours by search"][-1]["rows"] if rows] == [7] * 5


def test_scripts_are_read_by_everybody(said: dict[str, Any]) -> None:
    assert said["script"][0] == 200
    assert "javascript" in said["script"][1]


def test_airflow_knows_the_page_below_the_path_of_its_proxy(said: dict[str, Any]) -> None:
    [plugin] = [one for one in said["ada GET /api/v2/plugins"][1]["plugins"] if one["name"] == "lakestream"]
    assert {one["destination"]: one["bundle_url"] for one in plugin["react_apps"]} == {
        "nav": "/behind/a/path/lakestream/static/lakestream.js",
        "dag": "/behind/a/path/lakestream/static/dag.js",
    }
    # Of two views with one route Airflow shows one, and a view without a route has its name for it.
    routes = [one.get("url_route") or one["name"].lower() for one in plugin["react_apps"] + plugin["external_views"]]
    assert sorted(routes) == ["lakestream", "lakestream-streams", "streams"]


def test_the_files_of_the_page_are_in_the_package() -> None:
    static = Path(CHECKOUT, "airflow_lakestream", "ui", "page", "static")
    assert {file.name for file in static.iterdir()} >= {"lakestream.js", "dag.js"}


def test_whatever_others_have_written_the_page_answers_and_names_what_it_could_not_read(said: dict[str, Any]) -> None:
    odd = said["odd"]
    failed = [(one["seed"], *refused) for one in odd for refused in one["refused"]]
    assert failed == []
    assert [one["seed"] for one in odd if one["texts"]] == []
    # Each value that is odd is named, and no other.
    assert [(one["seed"], one["wrong"]) for one in odd if one["wrong"]] == []
    assert [(one["seed"], shown, made) for one in odd for shown, made in one["states"] if shown != made] == []
    places = ("list", "lag", "freshness", "contents")
    places += tuple(
        f"{name} in {where}" for name in ("lands", "on_spark", "fails", "no_outlet") for where in ("all", "its history")
    )
    counts = {place: sum(place in one["named"] for one in odd) for place in places}
    assert min(counts.values()) > 3, counts
