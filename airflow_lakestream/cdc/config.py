"""What a mirroring is told: what a landing is told of its topic, and what a mirror is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from airflow_lakestream import arguments
from airflow_lakestream.cdc.design import MirrorDesign
from airflow_lakestream.cdc.events import EventPayload
from airflow_lakestream.core.formats import Envelope
from airflow_lakestream.core.policies import ModeName, OnError, SchemaEvolution, Tombstones, is_given
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.extract_config import ExtractConfig
from airflow_lakestream.iceberg.design import TableDesign

# Arguments of a landing that a mirror leaves no choice of.
_FIXED = {
    "envelope": "a mirror is made of Debezium's events",
    "tombstones": "a tombstone says nothing that the event before it does not",
    "metadata_columns": "a mirror keeps partition and offset of each row's last event",
    "schema_evolution": "columns that the database adds are added, and types that became wider are widened",
    "unknown_fields": "columns that the database adds are added",
    "key_format": "keys are taken from the row",
    "sql": "a mirror has the rows of the database's table",
    "sql_input": "a mirror has the rows of the database's table",
    "replace": "rows of a mirror are states, not records",
    "home_table": "each topic has one mirror",
    "new_tables": "each topic has one mirror",
    "max_tables": "each topic has one mirror",
}


@dataclass(frozen=True, kw_only=True)
class MirrorConfig(ExtractConfig):
    """Arguments of `ExtractConfig` that make sense for a mirror, and its own.

    :param key: the columns of the primary key; None takes them from the records' keys, where those are JSON.
    :param soft_delete: whether deleted rows stay, with `_is_deleted` true.
    """

    envelope: str | None = Envelope.DEBEZIUM
    tombstones: str = Tombstones.SKIP
    on_error: str = OnError.FAIL
    metadata_columns: Sequence[str] = ("partition", "offset")
    key: Sequence[str] | str | None = None
    soft_delete: bool | str = False

    def __post_init__(self) -> None:
        for one in fields(ExtractConfig):
            default = type(self).__dataclass_fields__[one.name].default
            given = getattr(self, one.name)
            # A copy of a configuration is given what the first one has come to.
            is_ours = one.name == "metadata_columns" and tuple(given) == self._metadata
            if one.name in _FIXED and given != default and not is_ours:
                raise InvalidArgument(one.name, f"is not for a mirror: {_FIXED[one.name]}.", "Leave it out.")
        if self.mode != ModeName.RESUME:
            raise InvalidArgument("mode", f"a mirror is landed in order, not by {self.mode}.", "Leave it out.")
        object.__setattr__(self, "metadata_columns", self._metadata)
        super().__post_init__()
        if self.template.by_record:
            raise InvalidArgument("table", f"{self.table!r}: each topic has one mirror.", 'Write "lake.{topic}".')
        _ = self.mirror

    @property
    def _metadata(self) -> tuple[str, ...]:
        return ("partition", "offset") if is_given(self.key) else ("partition", "offset", "key")

    @property
    def payload(self) -> EventPayload:
        """What values hold."""
        held = super().payload
        return EventPayload(
            format=held.format,
            envelope=held.envelope,
            registry=held.registry,
            writer_schemas=held.writer_schemas,
            refused_characters=held.refused_characters,
        )

    @property
    def mirror(self) -> MirrorDesign:
        """How the mirror is made, and what one that is there is held to."""
        return MirrorDesign(
            super().design,
            key=arguments.items("key", self.key) or None,
            soft_delete=arguments.flag("soft_delete", self.soft_delete),
        )

    @property
    def design(self) -> TableDesign:
        """How executors write events: with all columns that come up in them."""
        evolution = SchemaEvolution.ADD if self.is_delta else SchemaEvolution.WIDEN
        return TableDesign(metadata=super().design.metadata, evolution=evolution, grows=True)
