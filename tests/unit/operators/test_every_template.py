"""Each argument of each operator and sensor as a template of a DAG: a task renders it, or it is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.operators.kafka_extract_group import kafka_extract_group
from tests.support.every_template import INSTEAD, KINDS, OF_ANOTHER, accepted, arguments, made, templated


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


# By class: arguments that need another one, or take its place, and what is there besides.
TOGETHER: dict[str, tuple[tuple[str, ...], tuple[str, ...], dict[str, Any]]] = {
    "KafkaMirrorOperator": (("history_columns", "key"), ("topic", "table"), {"history": True}),
    "FlinkScriptOperator": (("jar", "entry_class", "program_arguments"), ("topic", "table"), {}),
    "SparkStreamingSubmitOperator": (("application",), ("topic", "table"), {}),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_arguments_that_need_another_are_rendered_with_it(name: str) -> None:
    names, needed, more = TOGETHER[name]
    kinds = arguments(KINDS[name])
    given = {one: templated(one, kinds[one]) for one in (*names, *needed) if one in kinds}
    with DAG("together", schedule=None) as dag:
        task = made(KINDS[name], {**given, **more})
    task.render_template_fields({"dag": dag, "ds": "2026-01-01", "run_id": "r", "params": {}})
    assert {*names} <= given.keys()
    texts = {one: json.dumps(getattr(task, one), default=str) for one in given}
    assert [one for one, text in texts.items() if "{{" in text or "2026-01-01" not in text] == []


def test_what_no_task_renders_is_refused_by_name() -> None:
    assert OF_ANOTHER - {"checkpoint_location", "stop_timeout"} <= {
        one for names, *_ in TOGETHER.values() for one in names
    }
    refused = {one for kind in KINDS.values() for one in arguments(kind).keys() - accepted(kind).keys()}
    assert refused == {"deferrable", "start_from_trigger", "every", "tasks", *INSTEAD, *OF_ANOTHER}
    with pytest.raises(InvalidArgument, match=r"^tasks: '\{\{ ds \}\}' is not a number of tasks"):
        kafka_extract_group("group", tasks="{{ ds }}", topic="t", table="lake.t")
