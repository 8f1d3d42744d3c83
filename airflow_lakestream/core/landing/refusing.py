"""Check before a group's first landing: rows without a ledger must not be doubled."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from airflow_lakestream.core.landing.job import LandingJob
from airflow_lakestream.core.landing.modes import ResumeMode, RunMode
from airflow_lakestream.core.landing.plan import Plan
from airflow_lakestream.core.landing.unaccounted import ForeignRowQuery, LookForRows, RowsUnaccounted, texts
from airflow_lakestream.core.ledger import Ledger, TopicEntry, union
from airflow_lakestream.core.ports import TableState
from airflow_lakestream.core.ranges import RangeSet

log = logging.getLogger(__name__)


def refuse_doubling(job: LandingJob, table: TableState, entry: TopicEntry, plan: Plan, handed: RangeSet) -> Plan:
    """Return the plan with `foreign_rows` set. Raises RowsUnaccounted if the plan would double rows.

    Checks only if the group lands or resumes the topic for the first time: later rows are in its ledger. Otherwise the
    plan is returned unchanged.

    :param handed: the offsets of the handed pieces, landed together with the plan's.
    """
    is_first = not entry.landed or bool(plan.origin)
    if not is_first or not (plan.changes_the_ledger or handed):
        return plan
    asked = what_to_ask(job.mode, entry, plan, handed, [table.ledger, *table.other_ledgers.values()])
    rows = look(table.look_for_rows, asked, job.table, job.consumer_group)
    return replace(plan, foreign_rows=rows)


def what_to_ask(
    mode: RunMode, entry: TopicEntry, plan: Plan, handed: RangeSet, ledgers: Iterable[Ledger]
) -> ForeignRowQuery:
    """Return the query for rows doubled by a plan.

    Known are all offsets of the topic's name landed by any group. A resuming group asks for rows from its beginning on,
    other modes ask for rows at the offsets to land.
    """
    topic = plan.state.identity.topic
    landed = (one.landed for ledger in ledgers for of, one in ledger.topics.items() if of.topic == topic)
    if not isinstance(mode, ResumeMode):
        return ForeignRowQuery(topic, union(landed), ranges=plan.ranges | handed)
    # A group that begins at the log's start is to have all records: look from there, or a gap would go unseen.
    begins = {} if plan.origin and mode.from_the_first else {**plan.origin, **entry.origin}
    return ForeignRowQuery(topic, union(landed), begins)


def look(look_for_rows: LookForRows, asked: ForeignRowQuery, table: str, consumer_group: str) -> int:
    """Return the number of foreign rows outside the offsets to land, and warn of them.

    Raises RowsUnaccounted for foreign rows at the offsets to land.
    """
    rows = look_for_rows(asked)
    if rows.in_the_way:
        raise RowsUnaccounted(table, consumer_group, asked.topic, rows.in_the_way)
    if rows.outside:
        log.warning(
            "%s holds %s rows of %s that no ledger accounts for, outside the offsets that %r lands; they stay as they "
            "are: %s",
            table,
            rows.foreign_rows,
            asked.topic,
            consumer_group,
            texts(rows.outside, asked.topic),
        )
    return rows.foreign_rows
