"""Landings of all hostile records by each way of the worker: without checks, with all hostile checks, and the next.

A program of its own, whose memory is its landings': `python -m tests.unit.checks.hostile_landings KIND FOLDER`.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_lakestream.config.checks import auditor_of
from airflow_lakestream.core.checks import ChecksFailed
from airflow_lakestream.core.landing.job import LandingJob
from airflow_lakestream.core.policies import MergeMode
from airflow_lakestream.core.sharing.parallel import folder_of, land_pieces, plan_shares, read_share
from tests.support.given_records import GivenLake
from tests.support.hostile_checks import PRODUCT, SCHEMA, TEXTS, hurry, number_of, records_of_texts
from tests.support.mirroring import Event, HandDeltaMirror, HandMirror
from tests.support.peak_memory import own_peak_bytes

Land = Callable[[str, Mapping[str, Any]], list[Any]]


def lake_in(folder: Path, table_format: str) -> GivenLake:
    """Return a table in a folder."""
    folder.mkdir(exist_ok=True)
    return GivenLake(folder, table_format)


def worker(folder: Path, table_format: str) -> Land:
    """Return what lands the records in a table of this name, and returns the texts that it has."""

    def land(name: str, checks: Mapping[str, Any]) -> list[Any]:
        lake = lake_in(folder / name, table_format)
        lake.land(records_of_texts(), schema=SCHEMA, checks=dict(checks) or None)
        return [row["s"] for row in lake.rows()]

    return land


def group(folder: Path) -> Land:
    """Return the same with two tasks that read, and one that commits."""

    def land(name: str, checks: Mapping[str, Any]) -> list[Any]:
        lake = lake_in(folder / name, "iceberg")

        def job() -> LandingJob:
            return lake.job(records_of_texts(), schema=SCHEMA, checks=dict(checks) or None)

        staged = folder_of(name)
        plan = plan_shares(job(), 2, least_width=1)
        pieces = [piece for share in plan.shares for piece in read_share(job(), share, staged)]
        land_pieces(job(), pieces, plan.within, staged)
        return [row["s"] for row in lake.rows()]

    return land


def mirror(folder: Path, kind: type[HandMirror], mode: MergeMode) -> Land:
    """Return the same with events that change a database's rows."""

    def land(name: str, checks: Mapping[str, Any]) -> list[Any]:
        is_new = not (folder / name).exists()
        made = kind(folder / name, modes=[mode])
        count = len(TEXTS)
        if is_new:
            made.land([Event("c", at, ("", "0"), at, at, offset=at) for at in range(count)])
        changes = [(count + at, at, text) for at, text in enumerate(TEXTS)]
        sql = [one.replace("landing", f"({ROWS})") for one in checks.get("sql", ())]
        of_mirror = {"not_null": "id", **({"sql": sql} if sql else {})} if checks else {}
        made.design = replace(made.design, auditor=auditor_of({"checks": of_mirror}) if of_mirror else None)
        made.land([Event("u", key, (text, str(number_of(text))), at, at, offset=at) for at, key, text in changes])
        return [text for _, (text, _) in sorted(made.rows().items())]

    return land


# The columns of a mirror by the names of the records' fields.
ROWS = "SELECT *, name AS s, big::BIGINT AS n FROM landing"
KINDS: dict[str, Callable[[Path], Land]] = {
    "worker": lambda folder: worker(folder, "iceberg"),
    "worker, Delta": lambda folder: worker(folder, "delta"),
    "group": group,
    "mirror": lambda folder: mirror(folder, HandMirror, MergeMode.COPY_ON_WRITE),
    "mirror, merged on read": lambda folder: mirror(folder, HandMirror, MergeMode.MERGE_ON_READ),
    "mirror, Delta": lambda folder: mirror(folder, HandDeltaMirror, MergeMode.AUTO),
}


def main() -> None:
    """Land thrice; print what the landings have taken and found as JSON."""
    land = KINDS[sys.argv[1]](Path(sys.argv[2]))
    hurry()
    without = land("without", {})
    before = own_peak_bytes()
    try:
        land("checked", PRODUCT)
        failed = []
    except ChecksFailed as error:
        failed = [one.check for one in error.findings]
    of_checks = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    more = own_peak_bytes() - before + of_checks
    rows = land("checked", {"not_null": "n"})
    print(json.dumps({"failed": failed, "more": more, "without": without == TEXTS, "next": rows == TEXTS}))


if __name__ == "__main__":
    main()
