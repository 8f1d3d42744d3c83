"""Reading and check of a pipeline's file."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from threading import Thread

from airflow_lakestream.pipelines.compiled import CompiledPipeline
from airflow_lakestream.pipelines.errors import FileProblem, PipelineError

log = logging.getLogger(__name__)

# Larger than any pipeline; a larger file with the suffix .yaml has another purpose.
_MOST_BYTES = 1 << 20


def read_file(path: Path, lookup: Callable[[str], str], *, engine: str | None = None) -> CompiledPipeline:
    """Return the pipeline of a file, compiled, without a check of DDL and SQL. Raises PipelineError.

    :param lookup: returns the value of `${NAME}`; see `variables.looked_up`.
    :param engine: an engine in place of the file's own.
    """
    return read_text(text_of(path, str(path)), str(path), lookup, engine)[0]


def text_of(path: Path, name: str) -> str:
    """Return a file's text.

    Raises PipelineError if the file can't be read, is larger than a mebibyte, or is not UTF-8.

    :param name: the file's name in errors.
    """
    try:
        with path.open("rb") as file:
            # A device or a pipe may never end.
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise PipelineError([FileProblem(name, 0, 0, f"it can't be read ({error.strerror}).")]) from None
    if len(data) > _MOST_BYTES:
        raise PipelineError([FileProblem(name, 0, 0, "it has more than a mebibyte; a pipeline has less.")])
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise PipelineError([FileProblem(name, 0, 0, f"it is not UTF-8 text (byte {error.start}).")]) from None


def read_text(
    text: str, name: str, lookup: Callable[[str], str], engine: str | None = None
) -> tuple[CompiledPipeline, frozenset[str]]:
    """Return the compiled pipeline of a file's text, and the names of its variables. Raises PipelineError.

    :param name: the file's name in errors.
    :param lookup: returns the value of `${NAME}`; see `variables.looked_up`.
    :param engine: an engine in place of the file's own.
    """
    # Imported here, since files in the memory do not need it.
    from airflow_lakestream.pipelines.compiling import compile_document
    from airflow_lakestream.pipelines.yaml_file import read_document

    document = read_document(name, text, lookup)
    return compile_document(document, engine), document.variables


def problems_of(compiled: CompiledPipeline) -> list[FileProblem]:
    """Return the problems of a pipeline that `check` finds: of DDL and SQL, and other refusals of a run."""
    # Imported here, since it imports PyIceberg's types, and unchanged files are not checked again.
    from airflow_lakestream.pipelines.check import check

    try:
        check(compiled)
    except PipelineError as error:
        return error.problems
    return []


def problems_within(seconds: float, compiled: CompiledPipeline) -> list[FileProblem] | None:
    """Return the problems that `problems_of` finds within a time, or None if it fails in this process.

    A failure is logged. Raises TimeoutError after the time; the check then continues in a thread, without use.
    """
    found: list[list[FileProblem] | None] = []

    def look() -> None:
        try:
            found.append(problems_of(compiled))
        except Exception:
            # Such as a missing extra in the process that parses DAG files, or no child process to check a statement.
            log.warning("The pipeline %s was not checked; its run does it.", compiled.name, exc_info=True)
            found.append(None)

    looking = Thread(target=look, daemon=True)
    looking.start()
    looking.join(seconds)
    if not found:
        raise TimeoutError
    return found[0]
