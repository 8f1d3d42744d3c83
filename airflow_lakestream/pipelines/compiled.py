"""A compiled pipeline: settings of a DAG, and arguments of the landing tasks and sensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from airflow_lakestream.exceptions import LakestreamError
from airflow_lakestream.pipelines.yaml_file import FileProblem, Place

NEVER = "never"
# The key of `FileArguments.places` for a part of the file as a whole.
WHOLE_PART = ""
# Modes of a sink whose table is a mirror, of a database's events or of plain records.
MIRROR_MODES = ("mirror", "upsert")
# The same as in `lakestream init`.
SCHEDULES: Mapping[str, str] = {
    "extract": "*/5 * * * *",
    "group": "*/15 * * * *",
    **dict.fromkeys(("spark", "flink", "connect"), "@continuous"),
}


@dataclass(frozen=True, kw_only=True)
class FileArguments:
    """Operator arguments set by a part of the file, by the operators' names, without defaults.

    :param places: line and column of each argument in the file; at `WHOLE_PART`, of the whole part.
    :param keys: the file's key of each argument, such as `sinks.lake.partition_by`.
    """

    arguments: Mapping[str, Any]
    places: Mapping[str, Place] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)

    def problem(self, file: str, error: LakestreamError) -> FileProblem:
        """Return an error about an argument as a problem of the file, with the file's key in place of the argument.

        The position is that of the argument, of the nearest argument that contains it (`checks` for `checks.sql`), or
        of the whole part.
        """
        argument = getattr(error, "argument", "").removeprefix("landing.")
        while argument not in self.places and "." in argument:
            argument = argument.rpartition(".")[0]
        argument = argument if argument in self.places else WHOLE_PART
        line, column = self.places.get(argument, (1, 1))
        text = " ".join(str(error).split())
        if argument in self.keys:
            text = text.removeprefix(f"{argument}: ").removeprefix(f"landing.{argument}: ")
            text = f"{self.keys[argument]}: {text}"
        return FileProblem(file, line, column, text)


@dataclass(frozen=True, kw_only=True)
class SinkLanding(FileArguments):
    """The compiled landing into a sink: operator arguments, mode and table format.

    :param sink: the sink's name in the file.
    :param apart: suffix for the names of its tasks, checkpoints and connectors; empty for a sink without `input`, of
        which a file has at most one.
    :param mode: append, replace, mirror or upsert, as in the file.
    """

    sink: str
    apart: str
    mode: str
    table_format: str

    @property
    def is_mirror(self) -> bool:
        """Whether the table is a mirror, of a database's events or of plain records."""
        return self.mode in MIRROR_MODES

    @property
    def task_id(self) -> str:
        """The id of the task, or of the group of tasks."""
        return with_suffix("land", "_", self.apart)


@dataclass(frozen=True, kw_only=True)
class CompiledSensor(FileArguments):
    """A compiled sensor.

    :param kind: a key of `pipelines.operator.SENSORS`.
    :param before: names of the sinks whose landings wait for the sensor.
    :param after: name of the sink whose landing the sensor waits for; None if it waits for no landing.
    """

    task_id: str
    kind: str
    before: tuple[str, ...] = ()
    after: str | None = None


@dataclass(frozen=True, kw_only=True)
class TableMaintenance(FileArguments):
    """The compiled maintenance of a sink's table."""

    task_id: str


@dataclass(frozen=True, kw_only=True)
class CompiledPipeline:
    """A checked pipeline, with JSON-ready values.

    :param file: the file's path, as it was given.
    :param landings: empty in the pipeline that `upkeep` returns.
    :param maintenance: of the tables, by a DAG of its own; empty without the file's section.
    :param maintenance_schedule: of that DAG.
    :param alerts: `on_failure`: functions, as `module:function`; `on_deadline`: an async function that is called
        `deadline` seconds after a run was queued.
    :param retry_delay: seconds.
    :param own: settings of the engine's own section in the file.
    """

    file: str
    name: str
    engine: str
    landings: tuple[SinkLanding, ...]
    sensors: tuple[CompiledSensor, ...] = ()
    maintenance: tuple[TableMaintenance, ...] = ()
    maintenance_schedule: str | None = None
    alerts: FileArguments = FileArguments(arguments={})
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
    own: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cron(self) -> str | None:
        """The schedule for Airflow: of the file, or the engine's default; None for a DAG without a schedule."""
        schedule = self.schedule or SCHEDULES[self.engine]
        return None if schedule == NEVER else "@continuous" if schedule == "continuous" else schedule

    @property
    def replaces(self) -> bool:
        """Whether a run needs a data interval: a landing replaces the rows of the run's interval."""
        return any(landing.mode == "replace" for landing in self.landings)

    @property
    def upkeep(self) -> CompiledPipeline | None:
        """The DAG of the maintenance, as a pipeline without landings; or None."""
        if not self.maintenance or not self.landings:
            return None
        alerts = {key: one for key, one in self.alerts.arguments.items() if key == "on_failure"}
        return replace(
            self,
            name=f"{self.name}-maintenance",
            landings=(),
            sensors=(),
            alerts=replace(self.alerts, arguments=alerts),
            description=f"Maintenance of the tables of {self.name}.",
            schedule=self.maintenance_schedule,
            catchup=False,
        )

    @property
    def dags(self) -> tuple[CompiledPipeline, ...]:
        """The pipeline, and its maintenance as a pipeline of its own."""
        return (self,) if (upkeep := self.upkeep) is None else (self, upkeep)

    @property
    def on_failure(self) -> tuple[str, ...]:
        """The functions to call after a task's failure."""
        return tuple(self.alerts.arguments.get("on_failure", ()))

    @property
    def deadline(self) -> float | None:
        """Most seconds from the queueing of a run to its end, or None."""
        return self.alerts.arguments.get("deadline")

    @property
    def on_deadline(self) -> str:
        """The function to call after the deadline."""
        return str(self.alerts.arguments.get("on_deadline", ""))

    def landing_of(self, sink: str) -> SinkLanding:
        """Return the landing of a sink. Raises KeyError if the file has no such sink."""
        return {landing.sink: landing for landing in self.landings}[sink]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return asdict(self)

    @classmethod
    def of_dict(cls, found: Mapping[str, Any]) -> CompiledPipeline:
        """Return the pipeline of which `to_dict` returned these values, also after JSON has made lists of tuples."""
        parts = {
            "landings": tuple(_read(SinkLanding, one) for one in found["landings"]),
            "sensors": tuple(_read(CompiledSensor, one) for one in found["sensors"]),
            "maintenance": tuple(_read(TableMaintenance, one) for one in found["maintenance"]),
            "alerts": _read(FileArguments, found["alerts"]),
            "tags": tuple(found["tags"]),
        }
        return cls(**{**found, **parts})


def with_suffix(name: str, between: str, suffix: str) -> str:
    """Return a name with the sink's suffix, or unchanged for an empty suffix."""
    return f"{name}{between}{suffix}" if suffix else name


Part = TypeVar("Part", bound=FileArguments)


def _read(kind: type[Part], found: Mapping[str, Any]) -> Part:
    places = {name: (line, column) for name, (line, column) in found["places"].items()}
    tuples = {"before": tuple(found["before"])} if "before" in found else {}
    return kind(**{**found, "places": places, **tuples})
