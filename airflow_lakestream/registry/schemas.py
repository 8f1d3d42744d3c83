"""A registered schema, and the errors of a registry."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

from airflow_lakestream.exceptions import LakestreamError, Terminal, Transient

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema's text.

    :param kind: "AVRO", "PROTOBUF" or "JSON".
    :param references: name and schema of each reference, with its own references.
    """

    id: int
    kind: str
    text: str
    references: tuple[tuple[str, RegisteredSchema], ...] = ()

    def all_references(self) -> list[tuple[str, RegisteredSchema]]:
        """Return all direct and indirect references, each name once, after the references of the schema itself."""
        schemas: dict[str, RegisteredSchema] = {}
        for name, schema in self.references:
            for inner, needed in schema.all_references():
                schemas.setdefault(inner, needed)
            schemas.setdefault(name, schema)
        return list(schemas.items())


class SchemaSource(Protocol):
    """A source of schemas for decoders."""

    def schema(self, schema_id: int) -> RegisteredSchema:
        """Return the schema of this id. Raises SchemaNotFound, and the source's own errors."""
        ...

    def versions(self, subject: str) -> list[RegisteredSchema]:
        """Return all schemas of a subject, the oldest first. Raises the same errors."""
        ...


class SchemaNotFound(LakestreamError, Terminal):
    """The registry does not have the schema."""


class RegistryUnavailable(LakestreamError, Transient):
    """The registry could not be reached, or could not answer."""


class RegistryRefused(LakestreamError, Terminal):
    """Permanent error in the registry's answer, for example by wrong credentials."""


def versions_of(registry: SchemaSource | None, topic: str, kind: str | None) -> list[RegisteredSchema]:
    """Return all available versions of a topic's schemas, of values and keys. Raises RegistryUnavailable.

    Only schemas of `kind` are returned. The result is empty without a registry. A subject that does not exist, or that
    the registry refuses, has no versions.

    :param kind: "AVRO", "PROTOBUF" or "JSON"; None has no schemas.
    """
    schemas: list[RegisteredSchema] = []
    for subject in (f"{topic}-value", f"{topic}-key"):
        try:
            schemas += [] if registry is None else registry.versions(subject)
        except (SchemaNotFound, RegistryRefused) as e:
            log.debug("Other versions of a schema are not looked at: %s", e)
    return [one for one in schemas if one.kind == kind]
