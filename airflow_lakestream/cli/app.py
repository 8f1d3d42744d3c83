"""The program `lakestream`. Exit codes: 0 done or clean, 1 damage, 2 could not look or not done."""

from __future__ import annotations

import codecs
import locale
import logging
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.main import get_command

from airflow_lakestream import __version__
from airflow_lakestream.cli import ledger, pipeline
from airflow_lakestream.cli.arguments import in_options, takes_decoding
from airflow_lakestream.cli.connections import (
    IcebergConn,
    KafkaConn,
    StorageConn,
    airflow_settings,
    connection_fields,
    end_at_once,
    flush_streams,
    open_streams,
    output_to_stderr,
    report_text,
)
from airflow_lakestream.cli.edits import maintain
from airflow_lakestream.cli.plan import doctor, plan
from airflow_lakestream.cli.preview import (
    Servers,
    columns_lines,
    columns_of,
    open_topic,
    preview,
    topic_lines,
    without_logs,
)
from airflow_lakestream.cli.status import status
from airflow_lakestream.cli.tables import audit, mirror_app, rejects_app
from airflow_lakestream.config.literals import refuse_templates
from airflow_lakestream.core.printable import printable
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal
from airflow_lakestream.lakes import LakeCapability

if TYPE_CHECKING:
    from airflow_lakestream.onramp.dag_file import DagFile
    from airflow_lakestream.onramp.preview import TopicPreview

# Formats whose schema is in no registry: the DAG file has the columns.
_FORMATS_WITHOUT_SCHEMA = ("json", "csv")
_NO_COMMAND = re.compile(r"No such command '([^']*)'")
_GAP = re.compile(r"<[^<>]+>")  # a placeholder, such as <broker:9092>, in a line with a connection


class FileExists(LakestreamError, Terminal):
    """The file exists already."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} exists, and was left as it is. Give --force to replace it, or another --output.")


@takes_decoding()
def init(
    topic: Annotated[str | None, typer.Option(help="topic to land; asked for on a terminal")] = None,
    table: Annotated[
        str | None, typer.Option(help="namespace.table, or the path or URI of a Delta table; default: lake.<topic>")
    ] = None,
    group: Annotated[str | None, typer.Option(help="consumer group; default: the DAG's id")] = None,
    engine: Annotated[
        str | None, typer.Option(help="what lands: extract, group, spark or mirror; default: by the topic")
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(help='cron or a preset, such as "@hourly"; default: by engine')
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="file to write, or a folder; default: <topic>_to_lake.py (or .yaml) here")
    ] = None,
    as_yaml: Annotated[bool, typer.Option("--yaml", help="write a pipeline in YAML instead of a DAG file")] = False,
    force: Annotated[bool, typer.Option("--force", help="replace the file if it is there")] = False,
    bootstrap_servers: Servers = None,
    kafka_conn: KafkaConn = "kafka_default",
    iceberg_conn: IcebergConn = "iceberg_default",
    storage_conn: StorageConn = None,
    *,
    decoding: Mapping[str, Any],
) -> None:
    """Look at a topic, and write a DAG file (or a pipeline) to land the topic. Prints the connections needed.

    Asks for missing values if it runs on a terminal. Only the file is written.
    """
    with output_to_stderr(), without_logs():
        from airflow_lakestream.core.policies import choose
        from airflow_lakestream.onramp.dag_file import DagEngine, DagFile, default_name, default_table
        from airflow_lakestream.onramp.preview import RecordSelection, preview

        topic = _asked("topic", topic, None)
        chosen = None if engine is None else choose(DagEngine, "--engine", engine)
        opened, registry = open_topic(topic, bootstrap_servers, kafka_conn, decoding)
        table = _asked("table", table, default_table(topic))
        dag_id = default_name(topic)
        path = _path(output, dag_id, ".yaml" if as_yaml else ".py", force=force)
        # Before the topic is read: a wrong argument is refused at once.
        file = DagFile(
            topic=topic,
            table=table,
            group=group or dag_id,
            dag_id=dag_id,
            engine=chosen or DagEngine.EXTRACT,
            schedule=schedule,
            connections=_unusual_connections(kafka_conn, iceberg_conn, storage_conn),
        )
        previewed = preview(opened, decoding, RecordSelection(), registry)
        if chosen is None:
            usual = DagEngine.MIRROR if _is_mirror(previewed, decoding) else DagEngine.EXTRACT
            chosen = choose(DagEngine, "--engine", _asked("engine", None, usual))
        file = _with_columns(replace(file, engine=chosen), previewed, decoding)
        _check(file, previewed)
        text = _text(file, as_yaml=as_yaml)
        lines = _connection_lines(file, bootstrap_servers, kafka_conn, iceberg_conn, storage_conn)
    _write(path, text, force=force)
    report = [*topic_lines(previewed), *_columns_in(file, previewed)]
    report += [f"Wrote {path}: {'pipeline' if as_yaml else 'DAG'} {dag_id}, {topic} -> {table}, by {chosen}."]
    report += [*lines, f"Then: lakestream doctor --topic {topic}{_next_step(path, as_yaml=as_yaml)}."]
    report_text("\n".join(report))


def _columns_in(file: DagFile, previewed: TopicPreview) -> list[str]:
    """Return lines for the report: the key of a mirror, or the columns in the file with notes, or previewed columns."""
    from airflow_lakestream.onramp.preview import ColumnsBy

    if file.key:
        return [printable(f"Key: {', '.join(file.key)}")]
    if file.columns is None or previewed.columns_by is not ColumnsBy.RECORDS:
        return columns_of(previewed)
    heading = f"Columns in the file, guessed from {file.columns_by}; correct them before the first run:"
    return columns_lines(heading, file.columns, file.column_notes)


def _next_step(path: Path, *, as_yaml: bool) -> str:
    """Return the advice where to put the file; empty if Airflow reads DAGs from its place already."""
    place = "Airflow's DAG folder"
    # An airflow.cfg that can't be read is no error here: Airflow itself refuses it.
    with suppress(ValueError):
        settings = airflow_settings()
        if not as_yaml and settings.has_dags_at(path):
            return ""
        place = settings.dag_place
    if as_yaml:
        load = 'airflow_lakestream.pipelines.load("pipelines/")'
        return f", and put the file into a folder that a DAG file loads by {load}. The DAG file is in {place}"
    return f", and put the file into {place}"


def _asked(option: str, value: str | None, default: str | None) -> str:
    """Return the value, or, without a value, the answer on a terminal or the default.

    Raises InvalidArgument if there is no value, no terminal and no default.
    """
    if value is not None:
        return value
    if sys.stdin.isatty():
        return str(typer.prompt(option.capitalize(), default=default, err=True))
    if default is None:
        raise InvalidArgument(f"--{option}", "is missing.", "Say which one; on a terminal it would be asked for.")
    return default


def _path(output: Path | None, dag_id: str, suffix: str, *, force: bool) -> Path:
    """Return the file to write. Raises InvalidArgument for an unusable path, and FileExists unless `force`."""
    path = Path(f"{dag_id}{suffix}") if output is None else output
    path = path / f"{dag_id}{suffix}" if path.is_dir() else path
    if path.suffix != suffix:
        raise InvalidArgument(
            "--output", f"{str(path)!r} is not a file that Airflow reads.", f"Let it end with {suffix}."
        )
    if not path.parent.is_dir():
        raise InvalidArgument("--output", f"there is no folder {str(path.parent)!r}.")
    if path.exists() and not force:
        raise FileExists(path)
    return path


def _text(file: DagFile, *, as_yaml: bool) -> str:
    """Return the text of the DAG file or pipeline. Raises an error if the text is not correct."""
    if as_yaml:
        from airflow_lakestream.pipelines.writing import pipeline_text

        return pipeline_text(file)
    compile(file.text, f"{file.dag_id}.py", "exec")
    return file.text


def _write(path: Path, text: str, *, force: bool) -> None:
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as e:
        raise FileExists(path) from e


def _with_columns(file: DagFile, previewed: TopicPreview, decoding: Mapping[str, Any]) -> DagFile:
    """Return the file with the decoding of records, and with columns if no registry has a schema.

    The columns are the user's, or those of the previewed records. Without both the first run makes the columns. Raises
    InvalidArgument if the format is unknown.
    """
    from airflow_lakestream.onramp.dag_file import DagEngine, with_likely_times

    decoded_by = previewed.decoding
    if decoded_by.get("format") is None and previewed.problem is not None:
        remedy = "Give --format (and --schema), or --schema-registry."
        raise InvalidArgument("--format", f"it can't be guessed. {previewed.problem}", remedy)
    settings: dict[str, Any] = {name: value for name, value in decoded_by.items() if isinstance(value, str | list)}
    if "schema_registry" in decoding and "schema_registry" in decoded_by:
        # The URL or connection that the user gave: the registry in `previewed` has secrets.
        settings["schema_registry"] = decoding["schema_registry"]
    columns = settings.pop("schema", None)
    if file.engine is DagEngine.MIRROR:
        # A mirror's columns come from the events.
        settings.pop("envelope", None)
        return replace(file, decoding=settings, columns=columns, columns_by="what you gave", key=previewed.key)
    columns_by = "what you gave" if decoding.get("schema") else f"{previewed.looked_at} records of {previewed.topic}"
    notes: Sequence[str] = ()
    if not decoding.get("schema") and "sql" not in settings and settings.get("format") in _FORMATS_WITHOUT_SCHEMA:
        columns = previewed.columns
        if columns is not None:
            columns, notes = with_likely_times(columns, previewed.kinds)
    return replace(file, decoding=settings, columns=columns, columns_by=columns_by, column_notes=notes)


def _is_mirror(previewed: TopicPreview, decoding: Mapping[str, Any]) -> bool:
    """Return whether a mirror fits the topic: events of Debezium, with the primary key in the records' keys.

    A user who gave an envelope wants rows of the events: the result is then False.
    """
    return previewed.has_events and bool(previewed.key) and decoding.get("envelope") is None


def _check(file: DagFile, previewed: TopicPreview) -> None:
    """Raise InvalidArgument for arguments that a run would refuse, and for a mirror of a topic without events."""
    from airflow_lakestream.config.landing import ExtractConfig
    from airflow_lakestream.config.mirror import MirrorConfig
    from airflow_lakestream.onramp.dag_file import DagEngine

    arguments = {"topic": file.topic, "table": file.table, "consumer_group": file.group, "schema": file.columns}
    arguments |= {"table_format": file.lake.format}
    if file.engine is not DagEngine.MIRROR:
        ExtractConfig(**{**previewed.decoding, **arguments})
        return
    if not previewed.has_events or not file.key:
        lacks = "records are not change events of Debezium"
        if previewed.has_events:
            lacks = "keys do not contain the primary key"
        remedy = "Land the records themselves: --engine extract."
        raise InvalidArgument("--engine", f"{file.topic} can't be mirrored: its {lacks}.", remedy)
    MirrorConfig(**{**previewed.decoding, **arguments, "envelope": "debezium", "key": file.key})


def _unusual_connections(kafka_conn: str, iceberg_conn: str, storage_conn: str | None) -> dict[str, str]:
    """Return by argument the connections that differ from the operators' defaults."""
    given = {"kafka_conn_id": kafka_conn, "iceberg_conn_id": iceberg_conn, "storage_conn_id": storage_conn}
    usual = {"kafka_conn_id": "kafka_default", "iceberg_conn_id": "iceberg_default"}
    return {name: value for name, value in given.items() if value is not None and value != usual.get(name)}


def _connection_lines(
    file: DagFile, bootstrap_servers: str | None, kafka_conn: str, iceberg_conn: str, storage_conn: str | None
) -> list[str]:
    """Return headings, and shell lines with the connections that the file needs.

    First are connections that Airflow has, without their secrets; then samples of missing connections to fill in.
    """
    from airflow_lakestream.onramp.dag_file import DagEngine, export_line

    existing: list[str] = []
    missing: list[str] = []

    def add(conn_id: str, sample: Mapping[str, Any], *preparation: str) -> None:
        # A user who gave brokers may have no Airflow: it is not asked for any connection.
        known = connection_fields(conn_id) if bootstrap_servers is None else None
        lines = [*preparation, export_line(conn_id, sample)] if known is None else [export_line(conn_id, known)]
        (missing if known is None else existing).extend(lines)

    add(kafka_conn, {"conn_type": "kafka", "extra": {"bootstrap.servers": bootstrap_servers or "<broker:9092>"}})
    if LakeCapability.CATALOG in file.lake.can:
        folder = Path("lake").absolute()
        local = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": folder.as_uri()}
        about = "# To try it, a catalog on this machine; instead: a REST, Glue, Hive or SQL catalog of yours."
        sample = {"conn_type": "iceberg", "extra": local}
        add(iceberg_conn, sample, about, f"mkdir -p {shlex.quote(str(folder))}")
    elif storage_conn is not None:
        options = {"aws_region": "<region>", "aws_access_key_id": "<id>", "aws_secret_access_key": "<secret>"}
        add(storage_conn, {"conn_type": "generic", "extra": options})
    if file.engine is DagEngine.SPARK:
        add("spark_default", {"conn_type": "spark", "host": "local[*]"})
    has_gaps = any(_GAP.search(line) for line in missing)
    secret = "; each <...> is a secret" if any(_GAP.search(line) for line in existing) else ""
    return [
        *([f"It uses these connections, which are there{secret}:", *existing] if existing else []),
        *([f"It needs these connections{'; replace each <...>' if has_gaps else ''}:", *missing] if missing else []),
    ]


FAILED = 2
# Typer's exit code for Ctrl-C, without a message.
_INTERRUPTED = 130
_UTF8 = "PYTHONUTF8"

app = typer.Typer(
    help="Query and change what tables know of the Kafka topics landed in them. Exit codes: 0 done or clean, 1 damage, "
    "or a stream that needs somebody, 2 could not look, or not done.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(init)
app.command()(preview)
app.command()(doctor)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"lakestream {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool, typer.Option("--version", help="show the version", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


app.command()(audit)
app.command()(plan)
app.command()(status)
app.command()(maintain)
app.command()(ledger.adopt)
app.command()(ledger.hand_over)
app.add_typer(ledger.app, name="ledger")
app.add_typer(mirror_app, name="mirror")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(rejects_app, name="rejects")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program and exit with the exit code; an error is a single line on stderr.

    :param arguments: the arguments without the program's name; None: of the command line.
    """
    codes: list[int] = []
    if arguments is None:
        _begin_in_utf8()
        end_at_once(codes)
    open_streams()
    # PyIceberg would log the problem, which the error line names.
    logging.getLogger("pyiceberg").setLevel(logging.CRITICAL)
    code = run(arguments)
    codes.append(code if flush_streams() else FAILED)
    sys.exit(codes[0])


def _begin_in_utf8() -> None:
    """Start the program again in Python's UTF-8 mode if the locale's encoding is ASCII; then do not return.

    Airflow reads its files, which are in UTF-8, with the locale's encoding.
    """
    if codecs.lookup(locale.getencoding()).name == "ascii" and os.environ.get(_UTF8) != "1":
        command = [sys.executable, *sys.orig_argv[1:]]
        os.execve(sys.executable, command, {**os.environ, _UTF8: "1"})  # noqa: S606  # this very program


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return the exit code; see `main`. An error becomes a line on stderr and exit code 2."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        _refuse_templates(words)
        given = None if arguments is None else list(arguments)
        code = _command()(args=given, prog_name="lakestream", standalone_mode=False)
    except SystemExit:
        # Click exits with 1 if nobody reads the output; here 1 means damage.
        return FAILED
    except (Exception, KeyboardInterrupt) as e:  # noqa: BLE001  # for any error the caller reads one line
        if type(e).__name__ == "NoArgsIsHelpError":
            # Typer has printed the help already if Rich formats it; otherwise the message is the help.
            sys.stdout.write(getattr(e, "message", ""))
            return FAILED
        return _failed(in_options(_one_line(e), _command(), words))
    if code == _INTERRUPTED:
        return _failed("interrupted.")
    return code if isinstance(code, int) else 0


def _failed(problem: str) -> int:
    # Without a reader of stderr, the exit code alone has the result.
    with suppress(OSError):
        sys.stderr.write(f"lakestream: {problem}\n")
    return FAILED


# Cached, since Typer would build all commands again for each call.
_command = cache(partial(get_command, app))


def _refuse_templates(arguments: Sequence[str]) -> None:
    """Raise InvalidArgument for a template, which a command does not render. `{{ input }}` of `--sql` is allowed."""
    option = ""  # the last option without `=`: the next argument is its value
    for text in arguments:
        is_option = text.startswith("--")
        name, _, value = text.partition("=") if is_option else (option, "", text)
        refuse_templates({"sql" if name == "--sql" else name or "arguments": value})
        option = name if is_option and not value else ""


def _below_groups(name: str) -> list[str]:
    """Return the subcommands with this name, each behind its command, such as `rejects replay`."""
    groups = getattr(_command(), "commands", {})
    return [f"{group} {name}" for group, command in groups.items() if name in getattr(command, "commands", ())]


def _one_line(error: BaseException) -> str:
    """Return the line for stderr. An error of another package begins with the name of its class."""
    # An extension module raises SystemError if a KeyboardInterrupt arrives while it works.
    if isinstance(error, KeyboardInterrupt) or isinstance(error.__cause__, KeyboardInterrupt):
        return "interrupted."
    # Only errors of Typer and Click about wrong arguments have `format_message`.
    if format_message := getattr(error, "format_message", None):
        if (match := _NO_COMMAND.match(format_message())) and (known := _below_groups(match[1])):
            return f"No such command {match[1]!r}. Did you mean {' or '.join(map(repr, known))}? See lakestream --help."
        return f"{format_message()} See lakestream --help.".replace("\n", " ")
    text = printable(" ".join(str(error).split()))
    return text if isinstance(error, LakestreamError) else f"{type(error).__name__}: {text}"
