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
    """Receipt of an adoption: a group's ledger took over the rows of another tool.

    :param source: the other tool, in words.
    :param at: the time of the adoption in UTC, as ISO 8601 text.
    :param landing_id: the landing that wrote the adopted offsets into the ledger. The receipt stays if the table is
        rolled back to before this landing. The ledger then lacks the offsets, and the ledger decides.
    :param columns: the tool's columns with the position of each row. None if the positions are in the metadata columns
        of landings, or if the rows do not prove the adopted offsets.
    :param ranges: the adopted offsets as text, if `columns` is set; else empty.
    """

    source: str
    topic: str
    at: str
    landing_id: str
    columns: Mapping[str, str] | None = None
    ranges: str = ""

    @property
    def verifiable(self) -> RangeSet:
        """Adopted offsets provable by the rows, through the tool's own columns; empty without such columns."""
        return decode_ranges(self.ranges, self.topic)

    def __str__(self) -> str:
        return f"{self.topic} from {self.source} at {self.at}"


def receipts(properties: Mapping[str, str], consumer_group: str) -> Sequence[AdoptionReceipt]:
    """Return the receipts of a group's adoptions, oldest first."""
    return [AdoptionReceipt(**one) for one in json.loads(properties.get(PREFIX + consumer_group, "[]"))]


def has_adopted(properties: Mapping[str, str]) -> bool:
    """Return whether the table has a receipt of an adoption by any group."""
    return any(name.startswith(PREFIX) for name in properties)


def noted(properties: Mapping[str, str], consumer_group: str, receipt: AdoptionReceipt) -> dict[str, str]:
    """Return the table property of a group's receipts, with this receipt added.

    The caller sets the property in the commit of the adopted ledger.

    :param properties: the table's present properties, with the earlier receipts.
    """
    found = [asdict(one) for one in (*receipts(properties, consumer_group), receipt)]
    return {PREFIX + consumer_group: json.dumps(found, separators=(",", ":"), ensure_ascii=False)}
