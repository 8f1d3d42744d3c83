"""Each argument of each operator and sensor as a template of a DAG: a task renders it, or it is refused by name."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import BaseOperator
from airflow.sdk import DAG, Asset

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.get_provider_info import get_provider_info
from airflow_lakestream.operators.kafka_extract_group import kafka_extract_group

SQL = "SELECT '{{ ds }}' AS day FROM {{ input }}"
# Of what has no default, and of a class that takes one of several: without these there is no task.
NEEDED = ("topic", "table", "since", "share", "pieces", "app", "script", "max_age", "connector", "config")
INSTEAD = {"jar": "script", "application": "app"}
# What goes with `jar` alone; what Connect, which keeps a connector's place itself, refuses whatever it is.
OF_ANOTHER = {"entry_class", "program_arguments", "checkpoint_location", "stop_timeout"}
# What is no template in any case, as Airflow has to know it without a run.
GIVEN: dict[str, dict[str, Any]] = {
    "AssetPartitionsOperator": {"outlets": [Asset("made")]},
    "PlanSharesOperator": {"tasks": 2},
}


def kinds() -> Iterator[type[BaseOperator]]:
    """Yield the classes of the provider that make tasks."""
    info = get_provider_info()
    for part in (*info["operators"], *info["sensors"]):
        for name in part["python-modules"]:
            for one in vars(import_module(name)).values():
                if isinstance(one, type) and issubclass(one, BaseOperator) and one.__module__ == name:
                    yield one


KINDS = {one.__name__: one for one in kinds() if not one.__name__.startswith("_")}


def arguments(kind: Any) -> dict[str, str]:
    """Return the arguments of a class, without Airflow's own, and their annotations."""
    found: dict[str, str] = {}
    for one in kind.__mro__[: kind.__mro__.index(BaseOperator)]:
        if "__init__" in vars(one) and not one.__module__.startswith("airflow.sdk"):
            parameters = inspect.signature(vars(one)["__init__"]).parameters.values()
            found = {p.name: str(p.annotation) for p in parameters if p.kind is p.KEYWORD_ONLY} | found
    return found


def templated(name: str, annotation: str) -> Any:
    """Return a template, of the kind that the argument takes."""
    text = SQL if name == "sql" else "{{ ds }}"
    if "str" in annotation.split("[")[0] or " | str" in annotation:
        return text
    return {"name": text} if "Mapping" in annotation else [text] if "Sequence" in annotation else text


def made(kind: Any, given: dict[str, Any]) -> Any:
    """Make a task."""
    return kind(task_id=kind.__name__, **{**GIVEN.get(kind.__name__, {}), **given})


def accepted(kind: Any) -> dict[str, Any]:
    """Return the arguments that take a template: those that are refused by name do not."""
    given = GIVEN.get(kind.__name__, {})
    every = {name: templated(name, kind_of) for name, kind_of in arguments(kind).items() if name not in given}
    found = {}
    for name, value in every.items():
        needed = {one: every[one] for one in NEEDED if one in every and one != INSTEAD.get(name)}
        with DAG("one", schedule=None):
            try:
                made(kind, {**needed, name: value})
            except InvalidArgument as error:
                assert error.argument == name, (kind, name, str(error))  # noqa: PT017  # most are taken
            else:
                found[name] = value
    assert found.keys() <= {*kind.template_fields}, kind
    return {name: value for name, value in found.items() if name not in INSTEAD}


def make(name: str, *, native: bool) -> DAG:
    with DAG(name, schedule=None, render_template_as_native_obj=native) as dag:
        for kind in KINDS.values():
            made(kind, accepted(kind))
    return dag


@pytest.mark.parametrize("native", [False, True])
def test_a_template_of_a_dag_is_rendered_by_its_task(native: bool) -> None:
    dag = make("templates", native=native)
    assert len(dag.tasks) == len(KINDS) > 10
    for task in dag.tasks:
        given = set(accepted(KINDS[task.task_id]))
        task.render_template_fields({"dag": dag, "ds": "2026-01-01", "run_id": "r", "params": {}})
        told = {name: getattr(task, name) for name in given}
        assert [name for name, one in told.items() if "{{ ds }}" in json.dumps(one, default=str)] == [], task.task_id
        assert len(told) > 3


def test_what_no_task_renders_is_refused_by_name() -> None:
    refused = {one for kind in KINDS.values() for one in arguments(kind).keys() - accepted(kind).keys()}
    assert refused == {"deferrable", "start_from_trigger", "every", "tasks", *INSTEAD, *OF_ANOTHER}
    with pytest.raises(InvalidArgument, match=r"^tasks: '\{\{ ds \}\}' is not a number of tasks"):
        kafka_extract_group("group", tasks="{{ ds }}", topic="t", table="lake.t")
