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

# Formats whose records lack types that a registry would know: the file names the columns.
_NAMED_COLUMNS = ("json", "csv")
_NO_COMMAND = re.compile(r"No such command '([^']*)'")
# A gap to fill in, such as <broker:9092>, in a line of a connection.
_GAP = re.compile(r"<[^<>]+>")


class FileExists(LakestreamError, Terminal):
    """The file exists already."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} exists, and was left as it is. Give --force to replace it, or another --output.")


@takes_decoding()
def init(
    topic: Annotated[str | None, typer.Option(help="topic to land; asked for on a terminal")] = None,
    table: Annotated[
        str | None,
        typer.Option(help="namespace.table, or the path or URI of a Delta table; default: lake.<topic>"),
    ] = None,
    group: Annotated[str | None, typer.Option(help="consumer group; default: the DAG's id")] = None,
    engine: Annotated[
        str | None, typer.Option(help="what lands: extract, group, spark or mirror; default: by the topic")
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(help='cron or a preset, such as "@hourly"; default: by engine')
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="file to write, or a folder; default: <topic>_to_lake.py (or .yaml) here"),
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
        # Check arguments before anything is read.
        connections = _named(kafka_conn, iceberg_conn, storage_conn)
        file = DagFile(
            topic=topic,
            table=table,
            group=group or dag_id,
            dag_id=dag_id,
            engine=chosen or DagEngine.EXTRACT,
            schedule=schedule,
            connections=connections,
        )
        found = preview(opened, decoding, RecordSelection(), registry)
        if chosen is None:
            usual = DagEngine.MIRROR if _is_mirror(found, decoding) else DagEngine.EXTRACT
            chosen = choose(DagEngine, "--engine", _asked("engine", None, usual))
        file = _with_columns(replace(file, engine=chosen), found, decoding)
        _check(file, found)
        text = _text(file, as_yaml=as_yaml)
        lines = _connection_lines(file, bootstrap_servers, kafka_conn, iceberg_conn, storage_conn)
    _write(path, text, force=force)
    report = [*topic_lines(found), *_columns_in(file, found)]
    report += [f"Wrote {path}: {'pipeline' if as_yaml else 'DAG'} {dag_id}, {topic} -> {table}, by {chosen}."]
    report += [*lines, f"Then: lakestream doctor --topic {topic}{_next_step(path, as_yaml=as_yaml)}."]
    report_text("\n".join(report))


def _columns_in(file: DagFile, found: TopicPreview) -> list[str]:
    """Return the key of a mirror, or the columns as the file has them, with notes; else the previewed columns."""
    from airflow_lakestream.onramp.preview import ColumnsBy

    if file.key:
        return [printable(f"Key: {', '.join(file.key)}")]
    if file.columns is None or found.columns_by is not ColumnsBy.RECORDS:
        return columns_of(found)
    heading = f"Columns in the file, guessed from {file.columns_by}; correct them before the first run:"
    return columns_lines(heading, file.columns, file.column_notes)


def _next_step(path: Path, *, as_yaml: bool) -> str:
    """Return the advice about the place of the file; empty if Airflow reads DAGs from there already."""
    place = "Airflow's DAG folder"
    # A file that is no configuration is Airflow's to refuse.
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
    """Return the given value, else the answer on a terminal, else the default.

    Raises InvalidArgument without a terminal if there is neither a value nor a default.
    """
    if value is not None:
        return value
    if sys.stdin.isatty():
        return str(typer.prompt(option.capitalize(), default=default, err=True))
    if default is None:
        raise InvalidArgument(f"--{option}", "is missing.", "Say which one; on a terminal it would be asked for.")
    return default


# The file to write. Raises InvalidArgument for an unusable path, and FileExists unless `force`.
def _path(output: Path | None, dag_id: str, suffix: str, *, force: bool) -> Path:
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


# Raises an error if the text is not a correct DAG file or pipeline: none is written then.
def _text(file: DagFile, *, as_yaml: bool) -> str:
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


def _with_columns(file: DagFile, found: TopicPreview, decoding: Mapping[str, Any]) -> DagFile:
    """Return the file with the decoding of records, and with columns if no registry knows them.

    The columns are the user's, else the columns of the previewed records; without either, the first run makes them.
    Raises InvalidArgument if the format is unknown.
    """
    from airflow_lakestream.onramp.dag_file import DagEngine, with_likely_times

    if found.decoding.get("format") is None and found.problem is not None:
        remedy = "Give --format (and --schema), or --schema-registry."
        raise InvalidArgument("--format", f"it can't be guessed. {found.problem}", remedy)
    settings: dict[str, Any] = {name: value for name, value in found.decoding.items() if isinstance(value, str | list)}
    if "schema_registry" in decoding and "schema_registry" in found.decoding:
        # As the user gave it: the looked-up registry has secrets.
        settings["schema_registry"] = decoding["schema_registry"]
    columns = settings.pop("schema", None)
    if file.engine is DagEngine.MIRROR:
        # A mirror's columns come from the events.
        settings.pop("envelope", None)
        return replace(file, decoding=settings, columns=columns, columns_by="what you gave", key=found.key)
    columns_by = "what you gave" if decoding.get("schema") else f"{found.looked_at} records of {found.topic}"
    notes: Sequence[str] = ()
    if not decoding.get("schema") and found.decoding.get("format") in _NAMED_COLUMNS and "sql" not in settings:
        columns = found.columns
        if columns is not None:
            columns, notes = with_likely_times(columns, found.kinds)
    return replace(file, decoding=settings, columns=columns, columns_by=columns_by, column_notes=notes)


def _is_mirror(found: TopicPreview, decoding: Mapping[str, Any]) -> bool:
    """Return whether a topic's likely use is a mirror: events of Debezium, with a primary key in the records' keys.

    False if the user gave an envelope, since the rows are then decoded, not mirrored.
    """
    return found.has_events and bool(found.key) and decoding.get("envelope") is None


def _check(file: DagFile, found: TopicPreview) -> None:
    """Refuse arguments that a run would refuse. Raises InvalidArgument, also for a mirror of a topic without events."""
    from airflow_lakestream.config.landing import ExtractConfig
    from airflow_lakestream.config.mirror import MirrorConfig
    from airflow_lakestream.onramp.dag_file import DagEngine

    arguments = {"topic": file.topic, "table": file.table, "consumer_group": file.group, "schema": file.columns}
    arguments |= {"table_format": file.lake.format}
    if file.engine is not DagEngine.MIRROR:
        ExtractConfig(**{**found.decoding, **arguments})
        return
    if not found.has_events or not file.key:
        lacks = (
            "keys do not contain the primary key" if found.has_events else "records are not change events of Debezium"
        )
        remedy = "Land the records themselves: --engine extract."
        raise InvalidArgument("--engine", f"{file.topic} can't be mirrored: its {lacks}.", remedy)
    MirrorConfig(**{**found.decoding, **arguments, "envelope": "debezium", "key": file.key})


# The connections that differ from the operators' defaults, by argument.
def _named(kafka_conn: str, iceberg_conn: str, storage_conn: str | None) -> dict[str, str]:
    given = {"kafka_conn_id": kafka_conn, "iceberg_conn_id": iceberg_conn, "storage_conn_id": storage_conn}
    usual = {"kafka_conn_id": "kafka_default", "iceberg_conn_id": "iceberg_default"}
    return {name: value for name, value in given.items() if value is not None and value != usual.get(name)}


def _connection_lines(
    file: DagFile, bootstrap_servers: str | None, kafka_conn: str, iceberg_conn: str, storage_conn: str | None
) -> list[str]:
    """Return headings and shell lines of the connections that the file needs.

    The connections that Airflow has come first, without their secrets; the others are samples to fill in.
    """
    from airflow_lakestream.onramp.dag_file import DagEngine, export_line

    found: list[str] = []
    lacking: list[str] = []

    def add(conn_id: str, sample: Mapping[str, Any], *preparation: str) -> None:
        # Without a connection for the brokers, do not ask Airflow for the other connections either.
        known = connection_fields(conn_id) if bootstrap_servers is None else None
        lines = [*preparation, export_line(conn_id, sample)] if known is None else [export_line(conn_id, known)]
        (lacking if known is None else found).extend(lines)

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
    has_gaps = any(_GAP.search(line) for line in lacking)
    secret = "; each <...> is a secret" if any(_GAP.search(line) for line in found) else ""
    return [
        *([f"It uses these connections, which are there{secret}:", *found] if found else []),
        *([f"It needs these connections{'; replace each <...>' if has_gaps else ''}:", *lacking] if lacking else []),
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
    # The error line names the problem; PyIceberg's log would repeat it.
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
    """Run the program and return the exit code. An error becomes a line on stderr and exit code 2.

    :param arguments: the arguments without the program's name; None: of the command line.
    """
    words = sys.argv[1:] if arguments is None else arguments
    try:
        _refuse_templates(words)
        given = None if arguments is None else list(arguments)
        code = _command()(args=given, prog_name="lakestream", standalone_mode=False)
    except SystemExit:
        # Click's end if nobody reads the output: its code, 1, would mean damage.
        return FAILED
    except (Exception, KeyboardInterrupt) as e:  # noqa: BLE001  # for any error the caller reads one line
        if type(e).__name__ == "NoArgsIsHelpError":
            # Its message is the help, which Typer has printed if it formats it by Rich.
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


# Typer would build all commands again for each call.
_command = cache(partial(get_command, app))


def _refuse_templates(arguments: Sequence[str]) -> None:
    """Refuse templates: none is rendered here. (`{{ input }}` of `--sql` is no template.) Raises InvalidArgument."""
    option = ""  # its value is the next argument
    for text in arguments:
        is_option = text.startswith("--")
        name, _, value = text.partition("=") if is_option else (option, "", text)
        refuse_templates({"sql" if name == "--sql" else name or "arguments": value})
        option = name if is_option and not value else ""


def _below_groups(name: str) -> list[str]:
    """Return the commands of groups with this name, each with its group, such as `rejects replay`."""
    groups = getattr(_command(), "commands", {})
    return [f"{group} {name}" for group, one in groups.items() if name in getattr(one, "commands", ())]


# The text of the line on stderr. Errors of other packages begin with the name of their class.
def _one_line(error: BaseException) -> str:
    # Extensions wrap a KeyboardInterrupt that arrives while they work into a SystemError.
    if isinstance(error, KeyboardInterrupt) or isinstance(error.__cause__, KeyboardInterrupt):
        return "interrupted."
    # Wrong arguments, in the words of any version of Typer and Click.
    if format_message := getattr(error, "format_message", None):
        if (match := _NO_COMMAND.match(format_message())) and (known := _below_groups(match[1])):
            return f"No such command {match[1]!r}. Did you mean {' or '.join(map(repr, known))}? See lakestream --help."
        return f"{format_message()} See lakestream --help.".replace("\n", " ")
    text = printable(" ".join(str(error).split()))
    return text if isinstance(error, LakestreamError) else f"{type(error).__name__}: {text}"
