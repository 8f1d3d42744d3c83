"""Tables that records choose, by this package's Spark app and by one process, in turn in one program."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from dev.bench.lab import Lab
from dev.bench.lake import NAMESPACE, Lake, Landed, look_at
from dev.bench.peers import LandedWrong, landing_app
from dev.bench.peers.landing import sample_of
from dev.bench.results import Sample
from dev.bench.rows import Row


def missing(row: Row, lab: Lab) -> str | None:
    """Return what is not here that it needs."""
    return landing_app.missing(row, lab)


def run(rows: Sequence[Row], lab: Lab, number: int) -> Mapping[str, Sample]:
    """Land the topic by executors and by one process, each into tables of its own; see `programs.fan_out`."""
    topic = lab.topic(rows[0].topic)
    with lab.lake(f"{rows[0].group}-{number}") as lake:
        path = landing_app.configuration(lab, lake, topic, rows[0].options).write(lake.folder / "app.json")
        told, done = lab.run_program("fan_out", {"config": path}, os.environ)
        found = {}
        for row in rows:
            by = row.name.removeprefix("fan-out-")
            landed = _landed(lake, by)
            if landed.rows != topic.records:
                raise LandedWrong(row, topic.records, landed.rows)
            found[row.name] = sample_of(row, number, topic, told[by]["records"], told[by], done, landed)
        return found


def _landed(lake: Lake, by: str) -> Landed:
    catalog = lake.catalog()
    names = [name for name in catalog.list_tables(NAMESPACE) if name[-1].startswith(f"{by}_")]
    found = [look_at(catalog.load_table(name)) for name in names]
    return Landed(
        rows=sum(one.rows for one in found),
        files=sum(one.files for one in found),
        commits=sum(one.commits for one in found),
        first_commit_at=min(one.first_commit_at for one in found),
    )
