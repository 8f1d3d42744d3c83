"""Options of commands: options for decoding, and options whose values a pipeline's file or a DAG's task has."""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from airflow_lakestream.cli.connections import like_the_airflow_command, open_variables
from airflow_lakestream.config.decoding import DECODING, OF_ROWS, DecodingSettings
from airflow_lakestream.config.literals import refuse_templates
from airflow_lakestream.config.setting import Setting
from airflow_lakestream.config.settings import SETTINGS
from airflow_lakestream.core.policies import SqlInput, ValueFormat
from airflow_lakestream.exceptions import InvalidArgument, UnknownValue

if TYPE_CHECKING:
    from airflow_lakestream.pipelines.compiled import CompiledPipeline, SinkLanding


def one_of(kind: type[StrEnum], but: str = "") -> str:
    """Return the choices of an option for the help text, the last choice behind `or`.

    :param but: a choice to leave out; empty: none.
    """
    names = [str(choice) for choice in kind if choice != but]
    return f"{', '.join(names[:-1])} or {names[-1]}"


def option_of(name: str, when: str = "") -> Any:
    """Return the option of a setting, with the setting's documentation as the help.

    :param when: text before the help, such as "with --repair: ".
    """
    return typer.Option(f"--{name.replace('_', '-')}", help=when + _help_of(SETTINGS[name]))


def takes_decoding(when: str = "") -> Callable[[Command], Command]:
    """Give a command an option for each decoding argument.

    The command gets the options that a user gave as a mapping: its keyword argument `decoding`. A file named by `--sql`
    is read. Templates are refused.

    :param when: text before the help of each option, such as "with --repair: ".
    """

    def option(name: str, kind: Any) -> inspect.Parameter:
        # A keyword parameter, which Typer turns into an option.
        annotation = Annotated[kind, option_of(name, when)]
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)

    def decorate(command: Command) -> Command:
        # The wrapper's signature has the options in the place of `decoding`.
        signature = inspect.signature(command, eval_str=True)
        own = [parameter for parameter in signature.parameters.values() if parameter.name != "decoding"]
        # An option for a list may be repeated.
        options = [
            option(setting.name, list[str] | None if "Sequence" in str(setting.type) else str | None)
            for setting in fields(DecodingSettings)
        ]

        @functools.wraps(command)
        def wrapper(**kwargs: Any) -> None:
            given = {name: kwargs.pop(name) for name in DECODING}
            given["sql"] = _statement(given["sql"])
            decoding = {name: value for name, value in given.items() if value not in (None, [])}
            refuse_templates(decoding)
            command(**kwargs, decoding=decoding)

        parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (*own, *options)]
        # mypy does not support functions with an assigned signature.
        wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # Typer reads it
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapper

    return decorate


def _help_of(setting: Setting) -> str:
    """Return an option's help: the summary, and all choices."""
    choices = f": {one_of(setting.kind)}" if isinstance(setting.kind, type) else ""
    return f"{setting.summary[:1].lower()}{setting.summary[1:]}{choices}"


def _statement(given: str | None) -> str | None:
    """Return the value of `--sql`, or the content of the file that it names: a text that ends with .sql.

    Raises InvalidArgument for an unreadable file.
    """
    if given is None or not given.strip().endswith(".sql"):
        return given
    try:
        return Path(given.strip()).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidArgument(
            "--sql", f"{given!r} can't be read ({reason}).", "Name a file, or give the SELECT."
        ) from None


Command = Callable[..., Any]
Refuse = Callable[[Mapping[str, Any]], None]

_PIPELINE = Annotated[
    Path | None,
    typer.Option("--pipeline", help="a pipeline's file: its settings need not be given", exists=True, dir_okay=False),
]
_SINK = Annotated[str | None, typer.Option("--sink", help="with --pipeline: the sink, if it has several")]
_DAG = Annotated[str | None, typer.Option("--dag", help="a DAG: its task's arguments need not be given")]
_TASK = Annotated[str | None, typer.Option("--task", help="with --dag: the task, if several land")]
_FOLDER = Annotated[
    Path | None, typer.Option("--dag-folder", help="with --dag: its file or folder; default: Airflow's", exists=True)
]
_SOURCES = {"pipeline": _PIPELINE, "sink": _SINK, "dag": _DAG, "task": _TASK, "dag_folder": _FOLDER}
# By option, the argument of a landing. Each other option has the name of its argument.
_ARGUMENTS = {
    "group": "consumer_group",
    "kafka_conn": "kafka_conn_id",
    "iceberg_conn": "iceberg_conn_id",
    "storage_conn": "storage_conn_id",
}


def takes_pipeline(command: Command) -> Command:
    """Give a command the options `--pipeline` and `--dag`, and the options that go with these.

    Required options of the command become optional, since the file or the task may set them. InvalidArgument is raised
    if nothing sets a required option. The command line has precedence over the file and the task.
    """
    signature = inspect.signature(command, eval_str=True)
    own = {parameter.name: parameter for parameter in signature.parameters.values()}
    required = [name for name, parameter in own.items() if parameter.default is parameter.empty]

    @functools.wraps(command)
    def wrapper(**kwargs: Any) -> Any:
        context, sources = kwargs.pop("context"), {name: kwargs.pop(name) for name in _SOURCES}
        if (given := _given_arguments(**sources)) is not None:
            kwargs |= _options_of(*given, own, context)
        for name in required:
            if kwargs[name] is None:
                raise InvalidArgument(_shown(name), "is missing.", "Give it, or a --pipeline or --dag that sets it.")
        return command(**kwargs)

    keyword = inspect.Parameter.KEYWORD_ONLY
    options = [
        parameter.replace(default=None, annotation=_optional(parameter.annotation))
        if parameter.name in required
        else parameter
        for parameter in own.values()
    ]
    options.append(inspect.Parameter("context", keyword, annotation=typer.Context))
    options += [inspect.Parameter(name, keyword, default=None, annotation=one) for name, one in _SOURCES.items()]
    options = [option.replace(kind=keyword) for option in options]
    # mypy does not support functions with an assigned signature.
    wrapper.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]  # Typer reads it
    wrapper.__annotations__ = {option.name: option.annotation for option in options}
    return wrapper


def _given_arguments(
    pipeline: Path | None, sink: str | None, dag: str | None, task: str | None, dag_folder: Path | None
) -> tuple[Mapping[str, Any], bool, Refuse] | None:
    """Return the arguments of a pipeline's landing or of a DAG's task, or None without `--pipeline` and `--dag`.

    Returns a triple: the arguments; whether they are for a mirror or a table by key; and a function that refuses
    templates in arguments. The caller passes only the arguments that it uses to this function. Raises InvalidArgument
    for options that do not go together, and for an unknown file, DAG, sink or task.
    """
    companions = {"sink": (sink, pipeline), "task": (task, dag), "dag_folder": (dag_folder, dag)}
    for name, (value, companion) in companions.items():
        if value is not None and companion is None:
            raise InvalidArgument(_shown(name), f"goes with {'--pipeline' if name == 'sink' else '--dag'}.")
    if pipeline is not None and dag is not None:
        raise InvalidArgument("--dag", "does not go with --pipeline.", "Give one of them.")
    if pipeline is not None:
        from airflow_lakestream.pipelines.check import refuse_rendered

        compiled, landing = _landing(pipeline, sink)
        return (
            landing.arguments,
            landing.is_mirror,
            lambda used: refuse_rendered(compiled, [replace(landing, arguments=used)]),
        )
    if dag is None:
        return None

    arguments = arguments_of_task(dag, task, dag_folder)
    return arguments, arguments.is_mirror, refuse_templates


def read_pipeline(file: Path, engine: str | None = None) -> CompiledPipeline:
    """Return the compiled pipeline of a file. Raises PipelineError.

    :param engine: an engine in place of the file's; None: the file's engine.
    """
    from airflow_lakestream.pipelines.reading import read_file

    return read_file(file, variable_lookup(), engine=engine)


@functools.cache
def variable_lookup() -> Any:
    """Return a function that looks up a variable of a pipeline's file in Airflow, each variable once."""
    from airflow_lakestream.pipelines.reading import looked_up

    return functools.cache(looked_up(*open_variables()))


def landings_of(compiled: CompiledPipeline, sink: str | None) -> Sequence[SinkLanding]:
    """Return the landing of a sink, or all landings if `sink` is None. Raises UnknownValue for an unknown sink."""
    known = [landing.sink for landing in compiled.landings]
    if sink is not None and sink not in known:
        raise UnknownValue("--sink", sink, known)
    return [landing for landing in compiled.landings if sink in (None, landing.sink)]


def _landing(file: Path, sink: str | None) -> tuple[CompiledPipeline, SinkLanding]:
    """Return a file's pipeline and the landing of a sink, or of its only sink. Raises InvalidArgument."""
    compiled = read_pipeline(file)
    landings = landings_of(compiled, sink)
    if len(landings) > 1:
        raise InvalidArgument(
            "--sink", f"{file} has {', '.join(landing.sink for landing in landings)}.", "Say which one."
        )
    return compiled, landings[0]


def _options_of(
    arguments: Mapping[str, Any],
    is_mirror: bool,
    refuse: Refuse,
    options: Mapping[str, inspect.Parameter],
    context: typer.Context,
) -> dict[str, Any]:
    """Return the arguments as options of the command, without the options that the command line has.

    Raises the errors of `refuse` for templates, and of an option's own check.

    :param is_mirror: whether the arguments are for a mirror or a table by key.
    :param refuse: refuses templates in arguments.
    :param options: the parameters of the command.
    """
    values: dict[str, Any] = {}
    unused: tuple[str, ...] = ()
    # A placeholder of a fan-out in the table's name, such as {event}, and no template.
    is_fan_out = "{" in str(arguments.get("table")).replace("{{", "")
    if "repair" in options and (is_mirror or is_fan_out):
        names = OF_ROWS if is_mirror else ("home_table", "metadata_columns")
        of_rows = {name: arguments[name] for name in names if name in arguments and name not in options}
        refuse(of_rows)
        unused = ("on_data_loss",)
        # Arguments without an option of their own are passed on by --landing.
        values = {} if context.params["landing"] else {"landing": json.dumps(of_rows, default=_seconds)}
    elif "repair" in options:
        if repairs := bool(context.params["repair"]):
            # The next line reads the schema: a template must be refused before.
            refuse({"schema": arguments.get("schema")})
        unused = _unused_by_audit(arguments, repairs=repairs)
    for name, option in options.items():
        argument = _ARGUMENTS.get(name, name)
        value = arguments.get(argument)
        source = context.get_parameter_source(name)
        if value is None or name in unused or (source is not None and source.name == "COMMANDLINE"):
            continue
        refuse({argument: value})
        # Typer calls an option's callback only for a value from the command line.
        callbacks = [getattr(info, "callback", None) for info in get_args(option.annotation)[1:]]
        check = next(filter(None, callbacks), None)
        values[name] = check(_as_option(value)) if check else _as_option(value)
    return values


def _unused_by_audit(arguments: Mapping[str, Any], *, repairs: bool) -> tuple[str, ...]:
    """Return the names of the options that an audit does not use.

    An audit without a repair decodes nothing, except for a table by key. A repair has the columns of the table: it
    needs a schema only for SQL over decoded columns, for CSV, and for times from another type.
    """
    if not repairs:
        return (*DECODING, "tombstones", "on_data_loss")
    from airflow_lakestream.tables.schema.columns import to_timed_schema

    schema = arguments.get("schema")
    has_time_sources = schema is not None and bool(to_timed_schema(schema)[1])
    needs_schema = arguments.get("sql_input") == SqlInput.DECODED or arguments.get("format") == ValueFormat.CSV
    return () if needs_schema or has_time_sources else ("schema",)


def _seconds(value: timedelta) -> str:
    return f"{value.total_seconds()}s"


def _as_option(value: Any) -> Any:
    """Return an argument's value in the form of the command line: a text, or a list of texts."""
    if hasattr(value, "as_struct"):
        from airflow_lakestream.tables.schema.types import schema_text

        return schema_text(value)
    if isinstance(value, Mapping):
        return json.dumps(value)
    return [str(item) for item in value] if isinstance(value, list | tuple) else str(value)


def _optional(annotation: Any) -> Any:
    kind, *metadata = get_args(annotation)
    return Annotated[(kind | None, *metadata)]


def _shown(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def offsets_by_partition(option: str, texts: Sequence[str]) -> dict[int, int]:
    """Return the offsets of an option by partition, from texts such as "0:1200". Raises InvalidArgument."""
    found = {}
    for text in texts:
        if not (match := re.fullmatch(r"(\d+):(\d+)", text.strip())):
            raise InvalidArgument(option, f"{text!r} is not a position.", 'Write "0:1200": partition and offset.')
        found[int(match[1])] = int(match[2])
    return found


_NEEDED = ("topic", "table", "consumer_group")  # arguments of every landing task
# The task ids of a task group of `kafka_extract_group`; the tasks have the same arguments.
_STEPS_OF_GROUP = ("plan", "read", "commit")


class TaskArguments(Mapping[str, Any]):
    """Arguments of a task by name, as in the DAG file, with defaults, and with templates that are not rendered.

    The arguments of a Spark landing are in the task's `app_config`. Arguments that are None or functions are left out.
    """

    def __init__(self, task: Any) -> None:
        self._task = task
        config = getattr(task, "app_config", None)
        self._config: Mapping[str, Any] = config if isinstance(config, Mapping) else {}

    @property
    def is_mirror(self) -> bool:
        """Whether the task keeps a mirror, or a table by key."""
        from airflow_lakestream.spark.apps import MIRROR_APPS

        return hasattr(self._task, "merge_mode") or getattr(self._task, "app", None) in MIRROR_APPS

    def __getitem__(self, name: str) -> Any:
        value = self._config.get(name, getattr(self._task, name, None))
        if name == "sql" and hasattr(self._task, "written_statement"):
            # The argument may name a file next to the DAG file.
            value = self._task.written_statement()
        if value is None or callable(value):
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return (name for name in {*vars(self._task), *self._config} if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def arguments_of_task(dag_id: str, task_id: str | None, folder: Path | None) -> TaskArguments:
    """Return the arguments of a task that lands. The DAG file is imported; no task runs.

    :param task_id: id of a task, or of a task group of `kafka_extract_group`; None: the only task that lands.
    :param folder: the file or folder with the DAG; None: Airflow's DAG folder.

    Raises InvalidArgument if the DAG (the error has the import errors of files) or the task does not exist, if the task
    does not land, or if `task_id` is None and several tasks land.
    """
    with like_the_airflow_command(needs_database=True):
        dag = _load(dag_id, folder)
        landing = {task.task_id: task for task in dag.tasks if all(name in TaskArguments(task) for name in _NEEDED)}
        names = dict(filter(None, map(_named, landing)))
        if task_id is None and len(names) != 1:
            many = f"{dag_id} has the tasks {', '.join(names)}." if names else f"no task of {dag_id} lands."
            raise InvalidArgument("--task", many, "Say which one." if names else "Give the options themselves.")
        step_id = next(iter(names.values())) if task_id is None else names.get(task_id, task_id)
        if step_id not in landing:
            problem = f"{dag_id} has no task {task_id!r} that lands; there is {', '.join(names) or 'none'}."
            raise InvalidArgument("--task", problem)
        return TaskArguments(landing[step_id])


def _named(task_id: str) -> tuple[str, str] | None:
    """Return a pair: the name of a task for `--task`, and the task's id.

    The first task of a task group stands for the group and has its name. Returns None for later tasks of a group.
    """
    group, _, step = task_id.rpartition(".")
    if not group or step not in _STEPS_OF_GROUP:
        return task_id, task_id
    return (group, task_id) if step == _STEPS_OF_GROUP[0] else None


def _load(dag_id: str, folder: Path | None) -> Any:
    """Import and return a DAG. Raises InvalidArgument."""
    from airflow_lakestream.hooks.dags import dags_in

    dags, errors, place = dags_in(folder, dag_id)
    if (dag := dags.get(dag_id)) is not None:
        return dag
    problem = f"there is no DAG {dag_id!r} in {place}."
    failed = [f"{file}: {' '.join(str(error).split())[-300:]}" for file, error in errors.items()]
    remedy = f"These files can't be loaded: {'; '.join(failed)}" if failed else "Correct it, or give --dag-folder."
    raise InvalidArgument("--dag", problem, remedy)


# An argument with a value in an error's remedy, such as schema_evolution="add".
_SETTING = re.compile(r'\b([a-z_]+)="([^" ]*)"')
# First words of a problem whose subject is the argument.
_VERBS = ("is", "are", "has", "goes", "belongs", "needs")


def in_options(text: str, command: Any, arguments: Sequence[str]) -> str:
    """Return the text of an error with options, such as `--group`, in place of arguments.

    The argument at the beginning is replaced only if the command line has the option: otherwise the argument is in a
    file or a DAG.

    :param command: the program, as Click's group of commands.
    :param arguments: the program's arguments.
    """
    for word in arguments:
        command = getattr(command, "commands", {}).get(word, command)
    options = {
        option.removeprefix("--").replace("-", "_"): option
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--")
    }
    text = _SETTING.sub(lambda match: f"{options[match[1]]} {match[2]}" if match[1] in options else match[0], text)
    name, colon, problem = text.partition(": ")
    name = options[name] if options.get(name) in [argument.partition("=")[0] for argument in arguments] else name
    # "--table is missing", but "--topic: there is no topic".
    is_verb = name.startswith("--") and problem.partition(" ")[0] in _VERBS
    return f"{name} {problem}" if is_verb else f"{name}{colon}{problem}"
