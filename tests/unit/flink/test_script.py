"""Scripts of Flink SQL: their statements, what is refused before Flink sees it, and where a job's state decides."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.flink.job import JobNote
from airflow_lakestream.flink.rest import FlinkJobState, FlinkUnreachable
from airflow_lakestream.flink.script.bundled import flink_cdc_script, flink_script, flink_scripts
from airflow_lakestream.flink.script.config import FlinkScript, JarReplaced, ScriptConfig, digest_of, read_jar, split
from airflow_lakestream.flink.script.stream import ScriptFinished, ScriptStream, StateLost
from airflow_lakestream.hooks.connections import connector_options
from airflow_lakestream.operators.flink_script import FlinkScriptOperator

INSERT = "INSERT INTO t SELECT * FROM s"


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("a; b", ["a", "b"]),
        (" ;; a ;", ["a"]),
        ("a ';' b; c", ["a ';' b", "c"]),
        ("a 'it''s; me'; c", ["a 'it''s; me'", "c"]),
        ("a `x;y`; c", ["a `x;y`", "c"]),
        ("a -- no; end\n b; c", ["a  \n b", "c"]),
        ("a /* no; end */ b", ["a   b"]),
        ("a /*+ OPTIONS('k'='v;w') */ b", ["a /*+ OPTIONS('k'='v;w') */ b"]),
        ("a - b / c; d", ["a - b / c", "d"]),
        ("-- nothing but words", []),
        ("a 'it is open; b", ["a 'it is open", "b"]),
    ],
)
def test_statements_end_at_a_semicolon_that_is_in_no_text_name_or_comment(text: str, statements: list[str]) -> None:
    assert list(split(text)) == statements


WORD = st.sampled_from(["a", "'x;y'", "`p;q`", "/*+ H('k') */", "-- c;\n", "/* d; */", "1 - 2", "''"])


@given(st.lists(st.lists(WORD, min_size=1, max_size=5), max_size=4))
def test_any_statements_are_found_again(statements: list[list[str]]) -> None:
    text = ";".join(" ".join(words) for words in statements)
    kept = [[w for w in words if not re.match(r"--|/\*(?!\+)", w)] for words in statements]
    assert [one.split() for one in split(text)] == [" ".join(words).split() for words in kept if words]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("-- later", "has no INSERT"),
        ("SELECT 1", "'SELECT 1' is refused"),
        (f"{INSERT}; CREATE VIEW v AS SELECT 1", "follows an INSERT"),
        (f"CREATE TABLE t AS SELECT 1; {INSERT}", "a job of its own"),
        (f"SET 'execution.checkpointing.dir' = '/x'; {INSERT}", "The operator sets that"),
        (f"set  'execution.state-recovery.path' = '/x'; {INSERT}", "The operator sets that"),
        (f"EXECUTE STATEMENT SET BEGIN {INSERT}; END", "is refused"),
        (f"STOP JOB 'x'; {INSERT}", "is refused"),
    ],
)
def test_what_is_no_one_job_is_refused_where_the_dag_is_parsed(text: str, told: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(told)):
        FlinkScriptOperator(task_id="t", script=text)


def test_templates_and_files_are_left_to_the_run() -> None:
    FlinkScriptOperator(task_id="t", script="{{ params.sql }}")
    FlinkScriptOperator(task_id="u", script="windows.sql")


def test_several_inserts_are_one_job_and_kafka_is_put_in_by_the_driver() -> None:
    script = FlinkScript.parse(f"CREATE TABLE s (a INT) WITH ('connector'='kafka', ${{kafka}}); {INSERT}; {INSERT} b")
    *before, job = script.statements({"bootstrap.servers": "b:9092"}, {})
    assert before[0].startswith("CREATE TABLE s (a INT) WITH ('connector'='kafka', 'properties.")
    assert "'properties.bootstrap.servers' = 'b:9092'" in before[0]
    assert job == f"EXECUTE STATEMENT SET BEGIN {INSERT}; {INSERT} b; END"


def test_a_database_is_put_in_by_the_driver() -> None:
    script = FlinkScript.parse(f"CREATE TABLE s (a INT) WITH ('connector'='postgres-cdc', ${{database}}); {INSERT}")
    before, _ = script.statements({}, {"hostname": "db", "password": "it's"})
    assert before == "CREATE TABLE s (a INT) WITH ('connector'='postgres-cdc', 'hostname' = 'db', 'password' = 'it''s')"


def test_a_script_that_wants_a_database_needs_its_connection(tmp_path: Path) -> None:
    script = f"CREATE TABLE s (a INT) WITH (${{database}}); {INSERT}"
    with pytest.raises(InvalidArgument, match="no connection of a database"):
        configured(tmp_path, script=script)
    with pytest.raises(InvalidArgument, match="database_conn_id"):
        FlinkScriptOperator(task_id="t", script=script)
    FlinkScriptOperator(task_id="t", script=script, database_conn_id="orders_db")


def configured(tmp_path: Path, **given: Any) -> ScriptConfig:
    at = {"url": "http://127.0.0.1:9"}
    told: dict[str, Any] = {"catalog": {}, "gateway": at, "manager": at, "name": "d.t", "script": INSERT}
    return ScriptConfig(**(told | {"checkpoint_location": str(tmp_path / "chk")} | given))


def test_a_script_that_wants_kafka_needs_its_connection(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no Kafka connection"):
        configured(tmp_path, script=f"CREATE TABLE s (a INT) WITH (${{kafka}}); {INSERT}")


def test_comments_and_blanks_do_not_change_a_program_and_words_do(tmp_path: Path) -> None:
    plain = configured(tmp_path)
    assert configured(tmp_path, script=f"-- why\n{INSERT};").state_of == plain.state_of
    assert configured(tmp_path, script=f"{INSERT} WHERE a").state_of != plain.state_of
    assert configured(tmp_path, kafka={"bootstrap.servers": "other:9092"}).state_of != plain.state_of
    assert configured(tmp_path, manager={"url": "http://moved:1"}).state_of == plain.state_of
    db = {"hostname": "db", "port": "5432", "database-name": "shop", "username": "u", "password": "old"}
    captures = configured(tmp_path, database=db)
    assert captures.state_of != plain.state_of
    renewed = configured(tmp_path, database={**db, "password": "new"})
    assert (renewed.state_of, renewed.fingerprint) == (captures.state_of, captures.fingerprint)
    assert configured(tmp_path, database={**db, "hostname": "other"}).state_of != captures.state_of
    more = configured(tmp_path, parallelism=3)
    assert more.state_of == plain.state_of
    assert more.program != plain.program


def stream(tmp_path: Path, note: JobNote | None, **given: Any) -> ScriptStream:
    made = ScriptStream(configured(tmp_path, **given), lease=None)  # type: ignore[arg-type]  # it is not asked here
    if note is not None:
        made.jobs.write(note)
    return made


def note_of(tmp_path: Path, **told: str) -> JobNote:
    return JobNote(**({"job": "j", "program": configured(tmp_path).program} | told))


@pytest.mark.parametrize(
    ("told", "begins_with"),
    [
        ({}, ""),
        ({"restored": "/old"}, "/old"),
        ({"restored": "/old", "savepoint": "/save", "finished": "/save"}, "/save"),
    ],
)
def test_a_job_begins_with_the_newest_state(tmp_path: Path, told: dict[str, str], begins_with: str) -> None:
    assert stream(tmp_path, note_of(tmp_path, **told))._state_to_begin_with() == begins_with


def test_a_complete_checkpoint_is_newer_than_what_the_job_began_with(tmp_path: Path) -> None:
    for number, names in {7: ["_metadata"], 12: ["_metadata"], 13: ["half"]}.items():
        folder = tmp_path / "chk" / "checkpoints" / "j" / f"chk-{number}"
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).write_bytes(b"x")
    note = note_of(tmp_path, restored="/old", moved="yes")
    assert stream(tmp_path, note)._state_to_begin_with().endswith("/j/chk-12")


def test_a_state_that_is_gone_is_refused_and_so_is_a_job_that_had_finished(tmp_path: Path) -> None:
    with pytest.raises(StateLost, match="had completed checkpoints"):
        stream(tmp_path, note_of(tmp_path, moved="yes"))._state_to_begin_with()
    with pytest.raises(ScriptFinished, match="has finished in an earlier run"):
        stream(tmp_path, note_of(tmp_path, finished="yes"))._state_to_begin_with()


def test_a_changed_script_is_refused_and_the_old_job_is_left_alone(tmp_path: Path) -> None:
    changed = stream(tmp_path, note_of(tmp_path), script=f"{INSERT} WHERE a")
    with pytest.raises(InvalidArgument, match="the checkpoint has the state of the old one"):
        changed.run()


def test_a_job_that_finished_is_done_and_any_other_end_is_an_error(tmp_path: Path) -> None:
    made = stream(tmp_path, note_of(tmp_path))
    made.handle_end("j", FlinkJobState.FINISHED)
    note = made.jobs.note()
    assert note is not None
    assert note.finished == "yes"


class Manager:
    """A JobManager whose job has these states, one after the other; the last stays."""

    def __init__(self, *states: FlinkJobState) -> None:
        self.states = [*states]
        self.canceled: list[str] = []

    def state(self, job: str) -> FlinkJobState:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    def cancel(self, job: str) -> None:
        self.canceled.append(job)


def test_a_job_of_another_parallelism_has_ended_before_the_next_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_lakestream.flink.job._PAUSE", 0.0)
    jobs = stream(tmp_path, note_of(tmp_path), parallelism=3).jobs
    manager = Manager(FlinkJobState.RUNNING, FlinkJobState.RUNNING, FlinkJobState.CANCELED)
    monkeypatch.setattr(jobs, "manager", manager)
    assert jobs.find_running() is None
    assert (manager.canceled, manager.states) == (["j"], [FlinkJobState.CANCELED])

    monkeypatch.setattr("airflow_lakestream.flink.job._ENDS_WITHIN", 0.0)
    monkeypatch.setattr(jobs, "manager", Manager(FlinkJobState.RUNNING))
    with pytest.raises(FlinkUnreachable, match="job j goes on 0 s after it was canceled"):
        jobs.find_running()


@pytest.mark.parametrize("name", flink_scripts())
def test_bundled_scripts_are_scripts(name: str) -> None:
    text = flink_script(name, topic="t", table="lake.t", group="g")
    assert FlinkScript.parse(text).inserts
    assert set(re.findall(r"\$\w*\{?\w*\}?", text)) == {"${kafka}"}


@pytest.mark.parametrize(
    "wrong", [{"name": "nothing"}, {"topic": "a'b"}, {"table": "t"}, {"table": "a.`b"}, {"group": "g'"}]
)
def test_names_that_would_be_more_than_names_are_refused(wrong: dict[str, str]) -> None:
    given_names = {"name": "clicks_by_minute", "topic": "t", "table": "lake.t", "group": "g"} | wrong
    with pytest.raises(InvalidArgument):
        flink_script(**given_names)


CDC = {
    "source": "public.orders",
    "table": "lake.orders",
    "columns": "id bigint, `a b` string",
    "key": "id",
    "slot": "s",
}


def test_a_mirror_of_a_database_names_the_columns_of_both_and_the_key() -> None:
    text = flink_cdc_script(**CDC)
    before, insert = FlinkScript.parse(text).before, FlinkScript.parse(text).inserts
    assert insert == ("INSERT INTO `iceberg_default`.`lake`.`orders` SELECT `id`, `a b` FROM changes",)
    for statement in (before[1], before[3]):
        assert "`id` BIGINT,\n  `a b` STRING,\n  PRIMARY KEY (`id`) NOT ENFORCED" in statement
    assert "'schema-name' = 'public',\n  'table-name' = 'orders',\n  'slot.name' = 's'" in before[1]
    assert set(re.findall(r"\$\w*\{?\w*\}?", text)) == {"${database}"}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"source": "orders"}, "source"),
        ({"source": "public.o'x"}, "source"),
        ({"table": "orders"}, "table"),
        ({"columns": "id nothing"}, "columns"),
        ({"key": "no"}, "key: no is not one of the columns"),
        ({"key": []}, "key: is missing"),
        ({"slot": "S-1"}, "slot"),
    ],
)
def test_a_mirror_that_can_not_work_is_refused(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        flink_cdc_script(**(CDC | wrong))


def test_a_connection_of_a_database_is_what_connectors_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_ORDERS_DB", "postgres://me:secret@db:5432/shop")
    assert connector_options("orders_db") == {
        "hostname": "db",
        "port": "5432",
        "username": "me",
        "password": "secret",
        "database-name": "shop",
    }
    monkeypatch.setenv("AIRFLOW_CONN_ORDERS_DB", "postgres://me@db/shop")
    with pytest.raises(InvalidArgument, match="has no port and no password"):
        connector_options("orders_db")
    with pytest.raises(InvalidArgument, match="there is no connection 'nothing'"):
        connector_options("nothing")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "script: is missing, and there is no jar"),
        ({"script": INSERT, "jar": "/a.jar"}, "script: and jar are both given"),
        ({"script": INSERT, "entry_class": "org.A"}, "entry_class: goes with jar"),
        ({"script": INSERT, "program_arguments": ["a"]}, "program_arguments: goes with jar"),
        ({"jar": "/a.jar", "database_conn_id": "db"}, "database_conn_id: goes with script"),
        ({"jar": "/a.zip"}, "jar: '/a.zip' is not the name of a jar"),
        ({"jar": '/a".jar'}, "is not the name of a jar"),
        ({"jar": "/a.jar", "program_arguments": [1]}, "program_arguments"),
    ],
)
def test_a_script_or_a_program_and_what_goes_with_it(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        FlinkScriptOperator(task_id="t", **arguments)
    FlinkScriptOperator(task_id="t", jar="{{ params.jar }}", entry_class="org.A", program_arguments=["{{ ds }}"])


def test_another_version_of_a_program_goes_on_and_another_program_does_not(tmp_path: Path) -> None:
    def of(**given: Any) -> ScriptConfig:
        return configured(tmp_path, **({"script": "", "jar": "/a.jar", "jar_digest": "1", "entry_class": "A"} | given))

    one = of()
    for changed in ({"jar_digest": "2"}, {"program_arguments": ["x"]}, {"parallelism": 2}):
        assert of(**changed).state_of == one.state_of
        assert of(**changed).program != one.program
    assert of(jar="/moved/a.jar").program == one.program
    assert of(entry_class="B").state_of != one.state_of
    assert (
        ScriptConfig.parse(of(program_arguments=("x",)).to_dict()).fingerprint
        == of(program_arguments=("x",)).fingerprint
    )
    other = ScriptStream(of(entry_class="B"), lease=None)  # type: ignore[arg-type]  # it is not asked here
    other.jobs.write(JobNote("j", one.program))
    with pytest.raises(InvalidArgument, match="entry_class: was changed"):
        other.run()


def test_a_jar_that_is_not_there_or_was_replaced_is_told(tmp_path: Path) -> None:
    jar = tmp_path / "a.jar"
    with pytest.raises(InvalidArgument, match="can't be read: No such file"):
        read_jar(str(jar))
    jar.write_bytes(b"new")
    given = {"script": "", "jar": str(jar), "jar_digest": digest_of(b"old")}
    replaced = ScriptStream(configured(tmp_path, **given), lease=None)  # type: ignore[arg-type]  # as above
    with pytest.raises(JarReplaced):
        replaced._submit_program("")
