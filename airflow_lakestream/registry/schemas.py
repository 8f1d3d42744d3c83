"""A schema as a registry keeps it, and what can go wrong while asking for one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from airflow_lakestream.exceptions import LakestreamError, Terminal, Transient


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema's text; `kind` is "AVRO", "PROTOBUF" or "JSON".

    `references` are (name, schema), each with what it refers to itself.
    """

    id: int
    kind: str
    text: str
    references: tuple[tuple[str, RegisteredSchema], ...] = ()

    def all_references(self) -> list[tuple[str, RegisteredSchema]]:
        """Return all that is referred to, directly or not: each name once, and behind all that it needs itself."""
        found: dict[str, RegisteredSchema] = {}
        for name, schema in self.references:
            for inner, needed in schema.all_references():
                found.setdefault(inner, needed)
            found.setdefault(name, schema)
        return list(found.items())


class SchemaSource(Protocol):
    """Where decoders get schemas from."""

    def schema(self, schema_id: int) -> RegisteredSchema:
        """Return the schema of this id. Raises SchemaNotFound, and errors of its own where it could not ask."""
        ...


class SchemaNotFound(LakestreamError, Terminal):
    """The registry answered, and knows no such schema."""


class RegistryUnavailable(LakestreamError, Transient):
    """The registry could not be reached, or could not answer."""


class RegistryRefused(LakestreamError, Terminal):
    """The registry answered with something that no retry changes: wrong credentials, say."""
