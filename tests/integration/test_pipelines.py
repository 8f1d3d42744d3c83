"""Pipelines in YAML in a real Airflow: a DAG each, an import error with its line, and one ledger for all engines."""

from __future__ import annotations

import json
import re
import time
from datetime import timedelta
from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_lakestream.cli.app import FAILED, run
from tests.support.airflow_home import AirflowHome
from tests.support.broker import Producing, TopicOf, Topics
from tests.support.lake import events
from tests.support.pipelines import Pipelines, pipelines, switch_engines

__all__ = ["pipelines"]

pytestmark = [pytest.mark.integration, pytest.mark.airflow]


def test_each_file_is_a_dag(pipelines: Pipelines) -> None:
    for name, engine in (("by_extract", "extract"), ("by_group", "group"), ("by_spark", "spark")):
        pipelines.write(name, topic="orders", engine=engine)
    found = pipelines.bag().dags
    assert {name: sorted(dag.task_ids) for name, dag in found.items()} == {
        "by_extract": ["land"],
        "by_group": ["land.commit", "land.plan", "land.read"],
        "by_spark": ["land"],
    }
    assert {dag.fileloc for dag in found.values()} == {str(pipelines.file)}


def test_a_folder_of_200_with_3_broken_files(
    pipelines: Pipelines, airflow: AirflowHome, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(200):
        pipelines.write(f"p{number:03}", topic="orders", engine="extract")
    breaks = {
        # Nothing that can be read, a wrong value, and what only Airflow's parser of schedules finds.
        "p007": ("metadata:", "{metadata:"),
        "p070": ("engine: extract", "engine: flonk"),
        "p170": ("schedule: never", "schedule: every 5 minutes"),
    }
    pipelines.break_files(breaks)
    began = time.monotonic()
    bag = pipelines.bag()
    print(f"parsed in {time.monotonic() - began:.1f} s")
    assert sorted(bag.dags) == [f"p{number:03}" for number in range(200)]
    broken = {name: dag for name, dag in bag.dags.items() if "broken" in dag.tags}
    assert set(broken) == set(breaks)
    for name, place in (
        ("p007", r":\d+:\d+: invalid YAML"),
        ("p070", ":26:3: orchestration.engine"),
        ("p170", ":27:3: "),
    ):
        said = rf"{name}\.yaml{place}"
        dag = broken[name]
        assert dag.schedule is None
        assert re.search(said, dag.doc_md)
        assert "pipeline validate" in dag.doc_md
        [logged] = [text for text in caplog.messages if f"pipeline {name} is" in text]
        assert re.search(said, logged)
    done = airflow.run(broken["p170"])
    assert (done.state, done.task("land").tries) == ("failed", 1)
    assert "p170.yaml:27:3: orchestration.schedule: 'every 5 minutes' is not a cron expression" in str(done.errors[0])


def test_a_strict_load_makes_no_dag_where_a_file_is_wrong(pipelines: Pipelines) -> None:
    pipelines.write("right", topic="orders", engine="extract")
    pipelines.write("wrong", topic="orders", engine="flonk")
    pipelines.file.write_text(pipelines.file.read_text().replace("load(", "load(strict=True, folder="))
    with pytest.raises(AssertionError, match=r"wrong\.yaml:26:3: orchestration\.engine: \W+flonk"):
        pipelines.bag()


@pytest.mark.parametrize("break_", [("topic:", "topik:"), ("sinks:", "sinks: [")])
def test_a_run_that_is_on_goes_on_while_its_file_is_broken(pipelines: Pipelines, break_: tuple[str, str]) -> None:
    sensor = "  sensors: {lag: {type: lag, of: lake, when: beside, deferrable: true}}\n"
    for engine in ("spark", "group"):
        pipelines.write(engine, topic="orders", engine=engine)
        file = pipelines.folder / f"{engine}.yaml"
        file.write_text(file.read_text() + sensor)
    before = pipelines.bag().dags
    pipelines.break_files(dict.fromkeys(before, break_))
    # The second parse remembers what the first one did.
    for _ in range(2):
        found = pipelines.bag().dags
    for name, dag in found.items():
        assert "broken" in dag.tags
        # Airflow ends what runs of a task that its DAG has no more.
        assert sorted(dag.task_ids) == sorted(before[name].task_ids)
    for task in (found["spark"].get_task("land"), found["group"].get_task("wait_lag")):
        with pytest.raises(AirflowFailException, match="is broken"):
            task.execute({})
    verdict = {"outcome": "done", "reasons": [], "value": None, "terminal": False}
    found["group"].get_task("wait_lag").resume_execution("execute_complete", {"event": verdict}, {})
    pipelines.mend_files()
    assert not any("broken" in dag.tags for dag in pipelines.bag().dags.values())


def test_tasks_of_a_run_that_began_before_begin_and_those_of_a_new_one_fail(
    pipelines: Pipelines,
    airflow: AirflowHome,
    topic: Topics,
    produce: Producing,
    capsys: pytest.CaptureFixture[str],
) -> None:
    produce(name := topic(1), 0, events(0, 0, 3))
    for engine in ("extract", "group"):
        pipelines.write(engine, topic=name, engine=engine)
    before = pipelines.bag().dags
    runs = {engine: airflow.start(before[engine]) for engine in ("extract", "group")}
    pipelines.break_files(dict.fromkeys(runs, ("topic:", "topik:")))
    broken = pipelines.bag().dags
    for engine, task_id in (("extract", "land"), ("group", "land.plan")):
        assert "broken" in broken[engine].tags
        airflow.run_task(broken[engine], runs[engine], task_id)
        assert runs[engine].task(task_id).state == "success"
    assert len(pipelines.rows("extract")) == 3
    new = airflow.start(broken["extract"])
    airflow.run_task(broken["extract"], new, "land")
    assert new.task().state == "failed"
    assert (
        "extract.yaml:7:5: sources.events.topik: there is no such key. Did you mean topic?" in capsys.readouterr().out
    )


CHAT = """
async def late(context=None):
    pass

def tell(context):
    pass

TEXT = "no function"
"""


def test_alerts_are_those_of_the_file(pipelines: Pipelines, monkeypatch: pytest.MonkeyPatch) -> None:
    (pipelines.folder / "team_chat.py").write_text(CHAT)
    monkeypatch.syspath_prepend(str(pipelines.folder))
    alerts = {"on_failure": ["log", "team_chat:tell"], "deadline": "2h", "on_deadline": "team_chat:late"}
    pipelines.write("alerted", topic="orders", engine="extract", alerts=alerts)
    dag = pipelines.bag().dags["alerted"]
    [task] = dag.tasks
    assert task.has_on_failure_callback
    [deadline] = dag.deadline if isinstance(dag.deadline, list) else [dag.deadline]
    assert (deadline.interval, deadline.callback.path) == (timedelta(hours=2), "team_chat.late")
    for wrong, said in (
        ({"on_failure": "team_chat:nobody"}, "on_failure: team_chat:nobody can"),
        ({"on_failure": "team_chat:TEXT"}, "on_failure: team_chat:TEXT is not a function."),
        ({**alerts, "on_deadline": "team_chat:tell"}, "on_deadline: team_chat:tell is not an async function"),
    ):
        pipelines.write("alerted", topic="orders", engine="extract", alerts=wrong)
        broken = pipelines.bag().dags["alerted"]
        assert "broken" in broken.tags
        # A run that began before needs them.
        assert [type(one) for one in broken.tasks] == [type(task)]
        assert re.search(rf"alerted\.yaml:\d+:\d+: orchestration\.alerts\.{re.escape(said)}", broken.doc_md)


def test_the_engine_is_changed_by_one_word(pipelines: Pipelines, topic: Topics, produce: Producing) -> None:
    switch_engines(pipelines, produce, topic(2), ["extract", "group", "extract"])


SHOP = """\
metadata: {{name: shop}}
sources:
  orders: {{type: kafka, topic: {orders}, consumer_group: orders-lake}}
  clicks: {{type: kafka, topic: {clicks}}}
transformations:
  - name: parsed
    type: sql_transform
    input: clicks
    sql: "SELECT json_value(value, '$.id')::BIGINT AS id, json_value(value, '$.name') AS name FROM {{{{ input }}}}"
sinks:
  orders_lake: {{type: iceberg, table: lake.orders}}
  clicks_lake: {{type: iceberg, table: lake.clicks, input: parsed}}
orchestration:
  engine: {engine}
  schedule: never
  retries: 0
  sensors:
    prices: {{type: freshness, table: {prices}, max_age: 1h, fail_when_stale: true, sinks: clicks_lake}}
quality:
  freshness: 1h
"""


def test_two_sources_land_in_two_sinks_and_a_sensor_holds_one_back(
    pipelines: Pipelines, topic: Topics, produce: Producing, capsys: pytest.CaptureFixture[str], airflow: AirflowHome
) -> None:
    names = {"orders": topic(1), "clicks": topic(1)}
    file = pipelines.folder / "shop.yaml"
    for name in names.values():
        produce(name, 0, events(0, 0, 20))
    # There is no table of prices: one sink lands, the other waits in vain.
    file.write_text(SHOP.format(engine="extract", prices="lake.prices", **names))
    first = pipelines.run("shop")
    assert {name: first.task(name).state for name in ("wait_prices", "land", "land_clicks_lake", "fresh")} == {
        "wait_prices": "failed",
        "land": "success",
        "land_clicks_lake": "upstream_failed",
        "fresh": "success",
    }
    # Airflow's lines are not the command's.
    capsys.readouterr()
    assert run(["pipeline", "plan", str(file), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(one["sink"], one["records_at_most"]) for one in told] == [("orders_lake", 0), ("clicks_lake", 20)]
    assert run(["pipeline", "run", str(file), "--sink", "clicks_lake"]) == 0
    assert "Landed 20 rows" in capsys.readouterr().out
    for name in names.values():
        produce(name, 0, events(0, 20, 20))
    # The engine is changed, and each table's ledger goes on.
    file.write_text(SHOP.format(engine="group", prices="lake.orders", **names))
    second = pipelines.run("shop")
    assert (second.state, second.errors) == ("success", [])
    for table in ("orders", "clicks"):
        assert [row["id"] for row in pipelines.rows(table)] == list(range(40))
    # What is printed is the same DAG.
    capsys.readouterr()
    assert run(["pipeline", "render", str(file)]) == 0
    pipelines.file.write_text(capsys.readouterr().out)
    dag = airflow.dag(pipelines.file)
    assert dag.get_task("land_clicks_lake.plan").upstream_task_ids == {"wait_prices"}
    assert dag.get_task("fresh_clicks_lake").upstream_task_ids == {"land_clicks_lake.commit"}


def test_a_pipeline_is_validated_planned_and_run_without_a_scheduler(
    pipelines: Pipelines, topic_of: TopicOf, capsys: pytest.CaptureFixture[str], airflow: AirflowHome
) -> None:
    pipelines.write("here", topic=topic_of(events(0, 0, 300)))
    file = str(pipelines.folder / "here.yaml")
    assert run(["pipeline", "validate", str(pipelines.folder)]) == 0
    assert "1 right, 0 wrong." in capsys.readouterr().out
    pipelines.write("other", topic="orders")
    pipelines.write("wrong", topic="orders", table="a/b")
    pipelines.break_files({"wrong": ("schedule: never", "schedule: '*/5 * *'")})
    assert run(["pipeline", "validate", str(pipelines.folder)]) == 2
    printed = capsys.readouterr()
    assert "2 right, 1 wrong (2 mistakes)." in printed.out
    assert "wrong.yaml:27:3: orchestration.schedule: '*/5 * *' is not a cron expression" in printed.err
    (pipelines.folder / "wrong.yaml").unlink()
    assert run(["pipeline", "plan", file, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["pipeline"], told["records_at_most"]) == ("here", 300)
    assert told["columns"][0].startswith("lake.here is made: id bigint")
    assert run(["pipeline", "run", file, "--engine", "spark"]) == FAILED
    assert "spark is supervised by a task of Airflow" in capsys.readouterr().err
    for landed in ("Landed 300 rows", "Nothing to land"):
        assert run(["pipeline", "run", file]) == 0
        assert landed in capsys.readouterr().out
    assert [row["id"] for row in pipelines.rows("here")] == list(range(300))
    # What is printed is a DAG that lands the same.
    assert run(["pipeline", "render", file]) == 0
    pipelines.file.write_text(capsys.readouterr().out)
    dag = airflow.dag(pipelines.file)
    done = airflow.run(dag)
    assert (done.state, done.task().xcom["read"]) == ("success", 0)


def test_commands_take_what_the_file_says_and_ask_for_a_group_only_where_there_are_several(
    pipelines: Pipelines, topic_of: TopicOf, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def said(code: int, *arguments: str) -> str:
        capsys.readouterr()
        ended, printed = run([*arguments]), capsys.readouterr()
        assert ended == code, printed
        return printed.out if code == 0 else printed.err

    topic, other = topic_of([*events(0, 0, 3), "not JSON"]), topic_of(events(0, 0, 3))
    pipelines.write("pages", topic=topic)
    file = str(pipelines.folder / "pages.yaml")
    said(0, "pipeline", "run", file)
    assert json.loads(said(0, "plan", "--pipeline", file, "--json"))["records_at_most"] == 0
    shown = json.loads(said(0, "preview", "--pipeline", file, "--json"))
    assert (len(shown["rows"]), len(shown["rejected"])) == (3, 1)
    assert "name" in shown["columns"]
    replayed = json.loads(said(0, "rejects", "replay", "--pipeline", file, "--json"))
    assert replayed["table"] == "lake.pages"
    caplog.clear()
    assert run(["audit", "--pipeline", file, "--full"]) == 0
    audited = capsys.readouterr()
    assert "lake.pages" in audited.out
    # PyIceberg warns of its own dictionaries.
    assert "ictionary" not in f"{audited.out}{audited.err}{caplog.text}"
    # What is given goes before what the file says.
    assert "topic: 'no' does not exist" in said(2, "plan", "--pipeline", file, "--topic", "no")
    # One ledger is meant where there is one.
    for command in (["ledger", "show"], ["ledger", "history"], ["audit"]):
        said(0, *command, "--table", "lake.pages")
    assert "only a statement makes rows of its rejected records" in said(
        2, "rejects", "replay", "--table", "lake.pages"
    )
    (pipelines.folder / "pages.yaml").write_text(
        Path(file).read_text().replace("consumer_group: pages", "consumer_group: second").replace(topic, other)
    )
    said(0, "pipeline", "run", file)
    for command in (["ledger", "show"], ["ledger", "history"], ["audit"], ["rejects", "replay"]):
        assert "--group: lake.pages has ledgers of pages, second. Say which" in said(
            2, *command, "--table", "lake.pages"
        )
    assert "--table is missing. Give it, or a --pipeline" in said(2, "plan", "--group", "pages")
