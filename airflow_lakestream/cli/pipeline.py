"""The command `lakestream pipeline`: check, show and compile pipeline files, and run a pipeline without a scheduler."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airflow_lakestream.cli.arguments import landings_of, read_pipeline, variable_lookup
from airflow_lakestream.cli.connections import Json, open_kafka, open_lake, open_registry, output_to_stderr, report_text
from airflow_lakestream.core.printable import counted, printable
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.lakes import LakeCapability, lake_of

if TYPE_CHECKING:
    from airflow_lakestream.pipelines.compiled import CompiledPipeline, SinkLanding
    from airflow_lakestream.pipelines.folder import BrokenFile

app = typer.Typer(help="Check, show and run pipelines in YAML.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(help="a pipeline's file", exists=True, dir_okay=False)]
Engine = Annotated[str | None, typer.Option("--engine", help="instead of the file's own")]
Sink = Annotated[str | None, typer.Option("--sink", help="one of the file's; default: all of them")]


@app.command()
def validate(paths: Annotated[list[Path], typer.Argument(help="files, or folders of them", exists=True)]) -> None:
    """Check pipelines as a run would, including their SQL, without a connection. Exit code 2: something is wrong."""
    with output_to_stderr():
        from airflow_lakestream.pipelines.dags import make_dags, make_functions_importable
        from airflow_lakestream.pipelines.folder import read_path

        make_functions_importable(paths)
        right_count = 0
        wrong: list[BrokenFile] = []
        for path in paths:
            folder = read_path(path, variable_lookup())
            _, broken = make_dags(folder)
            # `broken` has the wrong files, and right files whose DAG can't be made.
            right_count += len(folder.right) + len(folder.wrong) - len(broken)
            wrong += broken
    problems = [problem for file in wrong for problem in file.problems]
    for problem in sorted(problems):
        report_text(printable(str(problem)), err=True)
    if partial := sorted(file.file for file in wrong if file.is_partial):
        report_text(printable(f"Correct these first: {', '.join(partial)} will then be checked further."), err=True)
    mistakes = f" ({counted(len(problems), 'mistake')})" if problems else ""
    report_text(f"{right_count} right, {len(wrong)} wrong{mistakes}.")
    raise typer.Exit(2 if problems else 0)


@app.command()
def plan(file: File, sink: Sink = None, as_json: Json = False) -> None:
    """Print the changes by the next run: tables, columns, and offsets to land."""
    with output_to_stderr():
        from airflow_lakestream.pipelines.check import check, refuse_rendered

        compiled = read_pipeline(file)
        # The whole file has to be right, even if one sink is asked for.
        check(compiled)
        landings = landings_of(compiled, sink)
        refuse_rendered(compiled, landings)
        planned = [_planned(compiled, landing) for landing in landings]
    if as_json:
        plans = [values for values, _ in planned]
        is_single = len(compiled.landings) == 1 or sink
        report_text(json.dumps(plans[0] if is_single else plans, indent=2))
        return
    report_text(f"{compiled.name}, by the engine {compiled.engine}")
    for values, text in planned:
        if len(compiled.landings) > 1:
            report_text(f"{values['sink']}:")
        report_text("\n".join(f"  {line}" for line in values["columns"]))
        report_text(text)


def _planned(compiled: CompiledPipeline, landing: SinkLanding) -> tuple[dict[str, Any], str]:
    """Return the plan of the next run for a sink: JSON-ready values, and the offsets as text.

    Raises InvalidArgument for a sink with mode replace, and the errors of `dry_run`.
    """
    from airflow_lakestream.cli.plan import dry_run
    from airflow_lakestream.pipelines.check import make_config
    from airflow_lakestream.run.job import build_job

    if landing.mode == "replace":
        problem = f"plan shows what is appended; {landing.sink}: {landing.mode}."
        raise InvalidArgument("file", problem, "Say another sink with --sink.")
    config = make_config(compiled, landing, **_registry(landing))
    kafka = open_kafka(_connection(landing, "kafka"))
    lake = open_lake(config.table, _connection(landing, "iceberg"), landing.arguments.get("storage_conn_id"))
    job = build_job(config, kafka.configuration, lake, run_id="dry run", where=kafka.where, dry=True)
    next_plan = dry_run(job, lake)
    values = {"pipeline": compiled.name, "engine": compiled.engine, "sink": landing.sink}
    return {**values, "columns": _columns(config, lake), **next_plan.to_dict()}, next_plan.render()


@app.command()
def render(file: File, engine: Engine = None) -> None:
    """Print the DAG of a pipeline as Python."""
    with output_to_stderr():
        from airflow_lakestream.pipelines.operator import python_of

        compiled = read_pipeline(file, engine)
    report_text(python_of(compiled).removesuffix("\n"))


@app.command()
def run(
    file: File,
    engine: Engine = None,
    sink: Sink = None,
    start: Annotated[str | None, typer.Option("--interval-start", help="of a pipeline that replaces")] = None,
    end: Annotated[str | None, typer.Option("--interval-end", help="of a pipeline that replaces")] = None,
) -> None:
    """Land once, here, without a scheduler: all missing records, with the ledger shared by all runs."""
    with output_to_stderr():
        from airflow_lakestream.pipelines.check import refuse_rendered

        compiled = read_pipeline(file, engine)
        if compiled.engine not in ("extract", "group"):
            problem = f"{compiled.engine} is supervised by a task of Airflow."
            raise InvalidArgument("--engine", problem, "Trigger the DAG, or land here with --engine extract.")
        if not compiled.replaces and (start or end):
            modes = ", ".join(sorted({landing.mode for landing in compiled.landings}))
            raise InvalidArgument("--interval-start", f"is for mode: replace; the pipeline's mode is {modes}.")
        landings = landings_of(compiled, sink)
        refuse_rendered(compiled, landings)
    for landing in landings:
        interval = {"interval_start": start, "interval_end": end} if landing.mode == "replace" else {}
        with output_to_stderr():
            line = _land(compiled, landing, interval)
        # Each landing is reported at once: the next landing may fail.
        report_text(printable(line))


def _land(compiled: CompiledPipeline, landing: SinkLanding, interval: Mapping[str, str | None]) -> str:
    """Land a sink's missing records once, and return the line of the report."""
    from airflow_lakestream.pipelines.check import make_config
    from airflow_lakestream.run.summary import last_line
    from airflow_lakestream.run.topics import land_run

    config = make_config(compiled, landing, **interval, **_registry(landing))
    kafka = open_kafka(_connection(landing, "kafka"))
    lake = open_lake(config.table, _connection(landing, "iceberg"), landing.arguments.get("storage_conn_id"))
    run_id = f"lakestream pipeline run {uuid.uuid4()}"
    report = land_run(config, kafka.configuration, lake, run_id=run_id, where=kafka.where, stop=threading.Event())
    return last_line(report, config, _connection(landing, "iceberg"))


@app.command()
def schema() -> None:
    """Print the JSON Schema of pipelines, for completion and checks in YAML editors."""
    from airflow_lakestream.pipelines.model import json_schema

    report_text(json.dumps(json_schema(), indent=2))


def _connection(landing: SinkLanding, kind: str) -> str:
    return str(landing.arguments.get(f"{kind}_conn_id", f"{kind}_default"))


def _registry(landing: SinkLanding) -> dict[str, Any]:
    return dict(open_registry(landing.arguments, _connection(landing, "kafka")))


def _columns(config: Any, lake: Any) -> list[str]:
    """Return a line about a run's table: the columns of a new table, or the new columns of an existing table."""
    from airflow_lakestream.tables.schema.types import schema_text

    schema = config.design.schema
    existing = _existing_columns(config.table, lake)
    if existing is None:
        columns = "the first records set the columns" if schema is None else schema_text(schema)
        return [f"{config.table} is made: {columns}"]
    lacking = [] if schema is None else [field.name for field in schema.fields if field.name not in existing]
    if not lacking:
        return [f"{config.table} is there"]
    evolution = f"schema_evolution is {config.schema_evolution}"
    return [f"{config.table} is there; it lacks {', '.join(lacking)}, and {evolution}"]


def _existing_columns(table: str, lake: Any) -> set[str] | None:
    """Return the columns of a table, or None if the table does not exist."""
    if LakeCapability.CATALOG not in lake_of(table).can:
        head = lake.open(table)
        return None if head is None else set(head.schema.names)
    return set(lake.load_table(table).schema().column_names) if lake.table_exists(table) else None
