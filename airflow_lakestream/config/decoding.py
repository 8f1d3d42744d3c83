"""Arguments for decoding records, in a landing and in any later decoding of the same records.

Names and defaults are only here. The configuration of a landing, repairs, replays, the audit's operator and the
commands take them from here. Imports nothing that a DAG's parser would have to wait for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from airflow_lakestream.core.policies import (
    UNAVAILABLE,
    SqlInput,
    TimestampsFiner,
    UnavailableValues,
    UnknownFields,
    is_given,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema

    from airflow_lakestream.decode.formats import PayloadFormats
    from airflow_lakestream.registry.config import RegistryConfig


@dataclass(frozen=True, kw_only=True)
class DecodingSettings:
    """Settings for decoding keys and values, as in templates; `KafkaExtractOperator` explains each setting."""

    format: str = "json"
    key_format: str | None = None
    envelope: str | None = None
    schema_registry: str | Mapping[str, Any] | RegistryConfig | None = None
    writer_schemas: Sequence[str] | str | None = None
    schema: str | Schema | pa.Schema | None = None
    unknown_fields: str = UnknownFields.IGNORE
    sql: str | None = None
    sql_input: str = SqlInput.RAW
    csv_delimiter: str = ","
    rename_columns: Mapping[str, str] | str | None = None
    timestamps_finer: str = TimestampsFiner.REJECT
    unavailable_placeholder: str = UNAVAILABLE
    unavailable_values: str = UnavailableValues.REJECT

    @property
    def value_envelope(self) -> str | None:
        """The envelope of values, or None."""
        return self.envelope if is_given(self.envelope) else None

    @property
    def event_placeholder(self) -> str:
        """The placeholder in whole events of Debezium."""
        return self.unavailable_placeholder

    @property
    def payload(self) -> PayloadFormats:
        """Formats of keys and values. Raises InvalidArgument."""
        from airflow_lakestream.config import arguments
        from airflow_lakestream.decode.formats import PayloadFormats
        from airflow_lakestream.registry.config import RegistryConfig
        from airflow_lakestream.tables.schema.columns import to_timed_schema

        times = to_timed_schema(self.schema)[1] if is_given(self.schema) else {}
        return PayloadFormats(
            format=self.format,
            unknown_fields=self.unknown_fields,
            key_format=self.key_format if is_given(self.key_format) else None,
            envelope=self.value_envelope,
            registry=RegistryConfig.parse(self.schema_registry) if is_given(self.schema_registry) else None,
            writer_schemas=arguments.schemas("writer_schemas", self.writer_schemas) or (),
            csv_delimiter=self.csv_delimiter,
            timestamps_finer=self.timestamps_finer,
            unavailable_placeholder=self.event_placeholder,
            unavailable_values=self.unavailable_values,
            times=tuple(times.items()),
            renamed=tuple(arguments.names("rename_columns", self.rename_columns).items()),
        )


DECODING = tuple(one.name for one in fields(DecodingSettings))
# Arguments of a mirror that decide its rows, next to those of decoding. The table's note has the others.
OF_ROWS = (
    "key",
    "tombstones",
    "on_error",
    "max_rejected",
    "out_of_range",
    "source_tables",
    "delete_when",
    "within",
    "merge",
)
