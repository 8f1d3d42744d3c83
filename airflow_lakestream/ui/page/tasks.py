"""The tasks of a DAG that land streams, found in Airflow's serialized JSON without building the DAG.

Texts are as in the DAG file: only a run renders templates.
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
    """Return the reason for which a DAG has no intervals to backfill, or None for a DAG with intervals.

    :param dag: the DAG in Airflow's serialized JSON.
    """
    allowed = dag.get("allowed_run_types")
    if isinstance(allowed, Mapping):
        allowed = allowed.get("__var")
    if isinstance(allowed, list) and "backfill" not in allowed:
        return _NOT_ALLOWED
    timetable = dag.get("timetable")
    encoded = timetable if isinstance(timetable, Mapping) else {}
    name = str(encoded.get("__type", "")).rpartition(".")[2]
    if name in _SCHEDULES:
        return _SCHEDULES[name]
    # Airflow 3 makes a trigger timetable, which has no intervals by default, of a cron text or a timedelta.
    values = encoded.get("__var")
    interval = values.get("interval") if isinstance(values, Mapping) else None
    return _NO_WIDTH if name.endswith("TriggerTimetable") and interval in (None, 0, 0.0) else None


def of_mode(engine: str, given: Mapping[str, Any], app: Mapping[str, Any]) -> str | None:
    """Return the reason for which a task lands no intervals, the mode `resume`, or None.

    Returns None also if only a run or another task knows the mode.

    :param engine: one of the values of `ENGINES`.
    :param given: the operator's arguments.
    :param app: the operator's `app_config`.
    """
    modes = {
        "extract": given.get("mode", "resume"),
        # The task that plans has the mode.
        "group": None,
        "spark": app.get("mode", "resume"),
    }
    mode = modes.get(engine, "resume")
    return RESUMES if mode == "resume" else None


# Beginning of the modules of this package's operators.
_OURS = "airflow_lakestream."
_MAINTENANCE = "maintain_iceberg"
# By operator, the engine that lands.
ENGINES = {
    "KafkaExtractOperator": "extract",
    "CommitPiecesOperator": "group",
    "KafkaMirrorOperator": "mirror",
    "SparkStreamingSubmitOperator": "spark",
    "FlinkSqlOperator": "flink",
    "KafkaConnectOperator": "connect",
    # The task of a pipeline whose file was never valid: its engine is unknown.
    "BrokenPipeline": "",
}
# Engines whose runs never end by themselves, and report their progress by the XCom `progress`.
LASTING = ("spark", "flink", "connect")
# Names of the arguments that buttons pass on: a stream's connections, and the decoding of its records.
KEPT = (*("kafka_conn_id", "iceberg_conn_id", "storage_conn_id"), *(*DECODING, "schema_evolution", "tombstones"))
# A template that the conf of a run fills in.
_PARAM = re.compile(r"\{\{\s*params\.(\w+)\s*\}\}")
_DAG_ID = re.compile(r"\{\{\s*dag\.dag_id\s*\}\}")
# Kind of the looks at a table's contents: their reports are long, and are read for a single stream.
CONTENTS = "contents"
# By sensor or operator, the kind of its looks.
LOOKS = {
    "IcebergSnapshotFreshnessSensor": "freshness",
    "CheckpointLagSensor": "lag",
    "RetentionRiskSensor": "retention",
    "TableContentsOperator": CONTENTS,
}


@dataclass(frozen=True, slots=True)
class StreamTask:
    """A task that lands. A name of topic, table or consumer group is None if only a run knows the name.

    :param texts: the names as in the DAG file, with templates.
    :param defaults: the defaults of those params of the DAG that occur in `texts`.
    :param no_backfill: the reason for which a backfill of the DAG lands no interval, or None.
    :param given: the arguments of `KEPT` that the DAG file sets.
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
        """Whether a run never ends by itself."""
        return self.engine in LASTING

    def written(self, conf: Mapping[str, str | None]) -> dict[str, str]:
        """Return the names in a run with a conf; parts that only the run knows stay templates."""
        values = {**self.defaults, **conf}
        return {name: _PARAM.sub(lambda m: values.get(m[1]) or m[0], text) for name, text in self.texts.items()}

    def table_of(self, conf: Mapping[str, str | None]) -> str | None:
        """Return the table of a run with a conf, or None if only the run knows the table."""
        table = self.written(conf).get("table", "{")
        return None if "{" in table else table

    @property
    def has_table_by_run(self) -> bool:
        """Whether records or the time choose the tables; all these tables are then one stream."""
        return "{" in _PARAM.sub("", self.texts.get("table", ""))

    @property
    def has_table_by_form(self) -> bool:
        """Whether the DAG's form chooses the table."""
        return _PARAM.search(self.texts.get("table", "")) is not None


@dataclass(frozen=True, slots=True)
class LookTask:
    """A mapped task that looks at each stream in the list that the task `listed_by` returns."""

    task_id: str
    kind: str
    listed_by: str


@dataclass(frozen=True, slots=True)
class DagStreams:
    """The tasks of a DAG that land streams or look at streams, with the DAG's tags.

    `broken` is the first problem of a pipeline's file, or None for a valid file and for any other DAG.
    """

    streams: tuple[StreamTask, ...] = ()
    looks: tuple[LookTask, ...] = ()
    tags: tuple[str, ...] = ()
    broken: str | None = None


def find_streams(data: Mapping[str, Any]) -> DagStreams:
    """Return the streams, looks and tags in the JSON of a serialized DAG.

    Only operators of this package land or look at streams. Nothing is imported from the DAG file.
    """
    dag = _map(data.get("dag"))
    tasks = [dict(_map(task)) for task in dag.get("tasks", [])]
    ours = [task for task in tasks if str(task.get("_task_module", "")).startswith(_OURS)]
    dag_id = str(dag.get("dag_id", ""))
    tags = sorted(map(str, _list(dag.get("tags"))))
    streams = tuple(_streams(ours, of_schedule(dag), dag_id))
    return DagStreams(streams, tuple(_looks(ours)), tuple(tags), _problem_of_file(str(dag.get("description")), tags))


def _problem_of_file(description: str, tags: list[str]) -> str | None:
    """Return the problem in the description that `pipelines.dags.broken_dag` writes, or None for any other DAG."""
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
        texts = {name: _DAG_ID.sub(dag_id, text) for name, text in names.items() if text}
        params = {param for text in texts.values() for param in _PARAM.findall(text)}
        yield StreamTask(
            task_id=str(task["task_id"]),
            operator=operator,
            engine=ENGINES[operator],
            **{name: text if text and "{{" not in text else None for name, text in names.items()},
            texts=texts,
            defaults=_defaults(task, params),
            has_outlets=bool(given.get("outlets")),
            no_backfill=no_intervals or of_mode(ENGINES[operator], given, _map(given.get("app_config"))),
            is_mirror=ENGINES[operator] == "mirror" or given.get("app") in MIRROR_APPS,
            is_mapped=bool(given.get("_is_mapped")),
            given={name: _map(given[name]) or given[name] for name in KEPT if given.get(name) is not None},
        )


def _defaults(task: Mapping[str, Any], names: set[str]) -> dict[str, str | None]:
    """Return by param the default value of the DAG's form, or None for a value that can't be in a name.

    :param names: the params to return.
    """
    params = task.get("params")
    pairs = params if isinstance(params, list) else []
    values = {str(name): _map(param).get("default") for name, param in pairs}
    return {name: param_text(values.get(name)) for name in sorted(names)}


def param_text(value: Any) -> str | None:
    """Return a param's value as text, or None if it is empty, or neither a text nor a whole number."""
    return str(value) if isinstance(value, str | int) and value != "" else None


def _names(given: Mapping[str, Any]) -> dict[str, str | None]:
    """Return topic, table and consumer group in an operator's arguments, its app_config, or its connector's config."""
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
    """Return the id of the task whose XCom an expansion maps over, or None; the XCom may be nested."""
    if isinstance(value, Mapping):
        if "task_id" in value and "key" in value:
            return _text(value["task_id"])
        value = list(value.values())
    if isinstance(value, list):
        return next((task_id for item in value if (task_id := _xcom_of(item))), None)
    return None


def _map(value: Any) -> Mapping[str, Any]:
    """Return a mapping, or an empty mapping for any other value."""
    # Airflow wraps some values together with their type.
    inner = value.get("__var", value) if isinstance(value, Mapping) else None
    return inner if isinstance(inner, Mapping) else {}


def _list(value: Any) -> list[Any]:
    inner = value.get("__var", value) if isinstance(value, Mapping) else value
    return inner if isinstance(inner, list) else []


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
