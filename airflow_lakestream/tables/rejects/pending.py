"""A landing whose rejected records are written, and of which the main table is still to decide; and their rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.core import codec
from airflow_lakestream.core.ledger import TopicIdentity
from airflow_lakestream.core.names import REJECTED
from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.sharing.pieces import ranges_from_dict, ranges_to_dict
from airflow_lakestream.tables.coordinates import COORDINATES
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.schema.columns import METADATA_PREFIX, to_schema

# With the landing's id and a topic behind it: what is written before the main table has decided.
PENDING = "lakestream.rejects.pending."

# Beside what the decoder says of a record.
OWN = pa.schema(
    [
        ("consumer_group", pa.string()),
        ("topic_id", pa.string()),
        ("run_id", pa.string()),
        ("landing_id", pa.string()),
        ("rejected_at", pa.timestamp("us", "UTC")),
    ]
)
# What says whose a rejected record is.
PLACE = (*COORDINATES, "consumer_group", "topic_id", "landing_id")


def design_of(records: pa.Schema) -> TableDesign:
    """Return the design of a reject table with these columns of its records."""
    metadata = pa.schema([field for field in records if field.name.startswith(METADATA_PREFIX)])
    payload = pa.schema([field for field in records if field.name not in metadata.names])
    # A table that an earlier version made gets the columns that it lacks.
    schema = to_schema(pa.schema([*payload, *OWN]))
    return TableDesign(metadata=metadata, schema=schema, evolution=SchemaEvolution.ADD)


def rejects_of(table: str) -> str:
    """Return the name of a table's reject table."""
    return table + REJECTED


@dataclass(frozen=True, slots=True)
class Pending:
    """A landing whose rejected records are written, and of which the main table was still to decide.

    `supersedes` says that other rows of its ranges were there, to be removed once it is landed. `after` are marks of
    the main table's ledger when the note was made; see `core.ledger.Noted`.
    """

    landing_id: str
    consumer_group: str
    identity: TopicIdentity
    ranges: RangeSet
    replaces: bool
    supersedes: bool
    at_ms: int
    after: tuple[str, ...] = ()

    def encode(self) -> str:
        """Return the text of the property."""
        data = {
            **ranges_to_dict(self.identity, self.ranges),
            "group": self.consumer_group,
            "replaces": self.replaces,
            "supersedes": self.supersedes,
            "at": self.at_ms,
            "after": self.after,
        }
        return json.dumps(data, separators=(",", ":"))

    @property
    def key(self) -> str:
        """The name of the property: one for each topic of a landing."""
        return f"{PENDING}{self.landing_id}/{self.identity.topic}"

    @classmethod
    def decode(cls, key: str, text: str) -> Pending:
        """Read a property. Raises UnreadableLedger."""
        landing_id = key.removeprefix(PENDING).partition("/")[0]
        try:
            data = json.loads(text)
            identity = TopicIdentity(data["topic"], data["id"], data["cluster"])
            ranges = ranges_from_dict(data)
            return cls(
                landing_id,
                data["group"],
                identity,
                ranges,
                data["replaces"],
                data["supersedes"],
                int(data["at"]),
                tuple(data["after"]),
            )
        except (KeyError, ValueError, TypeError) as e:
            problem = f"not as this version writes it ({e!r})."
            raise codec.UnreadableLedger(f"table property {key}", problem) from e


def pending_of(properties: Mapping[str, str]) -> list[Pending]:
    """Return the landings that a reject table's properties note as pending."""
    return [Pending.decode(key, text) for key, text in properties.items() if key.startswith(PENDING)]


def of_topic(records: pa.Table, topic: str) -> pa.Table:
    """Return the rejected records of one topic."""
    same = pc.equal(records["_kafka_topic"], topic)
    return records if pc.all(same).as_py() else records.filter(same)


def rows_of(records: pa.Table, pending: Pending, run_id: str) -> pa.Table:
    """Return rejected records as rows of the table."""
    made = {
        "consumer_group": pending.consumer_group,
        "topic_id": pending.identity.topic_id,
        "run_id": run_id,
        "landing_id": pending.landing_id,
        "rejected_at": datetime.fromtimestamp(pending.at_ms / 1000, UTC),
    }
    for own in OWN:
        records = records.append_column(own, pa.repeat(pa.scalar(made[own.name], own.type), len(records)))
    return records
