"""Tasks of a DAG with streams, found in the serialized JSON without building the DAG.

Texts are from the DAG file. Templates are rendered by a run, not here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_lakestream.config.decoding import DECODING
from airflow_lakestream.spark.apps import MIRROR_APPS

_USE_INTERVALS = "Give the DAG a schedule of intervals, such as CronDataIntervalTimetable."
_SCHEDULES = {
    "NullTimetable": f"The DAG has no schedule, so it has no intervals. {_USE_INTERVALS}",
    "OnceTimetable": f"The DAG runs once, so it has no intervals. {_USE_INTERVALS}",
    "ContinuousTimetable": f"The DAG runs continuously, so it has no intervals. {_USE_INTERVALS}",
    "AssetTriggeredTimetable": f"The DAG runs when an asset changes, so it has no intervals. {_USE_INTERVALS}",
    "PartitionedAssetTimetable": f"The DAG runs when an asset changes, so it has no intervals. {_USE_INTERVALS}",
}
_NO_WIDTH = f"The runs of this schedule are for points in time, not for intervals. {_USE_INTERVALS}"
_NOT_ALLOWED = "The DAG's allowed_run_types leave out backfills."
RESUMES = 'Each run lands what is not landed yet, in any interval: a backfill is for tasks with mode="interval".'


def of_schedule(dag: Mapping[str, Any]) -> str | None:
    """Return the reason for a DAG without intervals to backfill. `dag` is Airflow's serialized JSON.

    None for a DAG with intervals.
    """
    allowed = dag.get("allowed_run_types")
    if isinstance(allowed, Mapping):
        allowed = allowed.get("__var")
    if isinstance(allowed, list) and "backfill" not in allowed:
        return _NOT_ALLOWED
    timetable = dag.get("timetable")
    given = timetable if isinstance(timetable, Mapping) else {}
    name = str(given.get("__type", "")).rpartition(".")[2]
    if name in _SCHEDULES:
        return _SCHEDULES[name]
    # A plain cron text or a timedelta becomes such a timetable in Airflow 3.
    values = given.get("__var")
    interval = values.get("interval") if isinstance(values, Mapping) else None
    return _NO_WIDTH if name.endswith("TriggerTimetable") and interval in (None, 0, 0.0) else None


def of_mode(engine: str, given: Mapping[str, Any], app: Mapping[str, Any]) -> str | None:
    """Return the reason for a task without intervals to backfill: the mode `resume`.

    Returns None for any other mode, and if only a run or another task knows the mode.

    :param engine: one of the values of `ENGINES`.
    :param given: the operator's arguments.
    :param app: the operator's `app_config`.
    """
    modes = {
        "extract": given.get("mode", "resume"),
        # Known to its plan, which is another task.
        "group": None,
        "spark": app.get("mode", "resume"),
    }
    mode = modes.get(engine, "resume")
    return RESUMES if mode == "resume" else None


_OURS = "airflow_lakestream."
_MAINTENANCE = "maintain_iceberg"
# Engine that lands, by operator.
ENGINES = {
    "KafkaExtractOperator": "extract",
    "CommitPiecesOperator": "group",
    "KafkaMirrorOperator": "mirror",
    "SparkStreamingSubmitOperator": "spark",
    "FlinkSqlOperator": "flink",
    "KafkaConnectOperator": "connect",
    # The task of a pipeline that was never right: nobody knows its engine.
    "BrokenPipeline": "",
}
# A run of these engines goes on and on, and reports its progress by the XCom `progress`.
LASTING = ("spark", "flink", "connect")
# Arguments for the places of a stream's tables, and for decoding its records.
KEPT = (
    *("kafka_conn_id", "iceberg_conn_id", "storage_conn_id"),
    *(*DECODING, "schema_evolution", "tombstones"),
)
# A template that the conf of a run fills in.
_PARAM = re.compile(r"\{\{\s*params\.(\w+)\s*\}\}")
_DAG_ID = re.compile(r"\{\{\s*dag\.dag_id\s*\}\}")
# Reported for a single stream at a time, since it is long.
CONTENTS = "contents"
# Kind of look by sensor or operator, as in `SupervisionResult`.
LOOKS = {
    "IcebergSnapshotFreshnessSensor": "freshness",
    "CheckpointLagSensor": "lag",
    "RetentionRiskSensor": "retention",
    "TableContentsOperator": CONTENTS,
}


@dataclass(frozen=True, slots=True)
class StreamTask:
    """A task with landings. A name known only to a run is None; `texts` has the names as in the DAG file.

    `defaults` has the defaults of the DAG's params in `texts`. `no_backfill` is the reason for which a backfill of the
    DAG would land no interval, or None. `given` has the task's arguments of `KEPT` from the DAG file, without missing
    arguments.
    """

    task_id: str
    operator: str
    engine: str
    topic: str | None
    table: str | None
    consumer_group: str | None
    texts: Mapping[str, str]
    defaults: Mapping[str, str | None]
    has_outlets: bool
    no_backfill: str | None
    is_mirror: bool
    is_mapped: bool
    given: Mapping[str, Any]

    @property
    def lasts(self) -> bool:
        """Whether a run goes on and on."""
        return self.engine in LASTING

    def written(self, conf: Mapping[str, str | None]) -> dict[str, str]:
        """Return the names in a run with a conf, except parts known only to the run."""
        values = {**self.defaults, **conf}
        return {name: _PARAM.sub(lambda m: values.get(m[1]) or m[0], text) for name, text in self.texts.items()}

    def table_of(self, conf: Mapping[str, str | None]) -> str | None:
        """Return the table of a run with a conf, or None if only the run knows."""
        table = self.written(conf).get("table", "{")
        return None if "{" in table else table

    @property
    def has_table_by_run(self) -> bool:
        """Whether records, or the time, choose tables: then all these tables are the same stream."""
        return "{" in _PARAM.sub("", self.texts.get("table", ""))

    @property
    def has_table_by_form(self) -> bool:
        """Whether the DAG's form chooses the table."""
        return _PARAM.search(self.texts.get("table", "")) is not None


@dataclass(frozen=True, slots=True)
class LookTask:
    """A mapped task with a look at each stream in the list from the task `listed_by`."""

    task_id: str
    kind: str
    listed_by: str


@dataclass(frozen=True, slots=True)
class DagStreams:
    """Streams and looks of a DAG, with the DAG's tags.

    `broken` is the first problem of a broken pipeline, or None for any other DAG.
    """

    streams: tuple[StreamTask, ...] = ()
    looks: tuple[LookTask, ...] = ()
    tags: tuple[str, ...] = ()
    broken: str | None = None


def find_streams(data: Mapping[str, Any]) -> DagStreams:
    """Return the streams, looks and tags in the JSON of a serialized DAG.

    Only tasks with operators of this package are streams or looks. Nothing is imported from the DAG file.
    """
    dag = _map(data.get("dag"))
    tasks = [_plain(task) for task in dag.get("tasks", [])]
    ours = [task for task in tasks if str(task.get("_task_module", "")).startswith(_OURS)]
    dag_id = str(dag.get("dag_id", ""))
    tags = sorted(map(str, _list(dag.get("tags"))))
    streams = tuple(_streams(ours, of_schedule(dag), dag_id))
    return DagStreams(streams, tuple(_looks(ours)), tuple(tags), _problem_of_file(str(dag.get("description")), tags))


# Others may have the tag, too; `pipelines.dags.broken_dag` writes both.
def _problem_of_file(description: str, tags: list[str]) -> str | None:
    before, _, problem = description.partition("Broken: ")
    return problem if "broken" in tags and not before and problem else None


def _streams(tasks: list[dict[str, Any]], no_intervals: str | None, dag_id: str) -> Iterator[StreamTask]:
    for task in tasks:
        operator = str(task.get("task_type") or task.get("_task_type") or "")
        if operator not in ENGINES:
            continue
        # A mapped task has its constant arguments in `partial_kwargs`.
        given = {**_map(task.get("partial_kwargs")), **task}
        # Maintenance lands no rows, and a program of the user has no known topic and table.
        if given.get("app") == _MAINTENANCE or (operator == "SparkStreamingSubmitOperator" and not given.get("app")):
            continue
        names = _names(given)
        yield StreamTask(
            task_id=str(task["task_id"]),
            operator=operator,
            engine=ENGINES[operator],
            **{name: text if text and "{{" not in text else None for name, text in names.items()},
            texts=(texts := {name: _DAG_ID.sub(dag_id, text) for name, text in names.items() if text}),
            defaults=_defaults(task, {name for text in texts.values() for name in _PARAM.findall(text)}),
            has_outlets=bool(given.get("outlets")),
            no_backfill=no_intervals or of_mode(ENGINES[operator], given, _map(given.get("app_config"))),
            is_mirror=ENGINES[operator] == "mirror" or given.get("app") in MIRROR_APPS,
            is_mapped=bool(given.get("_is_mapped")),
            given={name: _map(given[name]) or given[name] for name in KEPT if given.get(name) is not None},
        )


def _defaults(task: Mapping[str, Any], names: set[str]) -> dict[str, str | None]:
    """Return the default values of the DAG's form, by param; None for a value unfit for a name.

    :param names: the params to return.
    """
    found = task.get("params")
    pairs = found if isinstance(found, list) else []
    usual = {str(name): _map(one).get("default") for name, one in pairs}
    return {name: param_text(usual.get(name)) for name in sorted(names)}


def param_text(value: Any) -> str | None:
    """Return a param as text for a name, or None if unfit: empty, or neither text nor whole number."""
    return str(value) if isinstance(value, str | int) and value != "" else None


def _names(given: Mapping[str, Any]) -> dict[str, str | None]:
    app, connector = _map(given.get("app_config")), _map(given.get("config"))
    return {
        "topic": _text(given.get("topic") or app.get("topic") or connector.get("topics")),
        "table": _text(given.get("table") or app.get("table") or connector.get("iceberg.tables")),
        "consumer_group": _text(given.get("consumer_group") or app.get("consumer_group")),
    }


def _looks(tasks: list[dict[str, Any]]) -> Iterator[LookTask]:
    for task in tasks:
        kind = LOOKS.get(str(task.get("task_type") or task.get("_task_type") or ""))
        if kind is None or not task.get("_is_mapped"):
            continue
        if listed_by := _xcom_of(task.get("expand_input")):
            yield LookTask(str(task["task_id"]), kind, listed_by)


def _xcom_of(value: Any) -> str | None:
    """Return the task of the first XCom in an expansion, behind any mapping."""
    if isinstance(value, Mapping):
        if "task_id" in value and "key" in value:
            return _text(value["task_id"])
        value = list(value.values())
    if isinstance(value, list):
        return next((found for one in value if (found := _xcom_of(one))), None)
    return None


def _plain(value: Any) -> dict[str, Any]:
    return dict(_map(value))


def _map(value: Any) -> Mapping[str, Any]:
    # Airflow wraps some values together with a type.
    inner = value.get("__var", value) if isinstance(value, Mapping) else None
    return inner if isinstance(inner, Mapping) else {}


def _list(value: Any) -> list[Any]:
    inner = value.get("__var", value) if isinstance(value, Mapping) else value
    return inner if isinstance(inner, list) else []


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
