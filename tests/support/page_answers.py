"""What an API server with the page answers: it makes streams, asks for them, and prints the answers as JSON."""

from __future__ import annotations

import json
import math
import os
import runpy
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from tests.support.airflow_home import DAGS
from tests.support.page_streams import know, land, render, report, run

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
USERS = {"anonymous": None, "vera": "viewer", "uma": "user", "ada": "admin"}
FORM = {"type": ["null", "integer"], "minimum": 1, "title": "Record limit", "description": "Stop after so many."}
ONE = "/lakestream/api/streams/{}/land"
PRESS = ONE + "/presses/{}"
BUNDLED = ("lake_audit", "lake_replay")
PRESSED = (("lands", "audit"), ("lands", "replay"), ("no_outlet", "audit"), ("secret", "audit"), ("nowhere", "audit"))


# A record that somebody has sent, as no document has it: in those all is printable.
HOSTILE = (
    '<img src="https://elsewhere.invalid/x" onerror="globalThis.taken=1"><script>globalThis.taken=1</script>\u202e'
)


def contents(group: str, value: str) -> dict[str, Any]:
    """Return what is told of a table with two rejected records of three kinds of reasons."""
    sample = {"topic": "slow", "partition": 0, "offset": 7, "error": value, "value": value, "bytes": 120, "run_id": "r"}
    one = {"stage": "decode", "reason": "n: ... is no bigint", "records": 5, "samples": [sample]}
    snapshot = {"snapshot_id": str(10**18), "at": NOW.isoformat(), "operation": "append", "rows": 10}
    return {
        "table": "lake.t",
        "consumer_group": group,
        "files": {"data_files": 3, "delete_files": 0, "bytes": 3 * 2**20, "rows": 1234},
        "snapshots": {"count": 2, "newest": [{**snapshot, "kind": "landing", "consumer_group": group}]},
        "rejects": {"count": 12, "looked_at": 7, "kinds": 2, "reasons": [one]},
    }


def make() -> None:
    """Make one stream of each kind."""
    from airflow.providers.standard.operators.empty import EmptyOperator
    from airflow.sdk import DAG, Asset, Param
    from airflow.timetables.interval import CronDataIntervalTimetable
    from airflow.utils.session import create_session

    from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator
    from airflow_lakestream.operators.spark_streaming_submit import SparkStreamingSubmitOperator
    from airflow_lakestream.operators.table_contents import TableContentsOperator
    from airflow_lakestream.sensors.checkpoint_lag import CheckpointLagSensor
    from airflow_lakestream.sensors.iceberg_snapshot_freshness import IcebergSnapshotFreshnessSensor

    hourly = CronDataIntervalTimetable("0 * * * *", timezone="UTC")

    def extract(name: str, outlets: bool = True, schedule: Any = None, mode: str = "interval") -> DAG:
        with DAG(name, schedule=schedule, start_date=NOW - timedelta(days=2), catchup=False) as dag:
            KafkaExtractOperator(
                task_id="land",
                topic="{{ params.topic }}",
                table=f"lake.{name}",
                mode=mode,
                schema="{{ params.columns }}",
                csv_delimiter="\t",
                unknown_fields="rescue",
                outlets=[Asset(name)] if outlets else [],
            )
        return dag

    columns = {"table": Param("lake.by_form", type="string", title="Table", description="Where it lands.")}
    with DAG("by_form", schedule=None, params={"topic": "forms", **columns, "limit": Param(None, **FORM)}) as by_form:
        KafkaExtractOperator(task_id="land", topic="{{ params.topic }}", table="{{ params.table }}")
    with DAG("on_spark", schedule=None) as on_spark:
        SparkStreamingSubmitOperator(
            task_id="land", app="kafka_to_iceberg", app_config={"topic": "clicks", "table": "lake.clicks"}
        )
    with DAG("no_stream", schedule=None) as no_stream:
        EmptyOperator(task_id="land")
    with DAG("supervises", schedule=None) as supervises:
        listed = EmptyOperator(task_id="streams").output
        CheckpointLagSensor.partial(task_id="keeps_up", fail_when_behind=True).expand_kwargs(listed)
        IcebergSnapshotFreshnessSensor.partial(task_id="is_fresh", fail_when_stale=True).expand_kwargs(listed)
        TableContentsOperator.partial(task_id="looks_inside").expand_kwargs(listed)

    def at(minutes: int) -> datetime:
        return NOW + timedelta(minutes=minutes)

    with create_session() as session:
        dags = [extract("lands", schedule=hourly), extract("fails", schedule="0 * * * *"), extract("secret")]
        dags += [extract("behind", schedule=hourly, mode="resume")]
        for dag in (*dags, extract("no_outlet", outlets=False), by_form, on_spark, no_stream, supervises):
            know(session, dag)
        know(session, extract("waits"), paused=True)
        for name in BUNDLED:
            know(session, runpy.run_path(str(DAGS / f"{name}.py"))["dag"], paused=True)

        # Two landings with a hole between them; the newest run found nothing.
        for start, until, minutes in ((0, 100, 0), (120, 150, 5)):
            changed = ["column added: city string"] if start else []
            told = report(
                "orders", "lake.lands", start, until, schema_changes=changed, lost=[[0, 150, 160]] * bool(start)
            )
            run_id = run(session, "lands", {"land": "success"}, at(minutes), [("land", -1, "return_value", told)])
            land(session, "lands", "lands", run_id, at(minutes), told)
            render(session, "lands", run_id, {"schema": f"id bigint, n{start} bigint", "unknown_fields": "of then"})
        empty = report("orders", "lake.lands", 150, 150, snapshot_ids=[])
        run(session, "lands", {"land": "success"}, at(10), [("land", -1, "return_value", empty)])

        run(session, "fails", {"land": "failed"}, at(0))
        told = report("slow", "lake.behind", 0, 10)
        land(session, "behind", "behind", run(session, "behind", {"land": "success"}, at(0)), at(0), told)

        told = report("plain", "lake.no_outlet", 0, 3, rejected=2, rows=1, tables={"lake.no_outlet": 1})
        run(session, "no_outlet", {"land": "success"}, at(0), [("land", -1, "return_value", told)])
        empty = report("plain", "lake.no_outlet", 3, 3)
        run(session, "no_outlet", {"land": "success"}, at(5), [("land", -1, "return_value", empty)])

        # The newest run of all was told another table.
        for table, minutes in (("lake.by_form", 0), ("lake.elsewhere", 5)):
            told = report("forms", table, 0, minutes + 1)
            asked = {"table": table} if minutes else {}
            run(session, "by_form", {"land": "success"}, at(minutes), [("land", -1, "return_value", told)], conf=asked)

        progress = {"batches": 4, "rows_in": 40, "rows_out": 39, "rejected": 1, "lag": 5, "snapshot_ids": ["9"]}
        run(session, "on_spark", {"land": "running"}, at(0), [("land", -1, "progress", progress)])

        listed_streams = [
            {"table": "lake.behind", "consumer_group": "slow_group"},
            {"table": "lake.secret", "consumer_group": "hidden_group"},
            {"table": "lake.fails", "consumer_group": "fails"},
        ]
        stale = {"fresh": False, "reasons": [{"cause": "stopped consumer", "text": "nothing was landed for 2 h"}]}
        run(
            session,
            "supervises",
            {"streams": "success"},
            at(15),
            [
                ("streams", -1, "return_value", listed_streams),
                ("keeps_up", 0, "return_value", {"lag": 1234, "lost": 0, "seconds": 7200}),
                ("keeps_up", 1, "return_value", {"lag": 0, "lost": 0}),
                ("is_fresh", 0, "return_value", stale),
                ("looks_inside", 0, "return_value", contents("slow_group", HOSTILE)),
                ("looks_inside", 1, "return_value", contents("hidden_group", "hidden")),
            ],
            mapped={
                "keeps_up": ["failed", "success"],
                "is_fresh": ["failed", "success"],
                "looks_inside": ["success", "success", "failed"],
            },
        )

        # In the last day; the others have landed before it.
        for n in range(5):
            told = report("hidden", "lake.secret", 7 * n, 7 * n + 7)
            landed = datetime.now(UTC) - timedelta(hours=20 - 4 * n)
            run_id = run(session, "secret", {"land": "success"}, landed, [("land", -1, "return_value", told)])
            land(session, "secret", "secret", run_id, landed, told)


def _content(answer: Any) -> Any:
    is_json = answer.headers.get("content-type", "").startswith("application/json")
    return answer.json() if is_json else answer.text


def ask() -> dict[str, Any]:
    """Return what each user is answered, by address."""
    from airflow.api_fastapi.app import create_app, get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from starlette.routing import Mount
    from starlette.testclient import TestClient

    from airflow_lakestream.ui.app import make_app

    app = create_app(apps="core")
    manager = get_auth_manager()
    users = {name: SimpleAuthManagerUser(username=name, role=role) for name, role in USERS.items() if role}
    given = {name: manager.generate_jwt(users[name]) if role else None for name, role in USERS.items()}
    routes = [
        (method, route.path)
        for route in make_app().routes
        if not isinstance(route, Mount)
        for method in sorted(route.methods)  # type: ignore[attr-defined]  # each that is no mount has them
    ]
    mounts = [route.path for route in make_app().routes if isinstance(route, Mount)]
    addresses = [
        (method, "/lakestream" + path.format(dag_id="lands", task_id="land", press="audit")) for method, path in routes
    ]
    asked = [ONE.format(name) for name in ("lands", "secret", "fails", "behind", "no_outlet", "nowhere", "no_stream")]
    asked += [f"{ONE.format('by_form')}{query}" for query in ("", "?table=lake.elsewhere", "?table=lake.nowhere")]
    asked += [PRESS.format(*one) for one in PRESSED]
    asked += ["/api/v2/plugins"]
    # Airflow is behind a proxy that keeps its path.
    client = TestClient(app, base_url="http://localhost:8080/behind/a/path", raise_server_exceptions=True)
    said: dict[str, Any] = {"routes": addresses, "mounts": mounts}
    for user, token in given.items():
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        for method, address in [*addresses, *(("GET", one) for one in asked)]:
            answer = client.request(method, address, headers=headers)
            said[f"{user} {method} {address}"] = [answer.status_code, _content(answer)]
    script = client.get("/lakestream/static/lakestream.js")
    said["script"] = [script.status_code, script.headers.get("content-type")]
    # The rows that come next are seen: nothing that changes is kept.
    from airflow.utils.session import create_session

    with create_session() as session:
        told = report("orders", "lake.lands", 160, 200)
        run_id = run(session, "lands", {"land": "success"}, NOW + timedelta(minutes=20))
        land(session, "lands", "lands", run_id, NOW + timedelta(minutes=20), told)
    headers = {"Authorization": f"Bearer {given['vera']}"}
    later = client.get(ONE.format("lands"), headers=headers)
    said["later"] = [later.status_code, _content(later)]
    said["all later"] = client.get("/lakestream/api/streams", headers=headers).json()["streams"]
    # Another server, which finds nothing among the newest events and runs.
    from airflow_lakestream.ui.page import hours, newest, runs
    from airflow_lakestream.ui.page.streams import StreamsPage

    newest.WINDOW = runs.WINDOW = hours.RUNS = 0
    with create_session() as session:
        readable = manager.get_authorized_dag_ids(user=users["vera"], session=session)
        said["all by search"] = json.loads(StreamsPage().all(session, readable))["streams"]
        said["hours by search"] = StreamsPage().hours(session, {"secret"})["streams"]
    said["odd"] = list(_odd(client, {"Authorization": f"Bearer {given['ada']}"}))
    return said


NAMES = ("read", "rows_in", "rows", "rows_out", "tables", "rejected", "skipped", "remaining_lag", "lag", "snapshot_ids")
NAMES += ("schema_changes", "ranges", "lost", "topic", "table", "consumer_group", "topics", "reasons", "time_left")
NAMES += ("seconds", "files", "snapshots", "rejects", "fresh")
TEXTS = ("", "many", "0", "-1", "1e400", "\u202e", "\ud800", "<b>", "12", "9" * 30, "null", "2026-01-01")
NUMBERS = (0, 1, -1, 3, 2**63, 10**400, -(10**30), 0.5, 1e300, math.nan, -math.inf, True, False, None)


def anything(random: Random, depth: int = 0) -> Any:
    """Return some JSON."""
    kind = random.random()
    if depth < 4 and kind < 0.3:
        return {random.choice((*NAMES, *TEXTS[:3])): anything(random, depth + 1) for _ in range(random.randrange(4))}
    if depth < 4 and kind < 0.5:
        return [anything(random, depth + 1) for _ in range(random.randrange(5))]
    if kind < 0.52:
        deep: Any = 1
        for _ in range(200):
            deep = [deep]
        return deep
    return random.choice(TEXTS if kind < 0.75 else NUMBERS)


STATES = ("failed", "success", "running", "queued", "removed", "upstream_failed", "nobody knows it", "")


def _problem(read: Callable[[Any], object], value: Any) -> str:
    """Return what the page has to say of a value that it reads; nothing, if it can be read."""
    from airflow_lakestream.ui.page.shapes import Odd
    from airflow_lakestream.ui.page.supervision import _read

    try:
        read(_read(value))
    except Odd as odd:
        return str(odd)
    return ""


def _odd(client: Any, headers: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield what is answered after others have written any JSON where the page reads."""
    from airflow.utils.session import create_session
    from sqlalchemy.exc import DBAPIError

    from airflow_lakestream.ui.page import hours
    from airflow_lakestream.ui.page.landings import landing_of
    from airflow_lakestream.ui.page.supervision import _CONTENTS, _read, look_value

    paths = ("/lakestream/api/streams", "/lakestream/api/hours", ONE.format("lands"), ONE.format("on_spark"))
    paths += (ONE.format("behind"), PRESS.format("lands", "replay"))
    for seed in range(int(os.environ.get("LAKESTREAM_ODD", "40"))):
        random, at = Random(seed), datetime.now(UTC) + timedelta(minutes=seed)
        whole = report("orders", "lake.lands", seed, seed + 1)
        name = random.choice(NAMES)
        made = anything(random) if seed % 5 == 0 else {**whole, "rows_in": 1, name: anything(random)}
        run_id = f"manual__{at.isoformat()}"
        # What the database itself refuses nobody writes, such as half a character in JSONB.
        with suppress(DBAPIError), create_session() as session:
            if isinstance(made, dict):
                land(session, "lands", "lands", run_id, at, made)
        with suppress(DBAPIError), create_session() as session:
            run(session, "lands", {"land": "success"}, at, [("land", -1, "return_value", made)])
            render(session, "lands", run_id, {"schema": anything(random), "writer_schemas": anything(random)})
        # Those whose values the database takes: by stream what has to be named.
        named: dict[str, list[str]] = {"on_spark": [], "behind": [], "contents": []}
        with suppress(DBAPIError), create_session() as session:
            run(session, "on_spark", {"land": "running"}, at, [("land", -1, "progress", made)])
            session.flush()
            landing = landing_of(at, run_id, -1, made)
            named["on_spark"] = [landing.problem] if landing is not None and landing.problem else []
        for dag_id in ("fails", "no_outlet"):
            with suppress(DBAPIError), create_session() as session:
                run(
                    session,
                    dag_id,
                    {"land": random.choice(STATES)},
                    at,
                    [("land", -1, "return_value", anything(random))],
                )
        with suppress(DBAPIError), create_session() as session:
            looks = [(task, 0, "return_value", anything(random)) for task in ("keeps_up", "is_fresh", "looks_inside")]
            listed = [{"table": "lake.behind", "consumer_group": "slow_group"}] if seed % 3 else anything(random)
            states = {"keeps_up": ["failed"], "is_fresh": ["failed"], "looks_inside": ["success"]}
            told = [("streams", -1, "return_value", listed), *looks]
            run(session, "supervises", {"streams": "success"}, at, told, mapped=states)
            session.flush()
            if seed % 3:
                values = [value for _, _, _, value in looks]
                # Of what is null nothing was told.
                told_of = [value for value in values[:2] if _read(value) is not None]
                named["behind"] = [one for value in told_of if (one := _problem(look_value, value))]
                named["contents"] = [one for one in [_problem(lambda value: _CONTENTS("", value), values[2])] if one]
        # As if a minute had passed.
        hours._FRESH_S = -1
        answers = {path: client.get(path, headers=headers) for path in paths}
        of_all = answers[paths[0]]
        shown = of_all.json()["streams"] if of_all.status_code == 200 else []
        yield {
            "made": repr(made)[:300],
            "statuses": {path: answer.status_code for path, answer in answers.items()},
            "named": named,
            "why": {
                **{
                    name: [why["text"] for one in shown if one["dag_id"] == name for why in one["why"]]
                    for name in ("on_spark", "behind")
                },
                "contents": _problems_of(answers[ONE.format("behind")]),
            },
            "texts": [answer.text for answer in answers.values() if "NaN" in answer.text or "Infinity" in answer.text],
        }


def _problems_of(answer: Any) -> list[str]:
    found = (answer.json().get("contents") or {}) if answer.status_code == 200 else {}
    return [f"could not be read: {found['problem']}"] if found.get("problem") else []


if __name__ == "__main__":
    make()
    print(json.dumps(ask()))
