"""The application below /lakestream of Airflow's API server. A route answers only for DAGs that the user may read."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from starlette.responses import PlainTextResponse
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from airflow_lakestream.ui.page.presses import ButtonAction, NotPossible, conf_of
from airflow_lakestream.ui.page.streams import StreamsPage


def readable_dags(user: GetUserDep, session: SessionDep) -> set[str]:
    """Return the ids of the DAGs that the user may read; a request without a user ends with 401."""
    # Airflow has a dependency for this, but it reads the state of the main application, which is not ours.
    return set(get_auth_manager().get_authorized_dag_ids(user=user, method="GET", session=session))


Readable = Annotated[set[str], Depends(readable_dags)]
may_start_runs = requires_access_dag("POST", DagAccessEntity.RUN)


def routes() -> APIRouter:
    """Return the routes of the page."""
    router, streams = APIRouter(prefix="/api"), StreamsPage()

    @router.get("/streams")
    def all_streams(readable: Readable, session: SessionDep) -> Response:
        return Response(streams.all(session, readable), media_type="application/json")

    @router.get("/hours")
    def rows_by_hour(readable: Readable, session: SessionDep) -> Response:
        return _json(streams.hours(session, readable))

    @router.get("/streams/{dag_id}/{task_id}")
    def one_stream(
        dag_id: str, task_id: str, readable: Readable, session: SessionDep, table: str | None = None
    ) -> Response:
        document = streams.one(session, (dag_id, task_id), readable, table)
        if document is None:
            raise HTTPException(404, _no_stream(dag_id, task_id))
        return _json(document)

    @router.get("/streams/{dag_id}/{task_id}/presses/{press}")
    def what_a_press_starts(
        dag_id: str,
        task_id: str,
        press: ButtonAction,
        readable: Readable,
        session: SessionDep,
        user: GetUserDep,
        request: Request,
        table: str | None = None,
    ) -> Response:
        stream = streams.pressed(session, (dag_id, task_id), readable, table)
        if stream is None:
            raise HTTPException(404, _no_stream(dag_id, task_id))
        # In addition to the permission on the bundled DAG, which Airflow checks when the run is started.
        may_start_runs(request, user)
        try:
            return _json(conf_of(session, press, stream, readable))
        except NotPossible as e:
            raise HTTPException(409, str(e)) from None

    return router


def _json(document: dict[str, Any]) -> Response:
    # The values are plain JSON. FastAPI would check each value again, and fails for half a surrogate pair.
    return Response(json.dumps(document), media_type="application/json")


def _no_stream(dag_id: str, task_id: str) -> str:
    # The same text for a stream that the user may not read: the answer must not disclose that the stream exists.
    return f"There is no stream {dag_id}.{task_id}, or you may not read its DAG."


def make_app() -> FastAPI:
    """Return the application: the page's routes, scripts in /static, documentation in /docs.

    The routes need a login. Scripts and documentation need none, since they contain no secrets. Without built
    documentation /docs answers with 404 and the remedy.
    """
    package = Path(str(files("airflow_lakestream")))
    # A wheel has the site inside; in a checkout `make docs` builds it next to the package.
    built = next((site for site in (package / "site", package.parent / ".site") if site.is_dir()), None)
    app = FastAPI(title="Lakestream", docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(routes())
    app.mount("/static", StaticFiles(directory=package / "ui" / "page" / "static"))
    app.mount("/docs", StaticFiles(directory=built, html=True) if built else _answer_without_site)
    return app


async def _answer_without_site(scope: Scope, receive: Receive, send: Send) -> None:
    text = (
        "The documentation is in the wheel, and this is an installation without it (pip install --editable). "
        "Run `make docs` in the repository, and start Airflow's API server again."
    )
    await PlainTextResponse(text, status_code=404)(scope, receive, send)
