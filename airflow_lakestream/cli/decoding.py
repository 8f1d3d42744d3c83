"""Command-line options for the decoding of records: the arguments of `config.decoding`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from airflow_lakestream.config.decoding import DECODING, DecodingSettings
from airflow_lakestream.config.literals import refuse_templates
from airflow_lakestream.config.setting import Setting
from airflow_lakestream.config.settings import SETTINGS
from airflow_lakestream.exceptions import InvalidArgument


def one_of(kind: type[StrEnum], but: str = "") -> str:
    """Return the choices of an option for the help text, the last choice behind `or`.

    :param but: a choice to leave out.
    """
    names = [str(one) for one in kind if one != but]
    return f"{', '.join(names[:-1])} or {names[-1]}"


Command = Callable[..., None]


def takes_decoding(when: str = "") -> Callable[[Command], Command]:
    """Give a command an option for each decoding argument.

    The command gets the given options, without templates, as a mapping: its keyword argument `decoding`. A file named
    by `--sql` is read.

    :param when: the beginning of the options' help.
    """

    def option(name: str, kind: Any) -> inspect.Parameter:
        info = typer.Option(f"--{name.replace('_', '-')}", help=when + _help_of(SETTINGS[name]))
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, info])

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [one for one in signature.parameters.values() if one.name != "decoding"]
        # Options of lists may be repeated.
        options = [
            option(one.name, list[str] | None if "Sequence" in str(one.type) else str | None)
            for one in fields(DecodingSettings)
        ]

        @functools.wraps(command)
        def wrapper(**kwargs: Any) -> None:
            given = {name: kwargs.pop(name) for name in DECODING}
            given["sql"] = _statement(given["sql"])
            decoding = {name: value for name, value in given.items() if value not in (None, [])}
            refuse_templates(decoding)
            command(**kwargs, decoding=decoding)

        parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*own, *options)]
        # mypy does not support functions with an assigned signature.
        wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # Typer reads it
        wrapper.__annotations__ = {one.name: one.annotation for one in parameters}
        return wrapper

    return decorate


def _help_of(setting: Setting) -> str:
    """Return an option's help: the summary, and all choices."""
    choices = f": {one_of(setting.kind)}" if isinstance(setting.kind, type) else ""
    return f"{setting.summary[:1].lower()}{setting.summary[1:]}{choices}"


def _statement(given: str | None) -> str | None:
    """Return the given SQL, or the content of the named file if the text ends with .sql, like the operators.

    Raises InvalidArgument for an unreadable file.
    """
    if given is None or not given.strip().endswith(".sql"):
        return given
    try:
        return Path(given.strip()).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidArgument(
            "--sql", f"{given!r} can't be read ({reason}).", "Name a file, or give the SELECT."
        ) from None
