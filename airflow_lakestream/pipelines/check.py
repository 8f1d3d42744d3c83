"""A pipeline checked as the run will check it, before anything is connected to: columns, SQL, what does not fit."""

from __future__ import annotations

from dataclasses import fields

from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.pipelines.compiled import Compiled
from airflow_lakestream.pipelines.compiling import problem_of
from airflow_lakestream.pipelines.errors import PipelineError

# Any interval: the run has its own.
_SOME_INTERVAL = {"interval_start": "2026-01-01", "interval_end": "2026-01-02"}


def configured(compiled: Compiled, **more: object) -> ExtractConfig:
    """Return what a pipeline's landing is told. Raises PipelineError.

    :param more: arguments that the run adds or replaces.
    """
    kind = MirrorConfig if compiled.mode == "mirror" else ExtractConfig
    known = {one.name for one in fields(kind)}
    told = {name: value for name, value in compiled.landing.items() if name in known}
    if compiled.mode == "mirror":
        told.pop("parallelism", None)
    try:
        return kind(**{"table_format": compiled.table_format, **told, **more})
    except InvalidArgument as error:
        raise PipelineError([problem_of(compiled, error)]) from None


def check(compiled: Compiled) -> ExtractConfig:
    """Check a pipeline; return its landing's configuration. Raises PipelineError."""
    return configured(compiled, **(_SOME_INTERVAL if compiled.mode == "replace" else {}))
