"""The real registry of the test session, and one in memory for tests that are about decoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from airflow_lakestream.registry.client import RegisteredSchema, SchemaNotFound
from dev.services.registry import Registry
from dev.stack import Stack


@dataclass(frozen=True)
class FakeRegistry:
    """Knows schemas by their ids, each as (kind, text)."""

    schemas: Mapping[int, tuple[str, str]]
    subjects: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def schema(self, schema_id: int) -> RegisteredSchema:
        """Return the schema of this id."""
        if schema_id not in self.schemas:
            raise SchemaNotFound(f"Schema {schema_id} is not in the registry.")
        return RegisteredSchema(schema_id, *self.schemas[schema_id])

    def versions(self, subject: str) -> list[RegisteredSchema]:
        """Return the schemas of a subject."""
        if subject not in self.subjects:
            raise SchemaNotFound(f"Subject {subject} is not in the registry.")
        return [self.schema(one) for one in self.subjects[subject]]

    def latest(self, subject: str) -> RegisteredSchema:
        """Return the newest schema, whatever the subject."""
        if not self.schemas:
            raise SchemaNotFound(f"Subject {subject} is not in the registry.")
        return self.schema(max(self.schemas))


@pytest.fixture(scope="session")
def registry(stack: Stack) -> Registry:
    """Give the schema registry of this test session, started when the first test asks for it."""
    return stack.up_registry()
