"""Reading and check of a pipeline's file, with variables `${...}`: an Airflow variable, or a field of a connection."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Thread

from airflow_lakestream.core.secrecy import MASKED, is_secret_name, url_holds_secret
from airflow_lakestream.pipelines.compiled import CompiledPipeline
from airflow_lakestream.pipelines.yaml_file import FileProblem, PipelineError, read_document

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


def all_problems(error: PipelineError) -> list[FileProblem]:
    """Return the problems of an error of `read_text`, and those of the file's SQL that do not depend on them."""
    if error.document is None:
        return error.problems
    # Imported here, like `check`.
    from airflow_lakestream.pipelines.check import syntax_problems
    from airflow_lakestream.pipelines.compiling import with_new_places

    return with_new_places(error.problems, syntax_problems(error.document))


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


Lookup = Callable[[str], str]

_NAME = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_OF_CONNECTION = re.compile(r"connection:([\w.-]+)\.(host|port|schema|login|conn_type)", re.ASCII)
_WHERE = "Secrets belong into an Airflow connection: write its id."


def looked_up(variable: Callable[[str], object], connection: Callable[[str], Mapping[str, object] | None]) -> Lookup:
    """Return a function from the name in `${NAME}` to the value.

    The function raises LookupError for an unknown or malformed name, and for a secret. The error's text is the problem,
    and never contains the value.

    :param variable: returns an Airflow variable, or None.
    :param connection: returns the fields of a connection, or None. Only fields that are not secret are used.
    """

    def look(name: str) -> str:
        if name.startswith("connection:"):
            return _field(name, connection)
        if not _NAME.fullmatch(name):
            known = "Write ${NAME} for an Airflow variable, or ${connection:ID.host} for a field of a connection"
            raise LookupError(
                f"${{{name}}} is not the name of a variable. {known} (host, port, schema, login, conn_type)."
            )
        if is_secret_name(name) or MASKED.search(name):
            raise LookupError(f"${{{name}}} has the name of a secret, and a pipeline is shown. {_WHERE}")
        found = variable(name)
        if found is None:
            raise LookupError(f"there is no Airflow variable {name}. Set it: airflow variables set {name} VALUE.")
        if url_holds_secret(str(found)):
            raise LookupError(f"${{{name}}} is a URL with a secret in it. {_WHERE}")
        return str(found)

    return look


def _field(name: str, connection: Callable[[str], Mapping[str, object] | None]) -> str:
    match = _OF_CONNECTION.fullmatch(name)
    if match is None:
        raise LookupError(f"${{{name}}}: of a connection there are host, port, schema, login and conn_type. {_WHERE}")
    conn_id, field = match.groups()
    found = connection(conn_id)
    if found is None:
        raise LookupError(f"${{{name}}}: there is no connection {conn_id}. Add it, or correct the name.")
    if found.get(field) is None:
        raise LookupError(f"${{{name}}}: the connection {conn_id} has no {field}.")
    text = str(found[field])
    # A host without a scheme may contain a login.
    if url_holds_secret(text) or url_holds_secret(f"any://{text}"):
        raise LookupError(f"${{{name}}}: the connection's {field} has a secret in it. {_WHERE}")
    return text
