"""A pipeline checked as the run will check it, before anything is connected to: columns, SQL, what does not fit."""

from __future__ import annotations

from dataclasses import fields

from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.config.literals import is_literal
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.pipelines.compiled import Compiled, Landing, Waiting
from airflow_lakestream.pipelines.errors import PipelineError, Problem
from airflow_lakestream.pipelines.operator import SENSORS

# Any interval: the run has its own.
_SOME_INTERVAL = {"interval_start": "2026-01-01", "interval_end": "2026-01-02"}


def configured(compiled: Compiled, landing: Landing, **more: object) -> ExtractConfig:
    """Return what a landing of a pipeline is told. Raises PipelineError.

    :param more: arguments that the run adds or replaces.
    """
    kind = MirrorConfig if landing.mode == "mirror" else ExtractConfig
    known = {one.name for one in fields(kind)}
    told = {name: value for name, value in landing.arguments.items() if name in known}
    if landing.mode == "mirror":
        told.pop("parallelism", None)
    try:
        return kind(**{"table_format": landing.table_format, **told, **more})
    except InvalidArgument as error:
        raise PipelineError([landing.problem(compiled.file, error)]) from None


def check(compiled: Compiled) -> list[ExtractConfig]:
    """Check a pipeline; return the configuration of each landing. Raises PipelineError."""
    found: list[ExtractConfig] = []
    problems: list[Problem] = []
    for landing in compiled.landings:
        try:
            found.append(configured(compiled, landing, **(_SOME_INTERVAL if landing.mode == "replace" else {})))
        except PipelineError as error:
            problems += error.problems
    for sensor in compiled.sensors:
        try:
            _check_sensor(sensor)
        except InvalidArgument as error:
            problems.append(sensor.problem(compiled.file, error))
    if problems:
        raise PipelineError(problems)
    return found


def _check_sensor(sensor: Waiting) -> None:
    # Here, since it takes PyIceberg's tables, and most files have no sensors.
    from airflow_lakestream.watching.checks import make_check

    known = SENSORS[sensor.kind]
    told = {name: value for name, value in sensor.arguments.items() if name not in known.of_airflow}
    if is_literal({name: value for name, value in told.items() if value is not None}):
        make_check(known.check, {**known.defaults, **told})
