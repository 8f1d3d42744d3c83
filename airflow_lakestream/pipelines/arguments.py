"""Operator arguments collected from parts of a file, with the path of each in the file."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from pydantic import BaseModel

from airflow_lakestream.core.policies import seconds
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.pipelines.compiled import WHOLE_PART
from airflow_lakestream.pipelines.errors import PipelineError
from airflow_lakestream.pipelines.part import RENAMED
from airflow_lakestream.pipelines.yaml_file import Path, YamlDocument


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
