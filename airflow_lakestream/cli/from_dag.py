"""Arguments of a DAG's task, for commands with the same arguments: the DAG is loaded as by Airflow, and not run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from airflow_lakestream.cli.connections import like_the_airflow_command
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.spark.apps import MIRROR_APPS

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
