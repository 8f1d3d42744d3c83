"""What all rows share in one run of the benchmark: the broker, the registry, the topics, and a place for each lake."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from dev.bench.airflow_home import airflow_env
from dev.bench.lake import Lake, new_lake
from dev.bench.process_tree import Finished, run_measured
from dev.bench.results import FOLDER
from dev.bench.topics import TOPICS, Filled, fill
from dev.progress import Say
from dev.service import CHECKOUT
from dev.services.kafka import Kafka
from dev.services.registry import Registry
from dev.stack import Stack

# Tasks without Spark run with what a user of them has installed, so that they import no more than that.
USER_PYTHON = FOLDER / "user" / "bin" / "python"
# Peers whose packages are none of ours live in an environment of their own.
PEERS_PYTHON = FOLDER / "venv" / "bin" / "python"


@dataclass(frozen=True)
class Installation:
    """An environment in which this package is installed.

    :param python: its interpreter.
    :param path: the folder that has `dev`, from which it imports the benchmark's programs.
    """

    python: Path
    path: Path = CHECKOUT

    def missing(self) -> str | None:
        """Return what is missing to run tasks as a user does, or None."""
        return None if self.python.exists() else f"{self.python} is not there; make bench installs it"


@dataclass
class Lab:
    """One run of the benchmark.

    :param records: how many the topics hold that don't say themselves.
    :param scale: what share of their records the others get, for a quick look.
    :param watches: whether the memory of what runs is watched, which takes some of its speed.
    :param user: where tasks run that need no Spark.
    """

    stack: Stack
    kafka: Kafka
    records: int
    scale: float
    say: Say
    watches: bool = True
    user: Installation = Installation(USER_PYTHON)
    _topics: dict[str, Filled] = field(default_factory=dict)

    @cached_property
    def registry(self) -> Registry:
        """The schema registry, started when the first asks."""
        return self.stack.up_registry()

    @cached_property
    def airflow(self) -> Mapping[str, str]:
        """The environment of a process in which Airflow runs."""
        return airflow_env(self.folder / "airflow")

    @property
    def folder(self) -> Path:
        """Where runs put what they need; it goes with the stack."""
        return self.stack.folder / "bench"

    def topic(self, name: str) -> Filled:
        """Return the topic, filled when the first asks."""
        if name not in self._topics:
            topic = TOPICS[name]
            records = max(20, int(topic.records * self.scale)) if topic.records else self.records
            self.say(f"topic {name}: producing {records:,} records")
            registry = None if topic.format == "json" else self.registry
            self._topics[name] = fill(name, topic, records, self.kafka, registry)
        return self._topics[name]

    @contextmanager
    def lake(self, run: str) -> Iterator[Lake]:
        """Give a run an empty lake."""
        with new_lake(self.folder / "lakes" / run) as lake:
            yield lake

    def run_program(
        self,
        name: str,
        arguments: Mapping[str, Any],
        env: Mapping[str, str],
        where: Installation = Installation(Path(sys.executable)),
        timeout: float = 600,
    ) -> tuple[dict[str, Any], Finished]:
        """Run a module of `dev.bench.programs`; return what it saw of itself, and what was seen of it."""
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            result = Path(scratch) / "result.json"
            options = [word for key, value in arguments.items() for word in (f"--{key}", str(value))]
            command = [str(where.python), "-m", f"dev.bench.programs.{name}", "--result", str(result), *options]
            # Safe: the folder in which make was called has this checkout's package, not the installed one.
            own = {**env, "PYTHONPATH": str(where.path), "PYTHONSAFEPATH": "1"}
            done = run_measured(command, own, timeout, watch=self.watches)
            return json.loads(result.read_text()), done
