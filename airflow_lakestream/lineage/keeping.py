"""Keeper of the facts of a run in the worker, commit by commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from airflow_lakestream.core.landing.job import CommittedLanding
from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.lineage.facts import LineageFacts, TablePlace
from airflow_lakestream.lineage.looking import CommitFacts, look


class FactsKeeper:
    """Collects the facts of each commit of a try. Commits of earlier tries are left out: these emitted their own facts.

    :param lake: the catalog or store of the run's tables.
    """

    def __init__(self, facts: LineageFacts, lake: Any) -> None:
        self.facts = facts
        self._lake = lake
        self._committed: set[str] = set()

    def __call__(self, done: CommittedLanding) -> None:
        """Add the facts of a commit: offsets and counts of topics, rows and files of tables."""
        landing, snapshot = done.landing, str(done.snapshot_id)
        self.facts.landings.append(landing.landing_id)
        self._committed.add(snapshot)
        for identity, entry in landing.topics.items():
            read = self.facts.topic(identity.topic)
            read.counts = (read.counts or Counts()) + entry.counts
            read.ranges |= entry.landed | entry.replaced
            read.lost |= entry.lost
        commit = look(self._lake, done.table, [snapshot])
        # The commit of a home table has the rows of the tables that records chose.
        if commit is not None and commit.rows:
            self._take_targets(commit)
            return
        written = self.facts.table(done.table)
        if commit is None:
            written.add(landing.rows, None, None, snapshot)
            return
        written.add(landing.rows, commit.size, commit.files, snapshot)
        written.place = commit.place

    def ended(self, topics: Iterable[str], tables: Mapping[str, int], snapshots: Iterable[str]) -> None:
        """Note topics, tables and snapshots of the whole run, also of a run without new records.

        :param tables: the run's rows by table; only the names are used here.
        :param snapshots: the snapshots of all tries; those not committed by this try become `recovered`.
        """
        new = {name for name in tables if name not in self.facts.tables}
        self.facts.knows(topics, {name: _place(look(self._lake, name)) for name in sorted(new)})
        self.facts.recovered = [one for one in snapshots if one not in self._committed]

    def _take_targets(self, home: CommitFacts) -> None:
        """Add the rows of tables chosen by records: only the home table's commit has the rows of each table."""
        for name, rows in home.rows.items():
            written = self.facts.table(name)
            written.add(rows, None, None, None)
            written.place = written.place or _place(look(self._lake, name))


def _place(commit: CommitFacts | None) -> TablePlace | None:
    return None if commit is None else commit.place
