"""What the parts of a pipeline's model share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

NAME = r"^[A-Za-z_][A-Za-z0-9_-]{0,99}$"


def listed(value: Any) -> Any:
    """Return one text as a list of it, anything else as it is."""
    return [value] if isinstance(value, str) else value


def _no_boolean(value: Any) -> Any:
    # Python takes true for 1.
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is no number")
    return value


Whole = Annotated[int, BeforeValidator(_no_boolean)]
Number = Annotated[float, BeforeValidator(_no_boolean)]
# Bounds stand here: pydantic would leave those of a field that may be null out of the JSON Schema.
FromZero = Annotated[int, Field(ge=0), BeforeValidator(_no_boolean)]
FromOne = Annotated[int, Field(ge=1), BeforeValidator(_no_boolean)]
NumberFromZero = Annotated[float, Field(ge=0), BeforeValidator(_no_boolean)]
Named = Annotated[str, Field(pattern=NAME)]


def _listed(**one: Any) -> WithJsonSchema:
    # A variable may be longer, or come to what fits.
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
    """A part of a pipeline's file: keys that it does not know are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=False)
