"""What the API server answers below /lakestream."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send


def make_app() -> Starlette:
    """Return the application. Its pages are static and have no secrets, so that no login is asked for."""
    package = Path(str(files("airflow_lakestream")))
    # A wheel has the site inside; in a checkout `make docs` builds it beside the package.
    built = next((site for site in (package / "site", package.parent / ".site") if site.is_dir()), None)
    route: BaseRoute = Mount("/docs", StaticFiles(directory=built, html=True) if built else _no_site)
    return Starlette(routes=[route])


async def _no_site(scope: Scope, receive: Receive, send: Send) -> None:
    text = (
        "The documentation is in the wheel, and this is an installation without it (pip install --editable). "
        "Run `make docs` in the repository, and start Airflow's API server again."
    )
    await PlainTextResponse(text, status_code=404)(scope, receive, send)
