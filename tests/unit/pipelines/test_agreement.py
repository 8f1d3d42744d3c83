"""Random pipelines: what checks a file, what loads it and its JSON Schema agree on which are right."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from airflow_lakestream.pipelines.check import check
from airflow_lakestream.pipelines.compiling import compile_document
from airflow_lakestream.pipelines.dags import make_dag
from airflow_lakestream.pipelines.errors import PipelineError
from airflow_lakestream.pipelines.model import Pipeline, json_schema
from airflow_lakestream.pipelines.variables import looked_up
from airflow_lakestream.pipelines.yaml_file import read_document
from tests.unit.pipelines.test_templates import CASES, keys

SCHEMA = jsonschema.Draft202012Validator(json_schema())
VARIABLES = {"N": "3", "NAME": "orders", "FORMAT": "json", "YES": "true", "ODD": "many", "TIME": "5m"}
LOOK = looked_up(VARIABLES.get, lambda _: None)
TEXTS = [
    "",
    "x",
    "a b",
    "lake.orders",
    "id",
    "60s",
    "5m",
    "99999999999d",
    "0",
    "3",
    "0.5",
    "-1",
    "true",
    "json",
    "avro",
]
TEXTS += ["raw", "csv", "reject", "earliest", "none", "add", "append", "replace", "mirror", "iceberg", "delta", "${N}"]
TEXTS += ["${NAME}", "${FORMAT}", "${YES}", "${ODD}", "${TIME}", "${NONE}", "{{ ds }}", "{% x %}", "x" * 101, "y" * 300]
TEXTS += [
    "nope:f",
    "log",
    "os.path:join",
    "os:nothing",
    "https://u:secret@h",
    "0 * * * *",
    "@hourly",
    "continuous",
    "never",
]
TEXTS += ["2026-01-01", "day(ts)", "bucket(0, id)", "/lake/orders", "s3://b/t", "SELECT 1", "\u202e"]
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


def filled(value: Any) -> Any:
    """Return a file's content with its variables; what there is none of stays."""
    if isinstance(value, dict):
        return {key: filled(one) for key, one in value.items()}
    if isinstance(value, list):
        return [filled(one) for one in value]
    if isinstance(value, str):
        for name, one in VARIABLES.items():
            value = value.replace(f"${{{name}}}", one)
    return value


@given(pipelines())
def test_what_validate_takes_is_loaded_and_what_is_loaded_fits_the_schema(content: dict[str, Any]) -> None:
    text = json.dumps(content, indent=1)
    # As YAML has it, to which 1e+300 is a text.
    content = read_document("p.yaml", text, "${{{}}}".format).content
    is_of_schema = SCHEMA.is_valid(content)
    try:
        Pipeline.model_validate(filled(content))
        is_of_model = True
    except ValidationError:
        is_of_model = False
    # An editor sees a variable, and not what it holds; of a number in quotes it sees that it is one.
    assert is_of_schema or not is_of_model
    if not re.search(r'\$\{|"([-+]?[0-9.]+|true)"', text):
        assert is_of_schema is is_of_model
    try:
        compiled = compile_document(read_document("p.yaml", text, LOOK))
    except PipelineError as error:
        assert all((one.line, one.file) != (0, "p.yaml") for one in error.problems)  # noqa: PT017
        return
    assert is_of_schema
    try:
        check(compiled)
        is_checked = True
    except PipelineError:
        is_checked = False
    try:
        make_dag(compiled)
        is_loaded = True
    except PipelineError as error:
        is_loaded = False
        assert all(one.line > 0 for one in error.problems)  # noqa: PT017
    # `validate` does both; DDL and SQL are left to it and to the run, since a parse of DAG files can't wait for them.
    assert is_loaded or not is_checked or "on_failure" in text or "on_deadline" in text or _only_airflow(compiled)


def _only_airflow(compiled: Any) -> bool:
    """Tell whether only Airflow itself, or an operator, refuses it: `validate` asks them, too."""
    with pytest.raises(PipelineError) as caught:
        make_dag(compiled)
    return all(one.line > 0 for one in caught.value.problems)


MISTAKES = [
    ({"metadata": {"version": "1" * 100}}, "metadata.version"),
    ({"metadata": {"tags": ["t" * 101]}}, "metadata.tags"),
    ({"orchestration": {"retry_delay": "99999999999d"}}, "more than three hundred years"),
    ({"orchestration": {"retries": True}}, "true is no number"),
    ({"orchestration": {"parallelism": True}}, "true is no number"),
    ({"quality": {"checks": {"row_count": {"min": True}}}}, "true is no number"),
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
    from airflow_lakestream.cli.app import FAILED, run

    content = copy.deepcopy(CASES["PLAIN extract"][0])
    for part, told in more.items():
        content[part] = {**content.get(part, {}), **told}
    file = tmp_path / "p.yaml"
    file.write_text(json.dumps(content, indent=1))
    assert run(["pipeline", "validate", str(file)]) == FAILED
    err = capsys.readouterr().err
    assert said in err
    assert "p.yaml:" in err
