"""Random pipelines: what checks a file, what loads it and its JSON Schema agree on which are right."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from airflow_lakestream.cli.app import FAILED, run
from airflow_lakestream.pipelines import dags
from airflow_lakestream.pipelines import folder as pipeline_folder
from airflow_lakestream.pipelines.compiled import CompiledPipeline
from airflow_lakestream.pipelines.compiling import _models_in, compile_document
from airflow_lakestream.pipelines.dags import BROKEN, load_folder, make_dag
from airflow_lakestream.pipelines.flow import check_flow, record_flows
from airflow_lakestream.pipelines.folder import read_folder
from airflow_lakestream.pipelines.model import Pipeline, json_schema
from airflow_lakestream.pipelines.reading import looked_up, problems_of
from airflow_lakestream.pipelines.rules import contradictions
from airflow_lakestream.pipelines.yaml_file import PipelineError, read_document
from airflow_lakestream.transform.messages import NO_SELECT, NO_SQL
from tests.unit.pipelines.test_templates import CASES, keys

SCHEMA = jsonschema.Draft202012Validator(json_schema())
VARIABLES = {"N": "3", "NAME": "orders", "FORMAT": "json", "YES": "true", "ODD": "many", "TIME": "5m"}
VARIABLES |= {"URL": "https://u:secret@h", "LATE": "{{ ds }}"}
CONNECTIONS = {"c": {"conn_type": "kafka", "host": "orders"}, "d": {"conn_type": "http", "host": "https://u:secret@h"}}
LOOK = looked_up(VARIABLES.get, CONNECTIONS.get)
TEXTS = ["", "x", "a b", "lake.orders", "id", "60s", "5m", "99999999999d", "0", "3", "0.5", "-1", "true", "yes", "1_0"]
TEXTS += ["nan", " 3 ", "json", "avro", "raw", "csv", "reject", "earliest", "none", "add", "append", "replace"]
TEXTS += ["mirror", "upsert", "iceberg", "delta", "${N}", "${NAME}", "${FORMAT}", "${YES}", "${ODD}", "${TIME}"]
TEXTS += ["${A b}", "{{ ds }}", "{% x %}", "x" * 101, "y" * 300, "${URL}", "${LATE}", "${NAME}.${N}"]
TEXTS += ["${connection:c.host}", "${connection:d.host}", "${connection:e.host}", "nope:f", "log", "os.path:join"]
TEXTS += ["os:nothing", "https://u:secret@h", "0 * * * *", "@hourly", "continuous", "never", "2026-01-01", "day(ts)"]
TEXTS += ["bucket(0, id)", "/lake/orders", "s3://b/t", "SELECT 1", "\u202e"]
PLAIN = st.one_of(
    st.sampled_from(TEXTS), st.booleans(), st.none(), st.integers(-2, 5), st.sampled_from([0.5, -1.5, 10**12, 1e300])
)
VALUES = st.one_of(
    PLAIN,
    st.lists(PLAIN, max_size=3),
    st.dictionaries(
        st.sampled_from([*TEXTS[:8], "sql", "min", "password", "iceberg.catalog.token"]), PLAIN, max_size=2
    ),
)


@st.composite
def pipelines(draw: Any) -> dict[str, Any]:
    """Return a file of which some keys have other values."""
    name = draw(st.sampled_from(sorted(CASES)))
    content: dict[str, Any] = copy.deepcopy(CASES[name][0])
    known = sorted({path for path, _ in keys(Pipeline, content)}, key=str)
    for path in draw(st.lists(st.sampled_from(known), max_size=3)):
        here: Any = content
        for step in path[:-1]:
            if isinstance(here, dict):
                here = here.setdefault(step, {})
            elif isinstance(here, list) and isinstance(step, int) and step < len(here):
                here = here[step]
        if isinstance(here, dict):
            here[path[-1]] = draw(VALUES)
    return content


# What breaks a file, or makes other YAML of it.
SPOILERS = ["", "}", "{", "[", ",", ":", '"', "'", "\t", "\n", "\n- ", "# ", "&a ", "*a ", "<<: *a", "!!python/none "]
SPOILERS += ["%", "@", "---\n", "\x00", "\x85", "\u2028", "\ufeff", "${", "${N}", "{{ ds }}", "~", "0x1F", "1_0", "yes"]
SPOILERS += ["? "]


@st.composite
def files(draw: Any) -> str:
    """Return the text of a file; of some, pieces are replaced."""
    text = json.dumps(draw(pipelines()), indent=1)
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        start = draw(st.integers(0, len(text)))
        text = text[:start] + draw(st.sampled_from(SPOILERS)) + text[start + draw(st.integers(0, 3)) :]
    return text


# What a JSON Schema can't say, in the words of docs/pipelines.md; each with a file that only the rule refuses.
PLAIN_FILE = CASES["PLAIN extract"][0]
ROWS = {"name": "rows", "type": "sql_transform", "input": "orders"}
UNSEEN: dict[str, dict[str, Any]] = {
    "YAML and variables": {"metadata": {"owner": "${A_PASSWORD}"}},
    "the value of a variable": {"orchestration": {"parallelism": "${ODD}"}},
    "the way of records": {"transformations": [{**ROWS, "sql": "SELECT 1 AS one"}]},
    "keys that exclude each other": {"orchestration": {"engine": "spark", "idle_timeout": 5}},
    "the form of a text": {"orchestration": {"checkpoint_interval": "60 parsecs"}},
    "DDL and SQL": {"transformations": [{**ROWS, "sql": "SELECT nobody FROM {{ input }}"}]},
    "Python and Airflow": {"orchestration": {"alerts": {"on_failure": "nope:f"}}},
}


def refusing(text: str) -> str:
    """Return what refuses a file, by a name of `UNSEEN` or as "keys and values"; nothing where all take it."""
    try:
        document = read_document("p.yaml", text, LOOK)
    except PipelineError:
        return "YAML and variables"
    try:
        pipeline = Pipeline.model_validate(document.content)
    except ValidationError:
        return "keys and values" if is_of_model(text) is False else "the value of a variable"
    if check_flow(document, pipeline):
        return "the way of records"
    if list(contradictions(document, pipeline, record_flows(pipeline))):
        return "keys that exclude each other"
    try:
        compiled = compile_document(document)
    except PipelineError:
        return "the form of a text"
    if problems_of(compiled):
        return "DDL and SQL"
    try:
        make_dag(compiled)
    except PipelineError:
        return "Python and Airflow"
    return ""


def as_seen(text: str) -> Any:
    """Return what a file says without its variables. To YAML 1e+300 is a text."""
    return read_document("p.yaml", text, "${{{}}}".format).content


def is_of_model(text: str) -> bool | None:
    """Tell whether keys and values are right as they stand; None where a variable or a number in quotes hides it."""
    if re.search(r'\$\{|"[-+]?[0-9.]+"', text):
        return None
    try:
        Pipeline.model_validate(as_seen(text))
    except ValidationError:
        return False
    return True


def verdicts(text: str, folder: Path) -> tuple[bool, bool, bool]:
    """Return whether the command takes a file, whether a folder with it loads it, and whether the folder is right."""
    file = folder / "pipelines" / "p.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    is_valid = run(["pipeline", "validate", str(file)]) == 0
    # The DAG of maintenance, also of an earlier version, is beside.
    [dag] = [one for name, one in load_folder(file.parent).items() if not name.endswith("-maintenance")]
    try:
        load_folder(file.parent, strict=True)
        is_right = True
    except PipelineError as error:
        is_right = False
        assert all(one.file == "p.yaml" for one in error.problems)  # noqa: PT017  # most are taken
        assert BROKEN in dag.tags
        # Beside other mistakes only the command checks whether SQL is any.
        shown = [one for one in error.problems if NO_SQL not in one.text and NO_SELECT not in one.text]
        assert all(str(one) in dag.doc_md for one in shown or error.problems)  # noqa: PT017  # most are taken
    return is_valid, BROKEN not in dag.tags, is_right


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give a folder for files; Airflow's variables are those of the test."""
    home = tmp_path_factory.mktemp("agreement")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("AIRFLOW_HOME", str(home))
        # On a machine that is busy.
        patched.setattr(pipeline_folder, "_ENOUGH", 300.0)
        patched.setattr(dags, "_PATIENCE", 300.0)
        for name, value in VARIABLES.items():
            patched.setenv(f"AIRFLOW_VAR_{name}", value)
        for name, fields in CONNECTIONS.items():
            patched.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(fields))
        yield home


@given(text=files())
def test_the_command_load_and_the_json_schema_say_the_same(text: str, home: Path) -> None:
    refused = refusing(text)
    assert verdicts(text, home) == (not refused,) * 3, refused
    try:
        is_of_schema = SCHEMA.is_valid(as_seen(text))
    except PipelineError:
        # An editor sees that this is no YAML.
        assert refused == "YAML and variables"
        return
    # An editor sees a variable, and not what it holds; of a number in quotes it sees that it is one.
    assert is_of_schema or refused
    if is_of_schema:
        assert refused in {"", *UNSEEN}
    if (known := is_of_model(text)) is not None:
        assert is_of_schema is known


@pytest.mark.parametrize("what", UNSEEN)
def test_what_a_json_schema_can_not_say_is_one_of_these(what: str, home: Path) -> None:
    content = {**copy.deepcopy(PLAIN_FILE), **UNSEEN[what]}
    if "name" not in content["metadata"]:
        content["metadata"]["name"] = "plain"
    text = json.dumps(content)
    assert SCHEMA.is_valid(content)
    assert refusing(text) == what
    assert verdicts(text, home) == (False, False, False)
    assert f"| {what} |" in Path("docs/pipelines.md").read_text()


def test_a_statement_is_looked_at_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    monkeypatch.setattr(pipeline_folder, "problems_within", lambda _, one: looked.append(one.name))
    folder = home / "twice"
    folder.mkdir()
    (folder / "a.yaml").write_text(json.dumps(PLAIN_FILE))
    found = [read_folder(folder, LOOK, home / "twice.json", patience=patience) for patience in (0, 3, 3)]
    # Nobody could tell, so that each call tries.
    assert looked == ["plain", "plain"]
    monkeypatch.setattr(pipeline_folder, "problems_within", lambda _, one: [looked.append(one.name)][1:])
    found += [read_folder(folder, LOOK, home / "twice.json", patience=3) for _ in range(2)]
    assert looked == ["plain"] * 3
    assert all(one.wrong == () for one in found)


def test_what_takes_too_long_is_left_to_the_run_and_to_the_command(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def late(_: float, one: CompiledPipeline) -> None:
        looked.append(one.name)
        raise TimeoutError

    monkeypatch.setattr(pipeline_folder, "problems_within", late)
    folder = home / "late"
    folder.mkdir()
    (folder / "a.yaml").write_text(json.dumps({**PLAIN_FILE, **UNSEEN["DDL and SQL"]}))
    found = [read_folder(folder, LOOK, home / "late.json", patience=3) for _ in range(4)]
    # The machine may have been busy: it is tried once more.
    assert (looked, [one.wrong for one in found]) == (["plain"] * 2, [()] * 4)
    for patience in (None, 3):
        [broken] = read_folder(folder, LOOK, home / "late.json", patience=patience).wrong
        assert "nobody" in broken.problems[0].text


MISTAKES = [
    ({"metadata": {"version": "1" * 100}}, "metadata.version"),
    ({"metadata": {"tags": ["t" * 101]}}, "metadata.tags"),
    ({"metadata": {"owner": "o" * 501}}, "metadata.owner"),
    ({"orchestration": {"pool": "p" * 257}}, "orchestration.pool"),
    ({"orchestration": {"schedule": "0 0 31 2 *"}}, "'0 0 31 2 *' is not a cron expression"),
    ({"orchestration": {"retry_delay": "99999999999d"}}, "more than three hundred years"),
    ({"orchestration": {"retries": True}}, "true is not a number"),
    ({"orchestration": {"parallelism": True}}, "true is not a number"),
    ({"quality": {"checks": {"row_count": {"min": True}}}}, "true is not a number"),
    ({"orchestration": {"alerts": {"on_failure": "nope:f"}}}, "nope:f can't be imported"),
    (
        {"orchestration": {"engine": "connect", "connect": {"config": {"iceberg.catalog.token": "abc"}}}},
        "holds a secret",
    ),
]


@pytest.mark.parametrize(("more", "said"), MISTAKES)
def test_validate_says_what_load_would_with_file_and_line(
    more: dict[str, Any], said: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    content = copy.deepcopy(CASES["PLAIN extract"][0])
    for part, told in more.items():
        content[part] = {**content.get(part, {}), **told}
    file = tmp_path / "p.yaml"
    file.write_text(json.dumps(content, indent=1))
    assert run(["pipeline", "validate", str(file)]) == FAILED
    err = capsys.readouterr().err
    assert said in err
    assert "p.yaml:" in err


def parts_of(part: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield each key of the model, with the path of the part that has it."""
    for name, field in part.model_fields.items():
        yield path, (key := field.alias or name)
        named = {"sources": ("orders",), "sinks": ("lake",)}.get(key, ())
        for below in _models_in(field.annotation) if key not in ("sensors", "transformations") else ():
            yield from parts_of(below, (*path, key, *named))


@pytest.mark.parametrize("odd", [True, 1.5, [1], {"str": 1}], ids=str)
def test_a_mistake_is_named_by_the_keys_as_the_file_has_them(odd: Any) -> None:
    for path, key in parts_of(Pipeline):
        content = copy.deepcopy(PLAIN_FILE)
        here = content
        for step in path:
            here = here.setdefault(step, {})
        here[key] = odd
        try:
            compile_document(read_document("f", json.dumps(content), LOOK), None)
        except PipelineError as error:
            of_key = [one.text for one in error.problems if one.text.startswith(".".join((*path, key)))]
            # Members of a union are no keys, and are not named one by one.
            assert not any("function-" in one or "[" in one.partition(":")[0] for one in of_key), of_key
            assert len({one.partition(":")[0] for one in of_key}) == len(of_key), of_key
            assert not any(re.match(r"[\w.]+\.(str|int|float):", one) for one in of_key if odd != {"str": 1}), of_key


def test_the_key_of_a_sensor_may_have_the_name_of_its_type() -> None:
    sensors = {"late": {"type": "lag", "lag": 5, "max_lag_seconds": [2]}}
    with pytest.raises(PipelineError) as caught:
        compile_document(read_document("f", json.dumps({**PLAIN_FILE, "orchestration": {"sensors": sensors}}), LOOK))
    key, value = (one.text for one in caught.value.problems)
    assert key.startswith("orchestration.sensors.late.lag: there is no such key.")
    assert value == "orchestration.sensors.late.max_lag_seconds: [2] is neither a number nor a text."


SHIPPED = {**ROWS, "sql": "SELECT TIMESTAMP '2026-01-01' AS shipped_at, 1::DOUBLE AS weight FROM {{ input }}"}
# A setting that names columns, its value, and the problem.
MISSING = [
    ("sinks.lake.partition_by", ["days(shipped)"], "no column 'shipped'. Did you mean 'shipped_at'?"),
    ("sinks.lake.partition_by", ["weight"], "a double makes no partitions"),
    ("sinks.lake.sort_order", ["wieght desc"], "no column 'wieght'. Did you mean 'weight'?"),
    ("quality.checks.not_null", ["shipped"], "no column 'shipped'"),
    ("quality.checks.unique", ["weight", "id"], "no column 'id'"),
    ("quality.checks.sql", ["SELECT * FROM landing WHERE id IS NULL"], '"id" not found'),
]


def of_shipments(path: str, value: Any, **more: Any) -> dict[str, Any]:
    """Return a pipeline whose SQL makes the columns shipped_at and weight, with one more setting."""
    content = {**copy.deepcopy(PLAIN_FILE), "transformations": [SHIPPED], **more}
    here = content
    *steps, last = path.split(".")
    for step in steps:
        here = here.setdefault(step, {})
    here[last] = value
    return content


@pytest.mark.parametrize(("path", "value", "said"), MISSING)
def test_columns_that_the_sql_does_not_make_are_refused_by_validate_plan_and_load(
    path: str, value: Any, said: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = json.dumps(of_shipments(path, value), indent=1)
    assert verdicts(text, home) == (False, False, False)
    [line] = [n for n, one in enumerate(text.splitlines(), 1) if f'"{path.rpartition(".")[2]}": [' in one]
    capsys.readouterr()
    for command in ("validate", "plan"):
        assert run(["pipeline", command, str(home / "pipelines" / "p.yaml")]) == FAILED
        err = capsys.readouterr().err
        assert f"p.yaml:{line}:" in err
        assert f"{path}: " in err
        assert said in err


@pytest.mark.parametrize("sink", [{"type": "delta", "table": "/lake/orders"}, {"mode": "replace"}])
def test_columns_are_compared_for_each_table_format_and_mode(sink: dict[str, Any]) -> None:
    lake = {**PLAIN_FILE["sinks"]["lake"], **sink}
    file = of_shipments("sinks.lake.sort_order", ["shipped"], sinks={"lake": lake})
    file["orchestration"] = {"schedule": "@daily"}
    [problem] = problems_of(compile_document(read_document("p.yaml", json.dumps(file), LOOK)))
    assert "no column 'shipped'. Did you mean 'shipped_at'?" in problem.text


@pytest.mark.parametrize(
    "more",
    [
        {"sort_order": ["shipped_at", "_kafka_offset"]},
        {"sort_order": ["shipped"], "transformations": []},
        {"sort_order": ["{{ params.column }}"]},
        {"sort_order": ["_kafka_key"], "metadata_columns": ["offset", "{{ params.column }}"]},
    ],
    ids=["of the record's place", "of records", "of a template", "of a template among the metadata columns"],
)
def test_columns_that_only_a_run_knows_are_left_to_it(more: dict[str, Any]) -> None:
    file = of_shipments("sinks.lake.sort_order", more["sort_order"])
    file["transformations"] = more.get("transformations", file["transformations"])
    if "metadata_columns" in more:
        file["sinks"]["lake"]["metadata_columns"] = more["metadata_columns"]
    assert problems_of(compile_document(read_document("p.yaml", json.dumps(file), LOOK))) == []
