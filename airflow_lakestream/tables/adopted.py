"""Receipts of rows adopted from another tool, kept in the table's properties as long as the table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from airflow_lakestream.core.codec import decode_ranges
from airflow_lakestream.core.ranges import RangeSet

# A table property for each group.
PREFIX = "lakestream.adopted."


@dataclass(frozen=True, slots=True)
class AdoptionReceipt:
    """Receipt of an adoption.

    `columns` are the columns in which the rows keep their positions, if these are not the metadata columns of landings;
    `ranges` are then the offsets that these rows account for, as text.

    The receipt stays if the table is rolled back to before `landing_id`: the ledger decides.
    """

    source: str
    topic: str
    at: str
    landing_id: str
    columns: Mapping[str, str] | None = None
    ranges: str = ""

    @property
    def verifiable(self) -> RangeSet:
        """Offsets of the rows with positions in columns of another tool."""
        return decode_ranges(self.ranges, self.topic)

    def __str__(self) -> str:
        return f"{self.topic} from {self.source} at {self.at}"


def receipts(properties: Mapping[str, str], consumer_group: str) -> Sequence[AdoptionReceipt]:
    """Return a group's receipts, oldest first."""
    return [AdoptionReceipt(**one) for one in json.loads(properties.get(PREFIX + consumer_group, "[]"))]


def has_adopted(properties: Mapping[str, str]) -> bool:
    """Whether any group's rows were adopted."""
    return any(name.startswith(PREFIX) for name in properties)


def noted(properties: Mapping[str, str], consumer_group: str, receipt: AdoptionReceipt) -> dict[str, str]:
    """Return the table property of a group's receipts, with this receipt added."""
    found = [asdict(one) for one in (*receipts(properties, consumer_group), receipt)]
    return {PREFIX + consumer_group: json.dumps(found, separators=(",", ":"), ensure_ascii=False)}
