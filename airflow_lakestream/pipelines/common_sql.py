"""Check of a file's transformations for Flink: the SQL has to be common to all engines; see docs/sql.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_lakestream.core.names import DEFAULT_METADATA
from airflow_lakestream.core.policies import OF_INPUT, is_template
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.pipelines.errors import FileProblem
from airflow_lakestream.pipelines.flow import RecordFlow
from airflow_lakestream.pipelines.model import Pipeline
from airflow_lakestream.pipelines.yaml_file import YamlDocument

if TYPE_CHECKING:
    import pyarrow as pa


def flink_problems(document: YamlDocument, pipeline: Pipeline, flow: RecordFlow) -> Iterator[FileProblem]:
    """Yield problems of a sink's statement for Flink. A statement with templates is left to the run."""
    # Imported here, since DuckDB takes a tenth of a second to import, and unchanged files are not compiled again.
    from airflow_lakestream.transform.raw_input import RAW_SCHEMA
    from airflow_lakestream.transform.to_flink.part import NotCommon
    from airflow_lakestream.transform.to_flink.translate import translated

    sql = str(flow.statement)
    if is_template(OF_INPUT.sub("", sql)):
        return
    step, place = flow.steps[-1], ""
    try:
        if flow.source.schema_ is None:
            translated(sql, RAW_SCHEMA, raw=True)
        else:
            translated(sql, _decoded(flow.source.schema_), raw=False)
    except NotCommon as refused:
        if refused.place is not None:
            step, line, column = flow.step_at(*refused.place)
            place = f"line {line}, column {column}: "
        text = f"{place}{refused.subject} {refused.reason}. {refused.remedy}"
        yield document.problem(("transformations", pipeline.transformations.index(step), "sql"), text)
    except InvalidArgument as refused:
        yield document.problem((*flow.last_at, "sql"), str(refused))


def _decoded(schema: str) -> pa.Schema:
    import pyarrow as pa

    from airflow_lakestream.decode.metadata import metadata_schema
    from airflow_lakestream.tables.schema.columns import payload_schema, to_schema

    return pa.schema([*payload_schema(to_schema(schema), ()), *metadata_schema(DEFAULT_METADATA)])
