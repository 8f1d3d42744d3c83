"""What the page in Airflow costs: 1,000 streams with 300,000 landings on PostgreSQL, over HTTP.

By itself: `make bench ONLY=page`. Cold is the first request to a server that has just started, warm are those after it.
Seconds hang on what else the machine does; CPU seconds, which are those of server and database, much less.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from dev.bench.airflow_home import airflow_env
from dev.bench.figures import Figure
from dev.bench.page.server import Answer, api_server
from dev.bench.process_tree import run_measured
from dev.services.airflow import database_settings

if TYPE_CHECKING:
    from dev.bench.lab import Lab
    from dev.services.postgres import Postgres

STREAMS = 1_000
LANDINGS = 300
STARTS = 3
ROWS_OF_A_LANDING = 100
WARM = 10
BOUNDS_S = {"list, cold": 1, "list, warm": 0.2, "rows by hour": 1}
# So many rows a cold server may read of the large tables, which have 300,000 each.
MOST_READ = 60_000
_LARGE = ("asset_event", "dag_run", "task_instance", "xcom")
_USER = "ada"
_DATABASE = "page"
_LIST = "/lakestream/api/streams"
_HOURS = "/lakestream/api/hours"


def measure(lab: Lab) -> Iterator[Figure]:
    """Fill a database, ask servers for the page; yield the figures."""
    folder = lab.folder / "page"
    postgres = lab.stack.up_postgres()
    passwords = lab.folder / "passwords.json"
    passwords.write_text(json.dumps({_USER: _USER}))
    env = airflow_env(
        folder,
        {
            **database_settings(postgres.new_database(_DATABASE)),
            "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "600",
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{_USER}:admin",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        },
    )
    fill = [sys.executable, "-m", "dev.bench.page.streams", *map(str, (STREAMS, LANDINGS, ROWS_OF_A_LANDING))]
    seconds = run_measured(fill, env, timeout=1800, watch=False).seconds
    lab.say(f"{STREAMS:,} streams with {STREAMS * LANDINGS:,} landings are there after {seconds:.0f} s")
    yield from Asked(postgres, env, lab).figures()


class Asked:
    """The answers of some servers, one after the other."""

    def __init__(self, postgres: Postgres, env: Mapping[str, str], lab: Lab) -> None:
        self._postgres = postgres
        self._env = env
        self._lab = lab
        self._load: list[float] = []
        self._taken: dict[str, list[Answer]] = defaultdict(list)

    def figures(self) -> Iterator[Figure]:
        """Yield the figures."""
        before = self._read()
        self._ask(then=False)
        read = self._read() - before
        for _ in range(STARTS):
            self._ask(then=True)
        case = f"page of {STREAMS:,} streams"
        yield Figure(case, "load of the machine", statistics.median(self._load), "processes")
        for what, bound in BOUNDS_S.items():
            taken = self._taken[what]
            yield _bounded(case, what, statistics.median(one.seconds for one in taken), "s", bound)
            # The clock of CPU seconds has steps of a hundredth.
            yield Figure(case, f"{what}, CPU", statistics.mean(one.cpu_seconds for one in taken), "s")
        yield _bounded(case, f"rows that a cold list reads of {STREAMS * LANDINGS:,} landings", read, "rows", MOST_READ)

    def _ask(self, then: bool) -> None:
        """Ask a new server for the list, and `then` again, and for the rows by hour."""
        with api_server(self._env, self._lab.folder / "api-server.log", _USER, self._postgres.pid) as visitor:
            cold = self._take("list, cold", visitor.get(_LIST))
            _check_list(cold.body)
            self._load.append(os.getloadavg()[0])
            self._lab.say(f"a new server: the list after {cold.seconds:.2f} s")
            if not then:
                return
            for _ in range(WARM):
                self._take("list, warm", visitor.get(_LIST))
            hours = self._take("rows by hour", visitor.get(_HOURS))
            _check_hours(hours.body)
            self._lab.say(f"rows by hour after {hours.seconds:.2f} s")

    def _take(self, what: str, answer: Answer) -> Answer:
        self._taken[what].append(answer)
        return answer

    def _read(self) -> int:
        """Return how many rows of the large tables were read until now; backends that ended have told all."""
        with replace(self._postgres, database=_DATABASE).connect() as connection:
            told = connection.execute(
                "select relname, seq_tup_read + coalesce(idx_tup_fetch, 0) from pg_stat_user_tables"
            )
            return sum(int(str(count)) for name, count in told if name in _LARGE)


def _bounded(case: str, metric: str, value: float, unit: str, bound: float) -> Figure:
    return Figure(case, metric, value, unit, f"< {bound:g}", value < bound)


def _check_list(body: bytes) -> None:
    """Refuse figures of an answer that is wrong."""
    streams = json.loads(body)["streams"]
    assert len(streams) == STREAMS, len(streams)
    assert {one["landing"]["rows"] for one in streams} == {ROWS_OF_A_LANDING}
    assert sum(one["supervised"] is not None for one in streams) == STREAMS


def _check_hours(body: bytes) -> None:
    streams = json.loads(body)["streams"]
    assert len(streams) == STREAMS, len(streams)
    # Twelve landings an hour, but for those that found nothing, and for the first and the last hour.
    assert all(one["rows"][10] == 12 * ROWS_OF_A_LANDING for one in streams)
