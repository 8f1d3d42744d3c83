"""The pipeline of `lakestream init --yaml`, equivalent to a DAG file of the same landing."""

from __future__ import annotations

import re
from typing import Any

import yaml

from airflow_lakestream.onramp.dag_file import SCHEDULES, DagEngine, DagFile, column_texts, note_lines
from airflow_lakestream.pipelines.check import check
from airflow_lakestream.pipelines.compiling import compile_document
from airflow_lakestream.pipelines.yaml_file import read_document

_HEAD = """\
# A Kafka topic into a table. `lakestream pipeline validate` checks this file; `plan` says what a run would do.
"""
# Longer schemas have a line for each column: YAML would break them within a type.
_LINE = 80
_SECTIONS = {
    "sinks": "# The first run creates the table if it is missing.",
    "orchestration": "# Engines take turns: another word here, and that engine goes on where the table's ledger ends.",
}


def pipeline_text(file: DagFile) -> str:
    """Return the text of the pipeline's file, equivalent to a DAG file.

    Raises PipelineError if a pipeline can't express the DAG file.
    """
    comments = {name: [text] for name, text in _SECTIONS.items()}
    comments["sinks"] += note_lines(file.column_notes)
    text = _HEAD + "".join(
        "".join(f"{line}\n" for line in comments.get(name, [])) + dumped({name: part})
        for name, part in _parts(file).items()
    )
    check(compile_document(read_document(f"{file.dag_id}.yaml", text, _no_variable)))
    return text


def _parts(file: DagFile) -> dict[str, Any]:
    """Return the file's content by sections; arguments are in the source, except arguments about the table."""
    decoding = {name: list(value) if isinstance(value, list) else str(value) for name, value in file.decoding.items()}
    sql, sql_input = decoding.pop("sql", None), decoding.pop("sql_input", None)
    name = _name_of(file.topic)
    source: dict[str, Any] = {"type": "kafka", "topic": file.topic}
    sink: dict[str, Any] = {"type": str(file.lake.format), "table": file.table}
    for part, argument in ((source, "kafka_conn_id"), (sink, file.lake.connection)):
        if argument in file.connections:
            part["connection"] = file.connections[argument]
    if file.group != file.dag_id:
        source["consumer_group"] = file.group
    if "unknown_fields" in decoding:
        sink["unknown_fields"] = decoding.pop("unknown_fields")
    source |= decoding
    if file.engine is DagEngine.MIRROR:
        sink |= {"mode": "mirror", "key": list(file.key)}
    if file.columns is not None:
        (sink if sql is None or sql_input is None else source)["schema"] = columns_text(file.columns)
    engine = DagEngine.EXTRACT if file.engine is DagEngine.MIRROR else file.engine
    schedule = (file.schedule or SCHEDULES[file.engine]).replace("@continuous", "continuous")
    rows = [{"name": "rows", "type": "sql_transform", "input": name, "sql": sql}]
    return {
        "metadata": {"name": file.dag_id},
        "sources": {name: source},
        **({} if sql is None else {"transformations": rows}),
        "sinks": {"lake": sink},
        "orchestration": {"engine": str(engine), "schedule": schedule},
    }


def columns_text(columns: str) -> str:
    """Return a schema that is too long for a line with a line for each column."""
    return columns if len(columns) <= _LINE else ",\n".join(column_texts(columns))


def _name_of(topic: str) -> str:
    """Return a name for the source, made of the topic's: letters, digits, - and _ only."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", topic)[:100]
    return name if name[0].isalpha() or name[0] == "_" else f"_{name[:99]}"


class _PipelineDumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML has no types
    """Writes texts of several lines as blocks, and a dollar sign as `$$`, since a single dollar begins a variable."""

    def represent_str(self, text: str) -> yaml.ScalarNode:
        # PyYAML writes some invisible characters, such as U+0085, unchanged, and reads them back as something else.
        is_plain = text.replace("\n", "").isprintable()
        style = ("|" if "\n" in text else None) if is_plain else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", text.replace("$", "$$"), style)


_PipelineDumper.add_representer(str, _PipelineDumper.represent_str)


def dumped(part: Any) -> str:
    """Return a part of a pipeline as YAML; `read_document` reads an equal part back."""
    text: str = yaml.dump(part, Dumper=_PipelineDumper, sort_keys=False, allow_unicode=True, width=100)
    return text


def _no_variable(name: str) -> str:
    raise AssertionError(f"nothing in the file is a variable, and ${{{name}}} is")
