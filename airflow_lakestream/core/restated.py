"""A ledger that starts anew: a snapshot whose summary says the whole ledger of some groups, whatever was before.

So a ledger is renamed, removed or rebuilt: in the table's history, like every other change of it, and found without
the property. A table rolled back to before such a snapshot has the old ledger again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from airflow_lakestream.core.codec import LedgerProperty, UnreadableLedger, decode_property, encode_property
from airflow_lakestream.core.ledger import Ledger

SUMMARY_RESTATED = "lakestream.anew"


def encode_restated(ledgers: Mapping[str, Ledger]) -> dict[str, str]:
    """Return the summary keys that let the ledgers of these groups start anew at a snapshot."""
    texts = {group: encode_property(LedgerProperty(None, ledger, ())) for group, ledger in ledgers.items()}
    return {SUMMARY_RESTATED: json.dumps(texts, separators=(",", ":"), ensure_ascii=False)}


def decode_restated(summary: Mapping[str, str], consumer_group: str, where: str) -> Ledger | None:
    """Return the ledger with which a group starts anew at a snapshot, or None. Raises UnreadableLedger."""
    if (text := summary.get(SUMMARY_RESTATED)) is None:
        return None
    try:
        of_group = json.loads(text).get(consumer_group)
    except (ValueError, AttributeError) as e:
        raise UnreadableLedger(where, f"not ledgers that start anew as this version writes them ({e!r}).") from e
    return None if of_group is None else decode_property(of_group, consumer_group).base
