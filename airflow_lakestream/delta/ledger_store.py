"""Ledger of a Delta table: a table property, written in the commit of the rows.

RESTORE, by delta-rs or Spark, restores a table's properties with its files, so the property at each version is the
ledger of that version. RESTORE does not restore the transaction of the group (`txn`), whose number only grows: if a
property is behind the transaction, or gone, the log must show a RESTORE; else the ledger was changed or removed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_lakestream.core import codec
from airflow_lakestream.core.ledger import Landing, Ledger
from airflow_lakestream.core.lineage import LedgerReading
from airflow_lakestream.delta.head import DeltaTableHead
from airflow_lakestream.delta.protocol import info_of, read_commit
from airflow_lakestream.exceptions import LakestreamError, Terminal

log = logging.getLogger(__name__)

# Prefix of a table property, followed by a group's name: the number of landings that its ledger has had, landings taken
# back by RESTORE included.
GENERATION_PREFIX = "lakestream.generation."
# Next to a landing's own keys in `commitInfo`: the version of the group's landing before it.
PREVIOUS = "lakestream.previous"
SCHEMA_CHANGES = "lakestream.schema-changes"
# The greatest number of commits that are read back, since each is a file to read.
MOST_COMMITS_LOOKED_AT = 2_000


class LedgerTakenAway(LakestreamError, Terminal):
    """Loss of a group's ledger: the property is gone, or older than the group's transaction."""

    def __init__(self, table: str, consumer_group: str, reason: str) -> None:
        super().__init__(
            f"{table}: the ledger of consumer group {consumer_group!r} can't be decided: {reason}. Nothing was landed, "
            "since that could double or lose records. RESTORE the table to a version with its property "
            f"{codec.property_key(consumer_group)}; or land with another consumer_group in a table of its own."
        )


def app_id(consumer_group: str) -> str:
    """Return the application id of a group in Delta's transactions."""
    return f"lakestream.{consumer_group}"


def read_ledger(head: DeltaTableHead | None, consumer_group: str) -> Ledger:
    """Return the ledger of `consumer_group` in the table; empty without a table. Raises UnreadableLedger."""
    return reading(head, consumer_group).ledger


def reading(head: DeltaTableHead | None, consumer_group: str) -> LedgerReading:
    """Return the ledger as a base and the last landings; empty without a table. Raises UnreadableLedger."""
    text = None if head is None else head.properties.get(codec.property_key(consumer_group))
    if text is None:
        return LedgerReading(None, Ledger(consumer_group), ())
    value = codec.decode_property(text, consumer_group)
    return LedgerReading(value.base_id, value.base, value.journal)


def groups(head: DeltaTableHead) -> tuple[str, ...]:
    """Return the consumer groups with a ledger in the table."""
    prefix = codec.PROPERTY_PREFIX
    return tuple(sorted(key.removeprefix(prefix) for key in head.properties if key.startswith(prefix)))


def ledgers(head: DeltaTableHead, consumer_group: str) -> dict[str, Ledger]:
    """Return the ledgers of all groups, and of this group in any case. Raises UnreadableLedger."""
    return {group: read_ledger(head, group) for group in {consumer_group: None, **dict.fromkeys(groups(head))}}


def other_ledgers(head: DeltaTableHead, consumer_group: str) -> dict[str, Ledger]:
    """Return the ledgers of all groups except this group. Raises UnreadableLedger."""
    return {group: read_ledger(head, group) for group in groups(head) if group != consumer_group}


def next_generation(head: DeltaTableHead | None, consumer_group: str) -> int:
    """Return the number of the group's next landing, above all earlier numbers, even after a RESTORE."""
    if head is None:
        return 1
    return 1 + max(_generation(head, consumer_group), head.txn(app_id(consumer_group)) or 0)


def properties_after(
    head: DeltaTableHead | None, consumer_group: str, version: int, landing: Landing
) -> dict[str, str]:
    """Return the group's properties for the version with `landing`: the ledger and the number of landings."""
    value = reading(head, consumer_group).property_after(version, landing)
    return {
        codec.property_key(consumer_group): codec.encode_property(value),
        GENERATION_PREFIX + consumer_group: str(next_generation(head, consumer_group)),
    }


def previous_version(head: DeltaTableHead | None, consumer_group: str) -> int | None:
    """Return the version of the group's last landing in the table's history, or None before the first landing."""
    ledger_reading = reading(head, consumer_group)
    return ledger_reading.path[-1].snapshot_id if ledger_reading.path else None


def check_not_taken_away(head: DeltaTableHead, consumer_group: str, store: Any) -> None:
    """Refuse a table if the ledger property is behind the group's transaction without a RESTORE.

    If the log does not go back far enough to decide, a table with the property is accepted with a warning, and a
    table without it is refused. Raises LedgerTakenAway.
    """
    transaction_number, noted_number = head.txn(app_id(consumer_group)), _generation(head, consumer_group)
    if transaction_number is None or noted_number >= transaction_number:
        return
    for version in range(head.version, max(-1, head.version - MOST_COMMITS_LOOKED_AT), -1):
        actions = read_commit(store, version)
        if actions is None:
            break
        if info_of(actions).get("operation") == "RESTORE":
            return
        if any(action.get("txn", {}).get("appId") == app_id(consumer_group) for action in actions):
            reason = f"its property was changed or removed after version {version}, without a RESTORE"
            raise LedgerTakenAway(head.table, consumer_group, reason)
    if codec.property_key(consumer_group) in head.properties:
        log.warning("%s: its log does not go back to the RESTORE that took landings of %s", head.table, consumer_group)
        return
    raise LedgerTakenAway(head.table, consumer_group, "its property is gone, and its log does not go back to why")


def taken_back(head: DeltaTableHead, store: Any) -> list[str]:
    """Return the ids of landings taken back by a RESTORE, of groups without a landing since.

    Such a landing's transaction number is above the number in the property, which was restored with the files.
    """
    noted = {app_id(group): _generation(head, group) for group in groups(head)}
    lagging = {app: number for app, number in noted.items() if (head.txn(app) or 0) > number}
    landing_ids: list[str] = []
    for version in range(head.version, max(-1, head.version - MOST_COMMITS_LOOKED_AT), -1):
        actions = read_commit(store, version) if lagging else None
        if actions is None:
            break
        for app, number in [
            (action["txn"]["appId"], action["txn"]["version"]) for action in actions if "txn" in action
        ]:
            # The restored table has the landings with this number and all lower numbers.
            if number <= lagging.get(app, number):
                lagging.pop(app, None)
            elif landing_id := info_of(actions).get(codec.SUMMARY_LANDING_ID):
                landing_ids.append(landing_id)
    return landing_ids


def landing_at(store: Any, version: int, consumer_group: str) -> tuple[Landing, int | None] | None:
    """Return the group's landing in a version, and the version of the landing before.

    The result is None if the version has no landing of the group, or if the log has lost the version. The version of
    the landing before is None for the first landing.
    """
    actions = read_commit(store, version)
    if actions is None:
        return None
    info = {key: value for key, value in info_of(actions).items() if isinstance(value, str)}
    landing = codec.decode_summary(info, consumer_group, f"version {version}")
    before = info.get(PREVIOUS)
    return None if landing is None else (landing, int(before) if before else None)


def landings_of_run(head: DeltaTableHead, store: Any, consumer_group: str, run_id: str) -> list[tuple[int, Landing]]:
    """Return the landings of a run in the table's history, oldest first, as far back as the log goes."""
    path = [entry for entry in reading(head, consumer_group).path if entry.landing is not None]
    landings = {
        entry.snapshot_id: entry.landing
        for entry in path
        if entry.landing is not None and entry.landing.run_id == run_id
    }
    # The log is read, and not only the journal: the log has the counts by partition, too.
    landings |= {version: item[0] for version in landings if (item := landing_at(store, version, consumer_group))}
    if path and path[0].snapshot_id in landings:
        landings |= dict(_earlier(store, path[0].snapshot_id, consumer_group, run_id))
    return sorted(landings.items())


def version_of_landing(head: DeltaTableHead, consumer_group: str, landing_id: str) -> int | None:
    """Return the version of a landing, or None if not among the last landings in the table's history."""
    for entry in reading(head, consumer_group).path:
        if entry.landing is not None and entry.landing.landing_id == landing_id:
            return entry.snapshot_id
    return None


def schema_changes(store: Any, version: int) -> list[str]:
    """Return the schema changes of a version, in words; empty if the log does not go back to the version."""
    texts: list[str] = json.loads(info_of(read_commit(store, version) or ()).get(SCHEMA_CHANGES, "[]"))
    return texts


def summary_of(
    head: DeltaTableHead | None, consumer_group: str, landing: Landing, changes: tuple[str, ...]
) -> Mapping[str, str]:
    """Return a landing's entries of `commitInfo`."""
    summary = codec.encode_summary(consumer_group, landing)
    if (before := previous_version(head, consumer_group)) is not None:
        summary[PREVIOUS] = str(before)
    if changes:
        summary[SCHEMA_CHANGES] = json.dumps(changes, ensure_ascii=False)
    return summary


def _earlier(store: Any, version: int, consumer_group: str, run_id: str) -> Iterator[tuple[int, Landing]]:
    """Yield a run's landings from a version backwards; they follow each other, so another run's landing is the end."""
    current: int | None = version
    while current is not None and (item := landing_at(store, current, consumer_group)) and item[0].run_id == run_id:
        yield current, item[0]
        current = item[1]


def _generation(head: DeltaTableHead, consumer_group: str) -> int:
    """Return the number of the group's landings by the table's property; 0 without the property."""
    return int(head.properties.get(GENERATION_PREFIX + consumer_group, 0))
