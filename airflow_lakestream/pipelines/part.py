"""Parts of a pipeline's file: base class and field types of the model, and operator arguments from several parts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, create_model

from airflow_lakestream.config.setting import SettingKind, SettingSection
from airflow_lakestream.config.settings import SETTINGS
from airflow_lakestream.core.policies import seconds
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.pipelines.compiled import WHOLE_PART
from airflow_lakestream.pipelines.yaml_file import Path, PipelineError, YamlDocument

SomePart = TypeVar("SomePart", bound="Part")
# Names of fields that differ from the argument's name.
RENAMED = {"schema_": "schema", "properties": "table_properties"}
NAME = r"^[A-Za-z_][A-Za-z0-9_-]{0,99}$"


def listed(value: Any) -> Any:
    """Return a single text as a list, any other value unchanged."""
    return [value] if isinstance(value, str) else value


# Values of a variable or in quotes; the JSON Schema has the same patterns.
NUMBER = r"^\s*[-+]?[0-9]+(\.[0-9]+)?\s*$"
FLAG = r"^([Tt]rue|[Ff]alse|[Yy]es|[Nn]o|[Oo]n|[Oo]ff|TRUE|FALSE|YES|NO|ON|OFF)$"


def _number(value: Any) -> Any:
    # Python takes true for 1, and pydantic "1_0" and "nan" for numbers.
    if isinstance(value, bool) or (isinstance(value, str) and not re.search(NUMBER, value, re.ASCII)):
        raise ValueError(f"{str(value).lower()} is not a number")
    return value


def _flag(value: Any) -> Any:
    if not isinstance(value, bool) and not (isinstance(value, str) and re.search(FLAG, value)):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _or_text(number: str) -> BeforeValidator:
    """Return a check of a value before a union's members, whose errors would name pydantic's functions."""

    def refuse(value: Any) -> Any:
        is_fit = isinstance(value, str | int | float) and not isinstance(value, bool)
        if not is_fit or (isinstance(value, float) and number == "whole number" and not value.is_integer()):
            shown = str(value).lower() if isinstance(value, bool) else repr(value)
            raise ValueError(f"{shown} is neither a {number} nor a text")
        return value

    return BeforeValidator(refuse)


WholeNumber = Annotated[int, BeforeValidator(_number)]
Number = Annotated[float, BeforeValidator(_number)]
NumberOrText = Annotated[WholeNumber | Number | str, _or_text("number")]
WholeNumberOrText = Annotated[WholeNumber | str, _or_text("whole number")]
# Bounds are set here: pydantic would leave out the bounds of a nullable field in the JSON Schema.
FromZero = Annotated[int, Field(ge=0), BeforeValidator(_number)]
FromOne = Annotated[int, Field(ge=1), BeforeValidator(_number)]
NumberFromZero = Annotated[float, Field(ge=0), BeforeValidator(_number)]
Flag = Annotated[bool, BeforeValidator(_flag)]
Named = Annotated[str, Field(pattern=NAME)]


def _listed(**one: Any) -> WithJsonSchema:
    """Return the JSON Schema of a list of texts, or of a single text in place of the list.

    :param one: restrictions of each text.
    """
    # A variable may be longer than its value.
    item = {"anyOf": [{"type": "string", **one}, {"type": "string", "pattern": r"\$\{"}]} if one else {"type": "string"}
    return WithJsonSchema({"anyOf": [{"type": "array", "items": item}, item]})


Names = Annotated[list[str], BeforeValidator(listed), _listed()]
# As many characters as Airflow keeps.
_TAG = 100
Tags = Annotated[list[Annotated[str, Field(max_length=_TAG)]], BeforeValidator(listed), _listed(maxLength=_TAG)]
# `log`, or module:function.
FUNCTION = r"^(log|[A-Za-z_][\w.]*:[A-Za-z_]\w*)$"
Functions = Annotated[list[Annotated[str, Field(pattern=FUNCTION)]], BeforeValidator(listed), _listed(pattern=FUNCTION)]
# Airflow and the operators read a number of seconds, or a text such as "60s".
Duration = Annotated[
    str | Number, _or_text("number"), Field(description='seconds, or a text such as "60s", "5m", "3d"')
]


class Part(BaseModel):
    """A part of a pipeline's file: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=False)


_TYPES: Mapping[SettingKind, Any] = {
    SettingKind.TEXT: str,
    SettingKind.NAMES: Names,
    SettingKind.MAPPING: dict[str, str],
    SettingKind.FLAG: Flag,
    SettingKind.COUNT: FromOne,
    SettingKind.SIZE: WholeNumberOrText,
    SettingKind.SECONDS: Duration,
    SettingKind.MOMENT: WholeNumberOrText,
    SettingKind.LIMIT: NumberOrText,
}


def with_settings(*sections: SettingSection) -> Callable[[type[SomePart]], type[SomePart]]:
    """Return a decorator that adds a key for each setting of some sections, except for keys that the part has."""

    def decorate(part: type[SomePart]) -> type[SomePart]:
        own = {RENAMED.get(name, name) for name in part.model_fields}
        keys: dict[str, Any] = {
            one.name: (_TYPES[one.kind] if isinstance(one.kind, SettingKind) else one.kind, one.text())
            for one in SETTINGS.values()
            if one.section in sections and one.name not in own
        }
        fields: Any = {
            name: (kind | None, Field(default=None, description=text)) for name, (kind, text) in keys.items()
        }
        # mypy can't distinguish fields from the arguments with underscores.
        create: Any = create_model
        made: type[SomePart] = create(
            part.__name__, __base__=part, __doc__=part.__doc__, __module__=part.__module__, **fields
        )
        return made

    return decorate


class ArgumentCollector:
    """Arguments by the operators' names (`values`), and the path of each in the file (`paths`).

    :param path: the part of the file for errors that are not about an argument.
    """

    def __init__(self, path: Path) -> None:
        self.values: dict[str, Any] = {}
        self.paths: dict[str, Path] = {WHOLE_PART: path}

    def take(self, part: BaseModel, path: Path, *but: str) -> None:
        """Add the keys that the file sets in a part, under the operators' names.

        :param part: the part of the pipeline's model.
        :param path: the path of the part in the file.
        :param but: field names to leave out.
        """
        for name in type(part).model_fields:
            if name not in but and name in part.model_fields_set:
                key = type(part).model_fields[name].alias or name
                self.add(RENAMED.get(name, name), getattr(part, name), (*path, key))

    def add(self, name: str, value: Any, path: Path) -> None:
        """Add an argument, or replace its value; None adds nothing. The path of an argument's first value stays."""
        if value is not None:
            self.values[name] = plain(value)
            self.paths.setdefault(name, path)

    def drop(self, name: str) -> None:
        """Remove an argument, if it is there. Its path stays, for errors about it."""
        self.values.pop(name, None)

    def to_fields(self, document: YamlDocument) -> dict[str, Any]:
        """Return the fields of `FileArguments`: values, positions and keys of the arguments."""
        return {
            "arguments": self.values,
            "places": {name: document.place(path) for name, path in self.paths.items()},
            "keys": {name: ".".join(map(str, path)) for name, path in self.paths.items() if path},
        }


def plain(value: Any) -> Any:
    """Return a value in JSON types. Fields of a model that are None are left out."""
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, BaseModel):
        return plain(value.model_dump(exclude_none=True))
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def seconds_at(document: YamlDocument, value: object, *path: str) -> float:
    """Return a duration of the file in seconds. Raises PipelineError for an invalid duration.

    :param path: the path of the value in the file, for the error.
    """
    try:
        return seconds(path[-1], value)
    except InvalidArgument as error:
        raise PipelineError([document.problem(path, str(error))]) from None
