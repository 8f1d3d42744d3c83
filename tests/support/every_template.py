"""The operators and sensors of the provider, and each of their arguments that takes a template."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from airflow.providers.common.compat.sdk import BaseOperator
from airflow.sdk import DAG, Asset

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.get_provider_info import get_provider_info

SQL = "SELECT '{{ ds }}' AS day FROM {{ input }}"
# Of what has no default, and of a class that takes one of several: without these there is no task.
NEEDED = (
    *("topic", "table", "tables", "since", "share", "pieces", "app", "script", "max_age", "connector", "config"),
    *("tag", "landing"),
)
INSTEAD = {"jar": "script", "application": "app"}
# Arguments that need `jar` or `history`, and those that Kafka Connect's operator refuses: Connect keeps the offsets.
OF_ANOTHER = {"entry_class", "program_arguments", "history_columns", "checkpoint_location", "stop_timeout"}
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


def parameters(kind: Any) -> dict[str, inspect.Parameter]:
    """Return the arguments of a class, without Airflow's own."""
    found: dict[str, inspect.Parameter] = {}
    for one in kind.__mro__[: kind.__mro__.index(BaseOperator)]:
        if "__init__" in vars(one) and not one.__module__.startswith("airflow.sdk"):
            signature = inspect.signature(vars(one)["__init__"]).parameters.values()
            found = {p.name: p for p in signature if p.kind is p.KEYWORD_ONLY} | found
    return found


def arguments(kind: Any) -> dict[str, str]:
    """Return the arguments of a class, without Airflow's own, and their annotations."""
    return {name: str(one.annotation) for name, one in parameters(kind).items()}


def defaults(kind: Any) -> dict[str, str]:
    """Return what a form has for each argument that nobody has filled in."""
    given = {name: one.default for name, one in parameters(kind).items()}
    return {name: str(one) if isinstance(one, str | int | float) else "" for name, one in given.items()}


def templated(name: str, annotation: str, text: str = "") -> Any:
    """Return a template, of the kind that the argument takes.

    :param text: another template than the usual one.
    """
    text = text or (SQL if name == "sql" else "{{ ds }}")
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
                refused = error.argument
            else:
                refused, found[name] = name, value
            assert refused == name, (kind, name)
    assert found.keys() <= {*kind.template_fields}, kind
    return {name: value for name, value in found.items() if name not in INSTEAD}
