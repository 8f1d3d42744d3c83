"""Check of a pipeline with a run's own rules, before any connection: columns, SQL, contradictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.config.literals import refuse_templates, templates_in
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.policies import OF_INPUT, is_literal, is_template
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.lakes import LAKES
from airflow_lakestream.pipelines.compiled import CompiledPipeline, CompiledSensor, SinkLanding, TableMaintenance
from airflow_lakestream.pipelines.operator import SENSORS
from airflow_lakestream.pipelines.yaml_file import FileProblem, PipelineError, YamlDocument
from airflow_lakestream.registry.config import is_address

# Any interval: the run has its own.
_SOME_INTERVAL = {"interval_start": "2026-01-01", "interval_end": "2026-01-02"}

# Placeholders for required arguments of a landing, if only a run renders them.
_SOME_NAMES = {"topic": "topic", "consumer_group": "group", "start_timestamp": 0, "key": ["key"]}
# Placeholder for the registry of a connection.
_SOME_REGISTRY = {"schema_registry": "http://localhost"}
# The meaning of each depends on the others: if one is unknown, all are left out.
_TOGETHER = {"sql", "sql_input", "schema", "partition_by", "sort_order"}
# They add columns to those of SQL or schema.
_MORE_COLUMNS = ("metadata_columns", "unknown_fields")


def refuse_rendered(compiled: CompiledPipeline, landings: Sequence[SinkLanding]) -> None:
    """Refuse templates, which only a task of Airflow renders. Raises PipelineError with each position."""
    problems = []
    for landing in landings:
        for name, value in landing.arguments.items():
            try:
                refuse_templates({name: value})
            except InvalidArgument as error:
                problems.append(landing.problem(compiled.file, error))
    if problems:
        raise PipelineError(problems)


def _as_known(landing: SinkLanding) -> SinkLanding:
    """Return a landing with only the arguments that are known without a run.

    Arguments with templates are left out, or replaced by placeholders if the configuration requires them. If the schema
    registry is not a URL, a placeholder takes its place, also if none is set: only a run looks up connections.
    """
    if not is_address(landing.arguments.get("schema_registry")):
        landing = replace(landing, arguments={**landing.arguments, **_SOME_REGISTRY})
    unknown = {name for name, value in landing.arguments.items() if any(templates_in(name, value))}
    if not unknown:
        return landing
    if unknown & _TOGETHER:
        unknown |= _TOGETHER
    some = {**_SOME_NAMES, "table": LAKES[landing.table_format].example}
    known = {name: value for name, value in landing.arguments.items() if name not in unknown}
    return replace(landing, arguments={**{name: some[name] for name in unknown & some.keys()}, **known})


def make_config(compiled: CompiledPipeline, landing: SinkLanding, **more: object) -> ExtractConfig:
    """Return the configuration of a pipeline's landing. Raises PipelineError.

    Arguments of an operator only, such as connection ids, are left out.

    :param more: configuration arguments in addition, or in place of the file's.
    """
    kind = MirrorConfig if landing.is_mirror else ExtractConfig
    known = {one.name for one in fields(kind)}
    # `parallelism` of a mirror is for Spark; the configuration would refuse it.
    arguments = {name: value for name, value in landing.arguments.items() if name in known}
    if landing.is_mirror:
        arguments.pop("parallelism", None)
    try:
        return kind(**{"table_format": landing.table_format, **arguments, **more})
    except InvalidArgument as error:
        raise PipelineError([landing.problem(compiled.file, error)]) from None


def check(compiled: CompiledPipeline) -> list[ExtractConfig]:
    """Check a pipeline's landings and sensors; return the configuration of each landing.

    The configurations may have placeholders, in place of values that only a run knows. Raises PipelineError with the
    problems of all landings and sensors.
    """
    found: list[ExtractConfig] = []
    problems: list[FileProblem] = []
    for landing in compiled.landings:
        try:
            interval = _SOME_INTERVAL if landing.mode == "replace" else {}
            config = make_config(compiled, _as_known(landing), **interval)
            _check_columns(landing, config)
            found.append(config)
        except PipelineError as error:
            problems += error.problems
        except InvalidArgument as error:
            problems.append(landing.problem(compiled.file, error))
    for sensor in compiled.sensors:
        try:
            _check_sensor(sensor)
        except InvalidArgument as error:
            problems.append(sensor.problem(compiled.file, error))
    # All tables have the same settings.
    for one in compiled.maintenance[:1]:
        try:
            _check_maintenance(one)
        except InvalidArgument as error:
            problems.append(one.problem(compiled.file, error))
    if problems:
        raise PipelineError(problems)
    return found


def syntax_problems(document: YamlDocument) -> Iterator[FileProblem]:
    """Yield the syntax errors of a file's statements, for a file with other mistakes, which `check` can't compile.

    Columns are not known here, and not checked. A statement with templates is left to the run.
    """
    # Imported here, since most files are right.
    from airflow_lakestream.transform import SqlTransform
    from airflow_lakestream.transform.messages import NO_SELECT, NO_SQL

    steps = document.content.get("transformations")
    for at, step in enumerate(steps if isinstance(steps, list) else ()):
        sql = step.get("sql") if isinstance(step, dict) else None
        if not isinstance(sql, str) or not OF_INPUT.search(sql) or is_template(OF_INPUT.sub("", sql)):
            continue
        try:
            SqlTransform(sql.strip().rstrip(";"))
        except InvalidArgument as error:
            if str(error).startswith((f"sql: {NO_SQL}", f"sql: {NO_SELECT}")):
                yield document.problem(("transformations", at, "sql"), str(error))


def _check_columns(landing: SinkLanding, config: ExtractConfig) -> None:
    """Check the columns in a landing's layout and checks, as a run does for a new table. Raises InvalidArgument.

    Without SQL or schema the columns are not known; nor are they if records or templates may add some.
    """
    design = config.design
    unsure = any(any(templates_in(name, landing.arguments.get(name))) for name in _MORE_COLUMNS)
    if landing.mode == "mirror" or design.schema is None or design.grows or unsure:
        return
    config.lake.check_columns(design)
    if (auditor := config.auditor) is not None:
        # Imported here, since most files have no checks.
        from airflow_lakestream.tables.schema.change import whole_schema
        from airflow_lakestream.tables.schema.types import arrow_schema

        auditor.check_columns(arrow_schema(whole_schema(design, None)))


def _check_maintenance(one: TableMaintenance) -> None:
    """Check literal settings of a maintenance; values with templates are left to the run. Raises InvalidArgument."""
    # Imported here, like the checks of sensors.
    from airflow_lakestream.config.arguments import positive_seconds
    from airflow_lakestream.config.maintenance import WORKS, MaintenanceSection

    known = {name: value for name, value in one.arguments.items() if is_literal(value)}
    if "budget" in known:
        positive_seconds("budget", known["budget"])
    works = {name: known[name] for name in WORKS if name in known}
    if any(works.values()):
        MaintenanceSection.parse({"tables": "some.table", **works})


def _check_sensor(sensor: CompiledSensor) -> None:
    """Check a sensor's arguments; a sensor with templates is left to the run. Raises InvalidArgument."""
    # Imported here, since it imports PyIceberg's tables, and most files have no sensors.
    from airflow_lakestream.watching.asking import make_check

    known = SENSORS[sensor.kind]
    arguments = {name: value for name, value in sensor.arguments.items() if name not in known.of_airflow}
    if is_literal({name: value for name, value in arguments.items() if value is not None}):
        make_check(known.check, {**known.defaults, **arguments})
