"""A restated ledger: a snapshot's summary with the whole ledgers of groups, in place of the history before.

Renaming, removing and rebuilding a ledger write one: the change is part of the table's history, and is found without
the table property. A table rolled back to before such a snapshot has the old ledger again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from airflow_lakestream.core.codec import LedgerProperty, UnreadableLedger, decode_property, encode_property
from airflow_lakestream.core.ledger import Ledger

SUMMARY_RESTATED = "lakestream.anew"


def encode_restated(ledgers: Mapping[str, Ledger]) -> dict[str, str]:
    """Return the summary keys to restate groups' ledgers at a snapshot."""
    texts = {group: encode_property(LedgerProperty(None, ledger, ())) for group, ledger in ledgers.items()}
    return {SUMMARY_RESTATED: json.dumps(texts, separators=(",", ":"), ensure_ascii=False)}


def decode_restated(summary: Mapping[str, str], consumer_group: str, where: str) -> Ledger | None:
    """Return a group's restated ledger from a snapshot's summary. Raises UnreadableLedger.

    None if the snapshot restates no ledger, or only ledgers of other groups.

    :param where: name of the snapshot, for the error.
    """
    if (text := summary.get(SUMMARY_RESTATED)) is None:
        return None
    try:
        of_group = json.loads(text).get(consumer_group)
    except (ValueError, AttributeError) as e:
        raise UnreadableLedger(where, f"not restated ledgers in the form of this version ({e!r}).") from e
    return None if of_group is None else decode_property(of_group, consumer_group).base
