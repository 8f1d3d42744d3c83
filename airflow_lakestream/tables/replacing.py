"""What a landing that replaces has to be, whatever the table's format."""

from __future__ import annotations

from airflow_lakestream.core.ledger import Landing, TopicIdentity
from airflow_lakestream.core.ranges import RangeSet


def what_it_replaces(landing: Landing) -> tuple[TopicIdentity, RangeSet]:
    """Return the one topic that a landing replaces ranges of, and the ranges."""
    changes = [(identity, entry) for identity, entry in landing.topics.items() if entry.replaced or entry.held]
    if len(changes) != 1 or changes[0][1].held or not changes[0][1].replaced:
        raise AssertionError(f"landing {landing.landing_id} is not one that replaces ranges of one topic only")
    return changes[0][0], changes[0][1].replaced
