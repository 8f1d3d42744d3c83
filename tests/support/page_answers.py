"""What an API server with the page answers: it makes streams, asks for them, and prints the answers as JSON."""

from __future__ import annotations

import json
import os
import runpy
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from urllib.parse import urlencode

from tests.support.airflow_home import DAGS
from tests.support.odd_reports import (
    NAMES,
    STATES,
    altered,
    anything,
    are_odd_contents,
    is_odd_list,
    is_odd_look,
    is_odd_report,
)
from tests.support.page_streams import know, land, render, report, run

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
USERS = {"anonymous": None, "vera": "viewer", "uma": "user", "ada": "admin"}
FORM = {"type": ["null", "integer"], "minimum": 1, "title": "Record limit", "description": "Stop after so many."}
ALL = "/lakestream/api/streams"
ONE = ALL + "/{}/land"
PRESS = ONE + "/presses/{}"
# The tables of DAGs that have another name than their DAG.
TABLES = {"on_spark": "lake.clicks"}
LOOK_TASKS = ("keeps_up", "is_fresh", "looks_inside")
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
    files = {"data_files": 3, "delete_files": 0, "bytes": 3 * 2**20, "rows": 1234, "small_files": 2}
    return {
        "table": "lake.t",
        "consumer_group": group,
        "files": {**files, "compacted_at": NOW.isoformat()},
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
            task_id="land", app="kafka_to_iceberg", app_config={"topic": "clicks", "table": TABLES["on_spark"]}
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


def make_unreadable() -> None:
    """Make a stream of which neither the report of the landing nor that of the table's contents can be read."""
    from airflow.providers.standard.operators.empty import EmptyOperator
    from airflow.sdk import DAG
    from airflow.utils.session import create_session

    from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator
    from airflow_lakestream.operators.table_contents import TableContentsOperator

    table, at = "lake.unreadable", NOW + timedelta(minutes=30)
    with DAG("unreadable", schedule=None) as unreadable:
        KafkaExtractOperator(task_id="land", topic="odd", table=table)
    with DAG("watches", schedule=None) as watches:
        TableContentsOperator.partial(task_id="looks_inside").expand_kwargs(EmptyOperator(task_id="streams").output)
    landing = report("odd", table, 0, 3, rejected="many")
    inside = {**contents("unreadable", "a record"), "files": "three"}
    listed = [{"table": table, "consumer_group": "unreadable"}]
    pushed = [("streams", -1, "return_value", listed), ("looks_inside", 0, "return_value", inside)]
    with create_session() as session:
        for dag in (unreadable, watches):
            know(session, dag)
        run(session, "unreadable", {"land": "success"}, at, [("land", -1, "return_value", landing)])
        run(session, "watches", {"streams": "success"}, at, pushed, mapped={"looks_inside": ["success"]})


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
    said["all later"] = client.get(ALL, headers=headers).json()["streams"]
    # Another server, which finds nothing among the newest events and runs.
    from airflow_lakestream.ui.page import landings, newest
    from airflow_lakestream.ui.page.streams import StreamsPage

    newest.WINDOW = landings.RUNS = 0
    with create_session() as session:
        readable = manager.get_authorized_dag_ids(user=users["vera"], session=session)
        said["all by search"] = json.loads(StreamsPage().all(session, readable))["streams"]
        said["hours by search"] = StreamsPage().hours(session, {"secret"})["streams"]
    said["odd"] = list(_odd(client, {"Authorization": f"Bearer {given['ada']}"}))
    return said


@dataclass(frozen=True)
class Written:
    """A value that somebody has written.

    :param path: what is asked for, whose answer names the value if it is odd, and not otherwise.
    :param name: how the text about it begins.
    """

    place: str
    path: str
    is_odd: bool
    name: str


def _odd(client: Any, headers: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield what is answered after others have written any JSON where the page reads."""
    from airflow_lakestream.ui.page import landings

    paths = {ALL, "/lakestream/api/hours", PRESS.format("lands", "replay")}
    paths |= {ONE.format(name) for name in ("lands", "on_spark", "behind", "fails", "no_outlet", "by_form")}
    for seed in range(int(os.environ.get("LAKESTREAM_ODD", "40"))):
        random, at = Random(seed), datetime.now(UTC) + timedelta(minutes=seed)
        states = {"lands": "success", "on_spark": "running"}
        states |= {name: random.choice(STATES) for name in ("fails", "no_outlet")}
        written = [one for name, state in states.items() for one in _write_report(random, seed, at, name, state)]
        written += _write_looks(random, at)
        # As if a minute had passed.
        landings._FRESH_S = -1
        answers = {path: client.get(path, headers=headers) for path in sorted(paths | {one.path for one in written})}
        texts = {path: list(_naming_texts(one.json())) for path, one in answers.items() if one.status_code == 200}
        found = {one.place: any(text.startswith(one.name) for text in texts.get(one.path, ())) for one in written}
        newest = {one["dag_id"]: one["newest_run"] for one in answers[ALL].json()["streams"] if one["usual"]}
        run_id = f"manual__{at.isoformat()}"
        yield {
            "seed": seed,
            "refused": [[path, one.status_code, one.text] for path, one in answers.items() if one.status_code > 399],
            "named": [place for place, is_named in found.items() if is_named],
            "wrong": [[one.name, one.path, one.is_odd] for one in written if found[one.place] != one.is_odd],
            "states": [
                [one["state"], states[name]]
                for name, one in newest.items()
                if name in states and one and one["run_id"] == run_id
            ],
            "texts": [answer.text for answer in answers.values() if "NaN" in answer.text or "Infinity" in answer.text],
        }


def _write_report(random: Random, seed: int, at: datetime, name: str, state: str) -> Iterator[Written]:
    """Write a report with one value of any kind, or any JSON; yield what the database has taken."""
    from airflow.utils.session import create_session
    from sqlalchemy.exc import DBAPIError

    usual = TABLES.get(name, f"lake.{name}")
    whole = {**report("orders", usual, seed, seed + 1), "rows_in": 1}
    ranges = {"ranges": [[0, 0, 1]], "lost": [[0, 1, 2]]}
    whole |= {"topics": {"orders": ranges}} if random.random() < 0.3 else {}
    by_name = {**whole, random.choice(NAMES): anything(random)}
    made = random.choice([by_name, altered(random, whole), altered(random, whole), anything(random)])
    run_id, is_there = f"manual__{at.isoformat()}", False
    # What the database itself refuses nobody writes, such as half a character in JSONB.
    if name == "lands" and isinstance(made, dict):
        with suppress(DBAPIError), create_session() as session:
            land(session, name, name, run_id, at, made)
            session.flush()
            is_there = True
    with suppress(DBAPIError), create_session() as session:
        key = "progress" if state == "running" else "return_value"
        run(session, name, {"land": state}, at, [("land", -1, key, made)])
        render(session, name, run_id, {"schema": anything(random), "writer_schemas": anything(random)})
        session.flush()
        is_there = True
    if is_there:
        odd = is_odd_report(made)
        yield Written(f"{name} in all", ALL, odd, f"{name}: The report of the run {run_id} could not be read: ")
        yield Written(f"{name} in its history", _history(name, usual, made), odd, f"{name}: The landing of {run_id}: ")


def _history(name: str, usual: str, made: Any) -> str:
    """Return where the history of a report's table is."""
    table = made.get("table") if isinstance(made, dict) else None
    if not table or not isinstance(table, str) or table == usual or "\ud800" in table:
        return ONE.format(name)
    return f"{ONE.format(name)}?{urlencode({'table': table})}"


def _write_looks(random: Random, at: datetime) -> Iterator[Written]:
    """Write what the sensors have seen, of any kind; yield what the database has taken."""
    from airflow.utils.session import create_session
    from sqlalchemy.exc import DBAPIError

    look = {"lag": 5, "lost": 0, "time_left": 0.5, "reasons": [{"cause": "slow consumer", "text": "a text"}]}
    usual = (look, look, contents("slow_group", "a record"))
    lag, freshness, inside = values = [
        altered(random, one) if random.random() < 0.6 else anything(random) for one in usual
    ]
    is_listed = random.random() < 0.5
    listed: Any = [{"table": "lake.behind", "consumer_group": "slow_group"}]
    if not is_listed:
        listed = altered(random, listed) if random.random() < 0.5 else anything(random)
    pushed = [(task, 0, "return_value", one) for task, one in zip(LOOK_TASKS, values, strict=True)]
    states = {"keeps_up": ["failed"], "is_fresh": ["failed"], "looks_inside": ["success"]}
    by = f"the run manual__{at.isoformat()} of supervises reported could not be read: "
    conf = {name: anything(random) for name in ("table", "topic", "limit", "") if random.random() < 0.5}
    with suppress(DBAPIError), create_session() as session:
        run(session, "by_form", {"land": "success"}, at, conf=conf)
        session.flush()
    with suppress(DBAPIError), create_session() as session:
        pushed.append(("streams", -1, "return_value", listed))
        run(session, "supervises", {"streams": "success"}, at, pushed, mapped=states)
        session.flush()
        yield Written("list", ALL, is_odd_list(listed), f"The list that the task streams of {by}")
        if is_listed:
            yield Written("lag", ALL, is_odd_look(lag), f"behind: The lag that {by}")
            yield Written("freshness", ALL, is_odd_look(freshness), f"behind: The freshness that {by}")
            yield Written("contents", ONE.format("behind"), are_odd_contents(inside), "behind: The contents: ")


def _naming_texts(answer: Any) -> Iterator[str]:
    """Yield what an answer says of values."""
    if not isinstance(answer, dict):
        return
    yield from answer.get("problems", ())
    for stream in answer.get("streams", [answer]):
        found = [why["text"] for why in stream.get("why", ())]
        found += [
            f"The landing of {one['run_id']}: {one['problem']}" for one in stream.get("landings", ()) if one["problem"]
        ]
        contents = stream.get("contents") or {}
        found += [f"The contents: {contents['problem']}"] if contents.get("problem") else []
        yield from (f"{stream.get('dag_id')}: {text}" for text in found)


if __name__ == "__main__":
    make()
    print(json.dumps(ask()))
