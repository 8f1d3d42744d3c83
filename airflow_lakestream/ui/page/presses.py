"""Buttons of a stream: each starts a run of a bundled DAG with the table's names and the decoding of the records.

The browser starts the run by Airflow's own API, which checks the user's permission. Nothing is started here.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.providers.common.compat.sdk import conf
from sqlalchemy import select

import airflow_lakestream
from airflow_lakestream.config import arguments
from airflow_lakestream.core.policies import is_template
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.lakes import LakeCapability, lake_of
from airflow_lakestream.ui.page.tasks import KEPT, StreamTask

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from airflow_lakestream.ui.page.landings import Key

_PACKAGE = Path(airflow_lakestream.__file__).parent
# The bundled DAGs: in the package in a wheel, next to the package in a checkout.
_PLACES = (_PACKAGE / "example_dags", _PACKAGE.parent / "dags")
# Number of newest runs whose rendered arguments are looked at: as many as Airflow keeps by default.
_RENDERED_RUNS = 30
# Beginning of a value that Airflow has cut, and Airflow's replacement of a secret.
_CUT = "Truncated."
_MASKED = "***"
_FILE = ".sql"  # end of an argument `sql` that names a file
# Beginning of the text that Airflow has for a schema that is an object of PyIceberg.
_OBJECT = "table {"
# Values of arguments that a form leaves empty, rendered or not. A blank is a value: a CSV delimiter.
_EMPTY_VALUES: tuple[Any, ...] = (None, "", "None", [])


class ButtonAction(StrEnum):
    """Action of a button."""

    AUDIT = "audit"
    REPLAY = "replay"

    @property
    def dag_id(self) -> str:
        """The bundled DAG of the button."""
        return f"lake_{self.value}"


# By button, the task's arguments for the bundled DAG. An audit decodes nothing, and no Delta table is replayed.
_PASSED_ARGUMENTS = {
    ButtonAction.AUDIT: [name for name in KEPT if name.endswith("_conn_id")],
    ButtonAction.REPLAY: [name for name in KEPT if name != "storage_conn_id"],
}


class NotPossible(Exception):
    """A button that can do nothing for this stream; the text is the reason."""


@dataclass(frozen=True, slots=True)
class ButtonStream:
    """A stream for which a button is pressed; `table` and `consumer_group` are None if unknown."""

    key: Key
    task: StreamTask
    table: str | None
    consumer_group: str | None


def buttons_of(session: Session, stream: ButtonStream, readable: Collection[str]) -> dict[str, Any]:
    """Return by button: the DAG's id, whether the DAG is there, and the reason against a press.

    `is_there` is False if the DAG does not exist, or if the user may not read it. `why_not` is None if the button can
    be pressed.
    """
    bundled = _bundled_dags(session, readable)
    return {
        press.value: {
            "dag_id": press.dag_id,
            "is_there": press.dag_id in bundled,
            "why_not": _obstacle(press, stream, bundled),
        }
        for press in ButtonAction
    }


def conf_of(session: Session, press: ButtonAction, stream: ButtonStream, readable: Collection[str]) -> dict[str, Any]:
    """Return the DAG's id, whether the DAG is paused, and the conf for a run of the DAG.

    The conf has the table, the consumer group, and the task's arguments for the button. Raises NotPossible with the
    reason against a press.
    """
    bundled = _bundled_dags(session, readable)
    if (obstacle := _obstacle(press, stream, bundled)) is not None:
        raise NotPossible(obstacle)
    rendered = _RenderedArguments(session, stream)
    names = {"table": stream.table, "consumer_group": stream.consumer_group}
    passed = {name: rendered(name) for name in _PASSED_ARGUMENTS[press]}
    passed = {name: value for name, value in passed.items() if value not in _EMPTY_VALUES}
    return {"dag_id": press.dag_id, "paused": bundled[press.dag_id], "conf": {**passed, **names}}


def copy_command(dag_id: str) -> str:
    """Return the command of a shell that adds a bundled DAG to Airflow's folder of DAGs."""
    file = next(path for place in _PLACES if (path := place / f"{dag_id}.py").is_file())
    return f"cp {shlex.quote(str(file))} {shlex.quote(conf.get('core', 'dags_folder'))}/"


def _bundled_dags(session: Session, readable: Collection[str]) -> dict[str, bool]:
    """Return by id whether a DAG is paused, for the bundled DAGs that the user may read."""
    wanted = [press.dag_id for press in ButtonAction if press.dag_id in readable]
    rows = select(DagModel.dag_id, DagModel.is_paused).where(DagModel.dag_id.in_(wanted), ~DagModel.is_stale)
    return {dag_id: bool(paused) for dag_id, paused in session.execute(rows)}


def _obstacle(press: ButtonAction, stream: ButtonStream, bundled: Collection[str]) -> str | None:
    """Return the reason against a press of the button, or None."""
    if press.dag_id not in bundled:
        command = copy_command(press.dag_id)
        return f"There is no DAG {press.dag_id} that you may read. It is bundled, so add it to your DAGs: {command}"
    table = stream.table
    if stream.task.is_mapped:
        return f"Its task is mapped, and lands in a table for each: start {press.dag_id} by its form."
    if table is None:
        return "No run has reported the table's name yet."
    if "{" in table:
        return f"It lands in several tables: start {press.dag_id} by its form, for each of them."
    if press is ButtonAction.AUDIT:
        return None
    return _no_replay(stream, LakeCapability.CATALOG in lake_of(table).can)


def _no_replay(stream: ButtonStream, has_catalog: bool) -> str | None:
    if not has_catalog:
        return "lake_replay is for tables of a catalog: `lakestream rejects replay` takes Delta tables, too."
    if stream.task.engine not in ("extract", "group"):
        return "Its task does not specify how the records are decoded: start lake_replay by its form."
    return None


class _RenderedArguments:
    """A task's arguments from the DAG file, with the values of the newest run in place of templates."""

    def __init__(self, session: Session, stream: ButtonStream) -> None:
        self._session = session
        self._stream = stream
        self._given = stream.task.given
        self._fields: Mapping[str, Any] | None = None

    def __call__(self, name: str) -> Any:
        """Return an argument's value for a field of a DAG's form, or None if the argument is missing.

        Raises NotPossible if no run has rendered a template, and if Airflow has cut or hidden the value.
        """
        value = self._given.get(name)
        if _is_rendered_by_run(name, value):
            if name not in self._of_run():
                raise NotPossible(f"The argument {name} is a template, and no run has rendered it yet.")
            value = self._of_run()[name]
        text = value if isinstance(value, str) else json.dumps(value)
        if text.startswith(_CUT) or _MASKED in text:
            problem = (
                "is too long for Airflow to keep" if text.startswith(_CUT) else "contains a value that Airflow hides"
            )
            raise NotPossible(f"The argument {name} {problem}: start the DAG by its form.")
        if name == "schema" and text.startswith(_OBJECT):
            raise NotPossible("The argument schema is not a text in the DAG file: start the DAG by its form.")
        # The field of the form takes a list of texts.
        if name == "writer_schemas":
            try:
                return list(arguments.schemas(name, value) or ())
            except InvalidArgument as e:
                raise NotPossible(f"{e} Start the DAG by its form.") from None
        return text if isinstance(value, Mapping) else value

    def _of_run(self) -> Mapping[str, Any]:
        """Return the arguments as rendered by the newest run that landed in the stream's table."""
        if self._fields is None:
            rendered, (dag_id, task_id) = RenderedTaskInstanceFields, self._stream.key
            newest = (
                select(rendered.rendered_fields)
                .join(DagRun, (DagRun.dag_id == rendered.dag_id) & (DagRun.run_id == rendered.run_id))
                .where(rendered.dag_id == dag_id, rendered.task_id == task_id)
                .order_by(DagRun.id.desc(), rendered.map_index)
                .limit(_RENDERED_RUNS)
            )
            newest_fields = [fields for fields in self._session.scalars(newest) if isinstance(fields, Mapping)]
            # A run for another table may have had other arguments: it does not count.
            by_run, table = self._stream.task.has_table_by_run, self._stream.table
            self._fields = next(
                (fields for fields in newest_fields if by_run or fields.get("table") in (None, table)), {}
            )
        return self._fields


def _is_rendered_by_run(name: str, value: Any) -> bool:
    """Return whether only a run knows an argument's value: the argument has a template, or names a file with SQL."""
    text = value if isinstance(value, str) else json.dumps(value)
    return is_template(text) or (name == "sql" and text.endswith(_FILE))
