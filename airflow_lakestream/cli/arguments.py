"""Arguments of commands: options for decoding, and options taken from a pipeline's file or a DAG's task."""

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

    :param but: a choice to leave out.
    """
    names = [str(one) for one in kind if one != but]
    return f"{', '.join(names[:-1])} or {names[-1]}"


def option_of(name: str, when: str = "") -> Any:
    """Return the option of a setting, with the setting's documentation as the help.

    :param name: the setting's name.
    :param when: the beginning of the help.
    """
    return typer.Option(f"--{name.replace('_', '-')}", help=when + _help_of(SETTINGS[name]))


def takes_decoding(when: str = "") -> Callable[[Command], Command]:
    """Give a command an option for each decoding argument.

    The command gets the given options, without templates, as a mapping: its keyword argument `decoding`. A file named
    by `--sql` is read.

    :param when: the beginning of the options' help.
    """

    def option(name: str, kind: Any) -> inspect.Parameter:
        annotation = Annotated[kind, option_of(name, when)]
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [one for one in signature.parameters.values() if one.name != "decoding"]
        # Options of lists may be repeated.
        options = [
            option(one.name, list[str] | None if "Sequence" in str(one.type) else str | None)
            for one in fields(DecodingSettings)
        ]

        @functools.wraps(command)
        def wrapper(**kwargs: Any) -> None:
            given = {name: kwargs.pop(name) for name in DECODING}
            given["sql"] = _statement(given["sql"])
            decoding = {name: value for name, value in given.items() if value not in (None, [])}
            refuse_templates(decoding)
            command(**kwargs, decoding=decoding)

        parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*own, *options)]
        # mypy does not support functions with an assigned signature.
        wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # Typer reads it
        wrapper.__annotations__ = {one.name: one.annotation for one in parameters}
        return wrapper

    return decorate


def _help_of(setting: Setting) -> str:
    """Return an option's help: the summary, and all choices."""
    choices = f": {one_of(setting.kind)}" if isinstance(setting.kind, type) else ""
    return f"{setting.summary[:1].lower()}{setting.summary[1:]}{choices}"


def _statement(given: str | None) -> str | None:
    """Return the given SQL, or the content of the named file if the text ends with .sql, like the operators.

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
    Path | None,
    typer.Option("--dag-folder", help="with --dag: its file or folder; default: Airflow's", exists=True),
]
_SOURCES = {"pipeline": _PIPELINE, "sink": _SINK, "dag": _DAG, "task": _TASK, "dag_folder": _FOLDER}
# By option: the argument of a landing. The other options have the argument's name.
_ARGUMENTS = {
    "group": "consumer_group",
    "kafka_conn": "kafka_conn_id",
    "iceberg_conn": "iceberg_conn_id",
    "storage_conn": "storage_conn_id",
}


def takes_pipeline(command: Command) -> Command:
    """Give a command the options `--pipeline`, `--dag`, and the options that go with either.

    Required options of the command become optional: the file or the task may set them. If neither does, the command
    raises InvalidArgument. Options of the command line take precedence over the file's or the task's.
    """
    signature = inspect.signature(command, eval_str=True)
    own = {one.name: one for one in signature.parameters.values()}
    required = [name for name, one in own.items() if one.default is one.empty]

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
        one.replace(default=None, annotation=_optional(one.annotation)) if one.name in required else one
        for one in own.values()
    ]
    options.append(inspect.Parameter("context", keyword, annotation=typer.Context))
    options += [inspect.Parameter(name, keyword, default=None, annotation=one) for name, one in _SOURCES.items()]
    options = [one.replace(kind=keyword) for one in options]
    # mypy does not support functions with an assigned signature.
    wrapper.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]  # Typer reads it
    wrapper.__annotations__ = {one.name: one.annotation for one in options}
    return wrapper


def _given_arguments(
    pipeline: Path | None, sink: str | None, dag: str | None, task: str | None, dag_folder: Path | None
) -> tuple[Mapping[str, Any], bool, Refuse] | None:
    """Return the arguments of a pipeline's landing or of a DAG's task, or None without `--pipeline` and `--dag`.

    The second value is whether they are a mirror's, or a table's by key. The third is a function that refuses templates
    in some of the arguments: they are checked only if used.

    Raises InvalidArgument for options that do not go together, and for an unknown file, DAG, sink or task.
    """
    alone = {"sink": (sink, pipeline), "task": (task, dag), "dag_folder": (dag_folder, dag)}
    for name, (given, goes_with) in alone.items():
        if given is not None and goes_with is None:
            raise InvalidArgument(_shown(name), f"goes with {'--pipeline' if name == 'sink' else '--dag'}.")
    if pipeline is not None and dag is not None:
        raise InvalidArgument("--dag", "does not go with --pipeline.", "Give one of them.")
    if pipeline is not None:
        from airflow_lakestream.pipelines.check import refuse_rendered

        compiled, landing = _landing(pipeline, sink)
        return (
            landing.arguments,
            landing.is_mirror,
            lambda some: refuse_rendered(compiled, [replace(landing, arguments=some)]),
        )
    if dag is None:
        return None

    arguments = arguments_of_task(dag, task, dag_folder)
    return arguments, arguments.is_mirror, refuse_templates


def read_pipeline(file: Path, engine: str | None = None) -> CompiledPipeline:
    """Return the pipeline of a file, compiled. Raises PipelineError.

    :param engine: an engine in place of the file's own.
    """
    from airflow_lakestream.pipelines.reading import read_file

    return read_file(file, variable_lookup(), engine=engine)


@functools.cache
def variable_lookup() -> Any:
    """Return the lookup of a file's variables in Airflow, each looked up once."""
    from airflow_lakestream.pipelines.reading import looked_up

    return functools.cache(looked_up(*open_variables()))


def landings_of(compiled: CompiledPipeline, sink: str | None) -> Sequence[SinkLanding]:
    """Return the landing of a sink, or all landings if `sink` is None. Raises UnknownValue for an unknown sink."""
    known = [landing.sink for landing in compiled.landings]
    if sink is not None and sink not in known:
        raise UnknownValue("--sink", sink, known)
    return [landing for landing in compiled.landings if sink in (None, landing.sink)]


def _landing(file: Path, sink: str | None) -> tuple[CompiledPipeline, SinkLanding]:
    compiled = read_pipeline(file)
    found = landings_of(compiled, sink)
    if len(found) > 1:
        raise InvalidArgument("--sink", f"{file} has {', '.join(one.sink for one in found)}.", "Say which one.")
    return compiled, found[0]


def _options_of(
    arguments: Mapping[str, Any],
    is_mirror: bool,
    refuse: Refuse,
    options: Mapping[str, inspect.Parameter],
    context: typer.Context,
) -> dict[str, Any]:
    """Return the arguments as options of the command, without options given on the command line.

    Raises the errors of `refuse` for templates, and of an option's own check.

    :param options: the parameters of the command.
    """
    found: dict[str, Any] = {}
    unread: tuple[str, ...] = ()
    is_fan_out = "{" in str(arguments.get("table")).replace("{{", "")
    if "repair" in options and (is_mirror or is_fan_out):
        names = OF_ROWS if is_mirror else ("home_table", "metadata_columns")
        of_rows = {name: arguments[name] for name in names if name in arguments and name not in options}
        refuse(of_rows)
        unread = ("on_data_loss",)
        found = {} if context.params["landing"] else {"landing": json.dumps(of_rows, default=_seconds)}
    elif "repair" in options:
        if repairs := bool(context.params["repair"]):
            # The schema is read at once, for its types of times.
            refuse({"schema": arguments.get("schema")})
        unread = _unread_by_audit(arguments, repairs=repairs)
    for name, one in options.items():
        value = arguments.get(argument := _ARGUMENTS.get(name, name))
        source = context.get_parameter_source(name)
        if value is None or name in unread or (source is not None and source.name == "COMMANDLINE"):
            continue
        refuse({argument: value})
        # Typer calls an option's callback only with its own value, not with this one.
        check = next((info.callback for info in get_args(one.annotation)[1:] if getattr(info, "callback", None)), None)
        found[name] = check(_as_option(value)) if check else _as_option(value)
    return found


def _unread_by_audit(arguments: Mapping[str, Any], *, repairs: bool) -> tuple[str, ...]:
    """Return the names of options that an audit leaves out.

    An audit without a repair decodes nothing, except of a table by key. A repair takes the columns from the table: it
    needs a schema only for SQL over decoded columns, for CSV, and for times made from another type.
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
    """Return a value as the command line has it: as text, or as a list of texts."""
    if hasattr(value, "as_struct"):
        from airflow_lakestream.tables.schema.types import schema_text

        return schema_text(value)
    if isinstance(value, Mapping):
        return json.dumps(value)
    return [str(one) for one in value] if isinstance(value, list | tuple) else str(value)


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


# Arguments of every landing task.
_NEEDED = ("topic", "table", "consumer_group")
# The tasks of a group that lands together: their arguments are the same.
_STEPS_OF_GROUP = ("plan", "read", "commit")


class TaskArguments(Mapping[str, Any]):
    """Arguments of a task by name, as in the DAG file: defaults included, without rendering.

    The arguments of a streaming landing are in its `app_config`. Arguments that are None or functions are left out.
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
        found = self._config.get(name, getattr(self._task, name, None))
        if name == "sql" and hasattr(self._task, "written_statement"):
            # It may be a file next to the DAG's.
            found = self._task.written_statement()
        if found is None or callable(found):
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return (name for name in {*vars(self._task), *self._config} if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def arguments_of_task(dag_id: str, task_id: str | None, folder: Path | None) -> TaskArguments:
    """Return the arguments of a landing task. The DAG file is imported; no task runs.

    :param task_id: id of a task, or of a group that lands together; None: the only landing task of the DAG.
    :param folder: the file or folder of DAGs; None: Airflow's.

    Raises InvalidArgument if the DAG or the task does not exist (with the import errors of the files), if the task does
    not land, or if `task_id` is None and several tasks land.
    """
    with like_the_airflow_command(needs_database=True):
        dag = _load(dag_id, folder)
        landing = {one.task_id: one for one in dag.tasks if all(name in TaskArguments(one) for name in _NEEDED)}
        names = dict(filter(None, map(_named, landing)))
        if task_id is None and len(names) != 1:
            many = f"{dag_id} has the tasks {', '.join(names)}." if names else f"no task of {dag_id} lands."
            raise InvalidArgument("--task", many, "Say which one." if names else "Give the options themselves.")
        found = next(iter(names.values())) if task_id is None else names.get(task_id, task_id)
        if found not in landing:
            problem = f"{dag_id} has no task {task_id!r} that lands; there is {', '.join(names) or 'none'}."
            raise InvalidArgument("--task", problem)
        return TaskArguments(landing[found])


def _named(task_id: str) -> tuple[str, str] | None:
    """Return the name of a task for `--task`, and its id.

    The first step of a group has the group's name; later steps have the same arguments, so the result is None.
    """
    group, _, step = task_id.rpartition(".")
    if not group or step not in _STEPS_OF_GROUP:
        return task_id, task_id
    return (group, task_id) if step == _STEPS_OF_GROUP[0] else None


def _load(dag_id: str, folder: Path | None) -> Any:

    from airflow_lakestream.hooks.dags import dags_in

    dags, errors, place = dags_in(folder, dag_id)
    if (dag := dags.get(dag_id)) is not None:
        return dag
    problem = f"there is no DAG {dag_id!r} in {place}."
    failed = [f"{file}: {' '.join(str(error).split())[-300:]}" for file, error in errors.items()]
    remedy = f"These files can't be loaded: {'; '.join(failed)}" if failed else "Correct it, or give --dag-folder."
    raise InvalidArgument("--dag", problem, remedy)


# An argument with a value in a remedy, such as schema_evolution="add".
_SETTING = re.compile(r'\b([a-z_]+)="([^" ]*)"')
_VERBS = ("is", "are", "has", "goes", "belongs", "needs")


def in_options(text: str, command: Any, arguments: Sequence[str]) -> str:
    """Return an error with arguments in the spelling of the called command's options.

    The argument at the beginning is one only if the option was given: else a file or a DAG has it.

    :param command: the program, as Click's group of commands.
    :param arguments: the program's arguments.
    """
    for word in arguments:
        command = getattr(command, "commands", {}).get(word, command)
    options = {
        option.removeprefix("--").replace("-", "_"): option
        for one in command.params
        for option in one.opts
        if option.startswith("--")
    }
    text = _SETTING.sub(lambda match: f"{options[match[1]]} {match[2]}" if match[1] in options else match[0], text)
    name, colon, problem = text.partition(": ")
    name = options[name] if options.get(name) in [one.partition("=")[0] for one in arguments] else name
    # "--table is missing", but "--topic: there is no topic".
    is_verb = name.startswith("--") and problem.partition(" ")[0] in _VERBS
    return f"{name} {problem}" if is_verb else f"{name}{colon}{problem}"
