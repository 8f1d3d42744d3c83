"""What a pipeline's file comes to: a DAG's settings and the arguments of the operator that lands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from airflow_lakestream.pipelines.yaml_file import Place

NEVER = "never"
# As `lakestream init` has them.
SCHEDULES: Mapping[str, str] = {
    "extract": "*/5 * * * *",
    "group": "*/15 * * * *",
    **dict.fromkeys(("spark", "flink", "connect"), "@continuous"),
}


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A pipeline, checked; all values are JSON's.

    :param file: the file's path, as it was given.
    :param landing: the landing's arguments by the operators' names; none that the file leaves to its default.
    :param places: line and column of what the file says of each argument.
    :param keys: the file's key of each argument, such as `sinks.lake.partition_by`.
    :param retry_delay: seconds.
    :param on_failure: functions, as `module:function`.
    :param deadline: seconds from when a run is queued; `on_deadline` is an async function that is called after that.
    :param own: what the file says for its engine alone, in the section of the engine's name.
    """

    file: str
    name: str
    engine: str
    mode: str
    table_format: str
    landing: Mapping[str, Any]
    places: Mapping[str, Place] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    owner: str | None = None
    description: str | None = None
    tags: tuple[str, ...] = ()
    schedule: str | None = None
    start_date: str = "2026-01-01"
    catchup: bool = False
    retries: int = 3
    retry_delay: float = 60
    pool: str | None = None
    deferrable: bool | None = None
    on_failure: tuple[str, ...] = ()
    deadline: float | None = None
    on_deadline: str = ""
    own: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cron(self) -> str | None:
        """The schedule as Airflow takes it; None for a DAG that is only triggered."""
        said = self.schedule or SCHEDULES[self.engine]
        return None if said == NEVER else "@continuous" if said == "continuous" else said

    @property
    def is_continuous(self) -> bool:
        """Whether a run follows the one before at once."""
        return self.cron == "@continuous"

    def to_dict(self) -> dict[str, Any]:
        """Return values of JSON."""
        return asdict(self)

    @classmethod
    def of_dict(cls, found: Mapping[str, Any]) -> Compiled:
        """Return what `to_dict` made."""
        places = {name: (line, column) for name, (line, column) in found["places"].items()}
        tuples = {name: tuple(found[name]) for name in ("tags", "on_failure")}
        return cls(**{**found, "places": places, **tuples})
