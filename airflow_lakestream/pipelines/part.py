"""What the parts of a pipeline's model share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

NAME = r"^[A-Za-z_][A-Za-z0-9_-]{0,99}$"


def listed(value: Any) -> Any:
    """Return one text as a list of it, anything else as it is."""
    return [value] if isinstance(value, str) else value


Named = Annotated[str, Field(pattern=NAME)]
_LISTED = {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]}
Names = Annotated[list[str], BeforeValidator(listed), WithJsonSchema(_LISTED)]
# Airflow and the operators read a number of seconds, or a text such as "60s".
Duration = Annotated[str | float, Field(description='seconds, or a text such as "60s", "5m", "3d"')]


class Part(BaseModel):
    """A part of a pipeline's file: keys that it does not know are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=False)
