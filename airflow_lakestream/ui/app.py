"""The API server's application below /lakestream."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI
from starlette.responses import PlainTextResponse
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from airflow_lakestream.ui.page.routes import routes


def make_app() -> FastAPI:
    """Return the application: the page's routes, scripts in /static, documentation in /docs.

    The routes need a login. Scripts and documentation need no login, since neither contains secrets. Without a built
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
