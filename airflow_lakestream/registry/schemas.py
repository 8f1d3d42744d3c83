"""A registered schema, and the errors of asking for one."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

from airflow_lakestream.exceptions import LakestreamError, Terminal, Transient

log = logging.getLogger(__name__)


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

    def versions(self, subject: str) -> list[RegisteredSchema]:
        """Return all schemas of a subject, the oldest first. Raises likewise."""
        ...


class SchemaNotFound(LakestreamError, Terminal):
    """The registry answered that it has no such schema."""


class RegistryUnavailable(LakestreamError, Transient):
    """The registry could not be reached, or could not answer."""


class RegistryRefused(LakestreamError, Terminal):
    """The registry's answer is an error that no retry changes, such as wrong credentials."""


def versions_of(registry: SchemaSource | None, topic: str, kind: str | None) -> list[RegisteredSchema]:
    """Return all versions of a topic's schemas that can be had, those of keys too. Raises RegistryUnavailable."""
    found: list[RegisteredSchema] = []
    for subject in (f"{topic}-value", f"{topic}-key"):
        try:
            found += [] if registry is None else registry.versions(subject)
        except (SchemaNotFound, RegistryRefused) as e:
            log.debug("Other versions of a schema are not looked at: %s", e)
    return [one for one in found if one.kind == kind]
