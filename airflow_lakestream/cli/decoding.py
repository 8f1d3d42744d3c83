"""The options of commands that say how records are decoded: those of `config.decoding`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any

import typer

from airflow_lakestream.config.decoding import DECODING, Decoding
from airflow_lakestream.config.literals import refuse_templates

_HELP = {
    "schema_registry": "a URL, or an Airflow connection; default: kafka's",
    "writer_schemas": "as the operator's, one schema; may be repeated",
    "sql": "as the operator's, rendered",
}
Command = Callable[..., None]


def takes_decoding(when: str = "") -> Callable[[Command], Command]:
    """Give a command an option for each such argument; it gets those that were given as one mapping, `decoding`.

    :param when: what their help begins with.
    """

    def option(name: str, kind: Any) -> inspect.Parameter:
        told = typer.Option(f"--{name.replace('_', '-')}", help=when + _HELP.get(name, "as the operator's"))
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, told])

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [one for one in signature.parameters.values() if one.name != "decoding"]
        # Those that may be lists are given as often as one likes.
        options = [
            option(one.name, list[str] | None if "Sequence" in str(one.type) else str | None)
            for one in fields(Decoding)
        ]

        @functools.wraps(command)
        def taking(**kwargs: Any) -> None:
            given = {name: kwargs.pop(name) for name in DECODING}
            decoding = {name: value for name, value in given.items() if value not in (None, [])}
            refuse_templates(decoding)
            command(**kwargs, decoding=decoding)

        parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*own, *options)]
        taking.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        taking.__annotations__ = {one.name: one.annotation for one in parameters}
        return taking

    return decorate
