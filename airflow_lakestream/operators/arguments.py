"""Arguments of operators: names of templated arguments, and arguments for decoding records."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from airflow_lakestream.config.decoding import DecodingSettings
from airflow_lakestream.config.literals import check_literals
from airflow_lakestream.core.formats import ValueFormat
from airflow_lakestream.core.policies import TableFormat
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.operators.sql_template import check_written_out
from airflow_lakestream.registry.config import refuse_secrets

Init = Callable[..., None]


def templated(init: Init, *but: str) -> Sequence[str]:
    """Return the names of an operator's own templated arguments.

    These are the keyword-only parameters of `init`, except the names in `but`.
    """
    parameters = inspect.signature(init).parameters.values()
    return tuple(one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.name not in but)


def check_written_flags(**given: object) -> None:
    """Refuse a value except True or False in arguments without rendering.

    :param given: the arguments by name.

    Raises InvalidArgument.
    """
    for name, value in given.items():
        if not isinstance(value, bool):
            problem = f"{value!r} is neither True nor False, and no task renders this argument."
            raise InvalidArgument(name, problem, "Write True or False.")


def extras_of(operator: Any) -> Sequence[str]:
    """Return the extras needed by the formats of a landing, from an operator's rendered arguments."""
    formats = {operator.format, getattr(operator, "key_format", None)}
    return [
        *(("delta",) if getattr(operator, "table_format", None) == TableFormat.DELTA else ()),
        *(("protobuf",) if ValueFormat.PROTOBUF in formats else ()),
    ]


def takes_decoding(init: Init) -> Init:
    """Decorate an operator's `__init__`: add the arguments of `config.decoding`, set as attributes.

    The arguments are part of the new signature, so that Airflow finds them in `default_args`. They are checked where
    the DAG is parsed: InvalidArgument is raised for a secret, or a value that can't work.

    :param init: an `__init__` with keyword-only parameters, and `**kwargs` as the last parameter.
    """
    keyword = inspect.Parameter.KEYWORD_ONLY
    options = {
        one.name: inspect.Parameter(one.name, keyword, default=one.default, annotation=one.type)
        for one in fields(DecodingSettings)
    }
    signature = inspect.signature(init)
    *own, rest = signature.parameters.values()

    @functools.wraps(init)
    def taking(self: Any, **kwargs: Any) -> None:
        given = {name: kwargs.pop(name, one.default) for name, one in options.items()}
        init(self, **kwargs)
        # As early as possible, before a DAG with a secret in it is stored anywhere.
        refuse_secrets(given["schema_registry"] or "")
        check_written_out(given["sql"], given["sql_input"])
        for name, value in given.items():
            setattr(self, name, value)
        check_literals({name: getattr(self, name) for name in templated(taking)})

    # mypy does not know that a function may have a signature attribute.
    taking.__signature__ = signature.replace(parameters=[*own, *options.values(), rest])  # type: ignore[attr-defined]
    return taking
