"""A registered schema, and the errors of asking for one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from airflow_lakestream.exceptions import LakestreamError, Terminal, Transient


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema's text; `kind` is "AVRO", "PROTOBUF" or "JSON".

    `references` are (name, schema), each with its own references.
    """

    id: int
    kind: str
    text: str
    references: tuple[tuple[str, RegisteredSchema], ...] = ()

    def all_references(self) -> list[tuple[str, RegisteredSchema]]:
        """Return all direct and indirect references, each name once, after those that it needs itself."""
        found: dict[str, RegisteredSchema] = {}
        for name, schema in self.references:
            for inner, needed in schema.all_references():
                found.setdefault(inner, needed)
            found.setdefault(name, schema)
        return list(found.items())


class SchemaSource(Protocol):
    """Where decoders get schemas from."""

    def schema(self, schema_id: int) -> RegisteredSchema:
        """Return the schema of this id. Raises SchemaNotFound, and its own errors if it can't ask."""
        ...


class SchemaNotFound(LakestreamError, Terminal):
    """The registry answered that it has no such schema."""


class RegistryUnavailable(LakestreamError, Transient):
    """The registry could not be reached, or could not answer."""


class RegistryRefused(LakestreamError, Terminal):
    """The registry's answer is an error that no retry changes, such as wrong credentials."""
