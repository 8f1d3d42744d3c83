"""The registration with Airflow. Every process of Airflow imports this, tasks too: nothing heavy at its head."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin

PREFIX = "/lakestream"


class LazyApp:
    """An ASGI application that is made by its first request: only the API server ever gets one."""

    def __init__(self) -> None:
        self._app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        if self._app is None:
            from airflow_lakestream.ui.app import make_app

            self._app = make_app()
        await self._app(scope, receive, send)


class LakestreamPlugin(AirflowPlugin):
    """The documentation, in the menu "Docs"."""

    name = "lakestream"
    fastapi_apps = [{"app": LazyApp(), "url_prefix": PREFIX, "name": "Lakestream"}]
    external_views = [
        {
            "name": "Lakestream",
            # Airflow may be served below a path of a proxy.
            "href": f"{urlsplit(conf.get('api', 'base_url', fallback='')).path.rstrip('/')}{PREFIX}/docs/index.html",
            "destination": "nav",
            "category": "docs",
        }
    ]
