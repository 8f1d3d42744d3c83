"""What a table says of rows that were adopted from another tool: the receipts, kept as long as the table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from airflow_lakestream.core.codec import decode_ranges
from airflow_lakestream.core.ranges import RangeSet

# A table property for each group.
PREFIX = "lakestream.adopted."


@dataclass(frozen=True, slots=True)
class Receipt:
    """One adoption.

    `columns` are the rows' own columns of positions, where they are not those that landings write; `ranges` are then
    the offsets that these rows account for, as text.

    The receipt stays when the table is rolled back to before `landing_id`: what counts is the ledger.
    """

    source: str
    topic: str
    at: str
    landing_id: str
    columns: Mapping[str, str] | None = None
    ranges: str = ""

    @property
    def verifiable(self) -> RangeSet:
        """The offsets that rows account for in columns of their own."""
        return decode_ranges(self.ranges, self.topic)

    def __str__(self) -> str:
        return f"{self.topic} from {self.source} at {self.at}"


def receipts(properties: Mapping[str, str], consumer_group: str) -> Sequence[Receipt]:
    """Return a group's receipts, oldest first."""
    return [Receipt(**one) for one in json.loads(properties.get(PREFIX + consumer_group, "[]"))]


def has_adopted(properties: Mapping[str, str]) -> bool:
    """Whether any group's rows were adopted."""
    return any(name.startswith(PREFIX) for name in properties)


def noted(properties: Mapping[str, str], consumer_group: str, receipt: Receipt) -> dict[str, str]:
    """Return the property with one receipt more."""
    found = [asdict(one) for one in (*receipts(properties, consumer_group), receipt)]
    return {PREFIX + consumer_group: json.dumps(found, separators=(",", ":"), ensure_ascii=False)}
