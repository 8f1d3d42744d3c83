"""Base class and field types of a pipeline's model."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, create_model

from airflow_lakestream.config.setting import SettingKind, SettingSection
from airflow_lakestream.config.settings import SETTINGS

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


WholeNumber = Annotated[int, BeforeValidator(_number)]
Number = Annotated[float, BeforeValidator(_number)]
# Bounds are set here: pydantic would leave out the bounds of a nullable field in the JSON Schema.
FromZero = Annotated[int, Field(ge=0), BeforeValidator(_number)]
FromOne = Annotated[int, Field(ge=1), BeforeValidator(_number)]
NumberFromZero = Annotated[float, Field(ge=0), BeforeValidator(_number)]
Flag = Annotated[bool, BeforeValidator(_flag)]
Named = Annotated[str, Field(pattern=NAME)]


# The JSON Schema of a list of texts, or of a single text in its place; the arguments restrict each text.
def _listed(**one: Any) -> WithJsonSchema:
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
Duration = Annotated[str | Number, Field(description='seconds, or a text such as "60s", "5m", "3d"')]


class Part(BaseModel):
    """A part of a pipeline's file: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=False)


_TYPES: Mapping[SettingKind, Any] = {
    SettingKind.TEXT: str,
    SettingKind.NAMES: Names,
    SettingKind.MAPPING: dict[str, str],
    SettingKind.FLAG: Flag,
    SettingKind.COUNT: FromOne,
    SettingKind.SIZE: WholeNumber | str,
    SettingKind.SECONDS: Duration,
    SettingKind.MOMENT: str | WholeNumber,
    SettingKind.LIMIT: WholeNumber | Number | str,
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
