"""The plugin for Airflow. Each process of Airflow imports this module, also for tasks: no heavy import at the top."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin

PREFIX = "/lakestream"
# A proxy may serve Airflow below a path. Airflow 3.1 imports a script by exactly this address: it needs the whole path.
_BASE = f"{urlsplit(conf.get('api', 'base_url', fallback='')).path.rstrip('/')}{PREFIX}"
_STATIC = f"{_BASE}/static"
_ICONS = {"icon": f"{_STATIC}/icon.svg", "icon_dark_mode": f"{_STATIC}/icon-dark.svg"}


class LazyApp:
    """An ASGI application, built at the first request: among Airflow's processes only the API server gets any."""

    def __init__(self) -> None:
        self._app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        if self._app is None:
            from airflow_lakestream.ui.app import make_app

            self._app = make_app()
        await self._app(scope, receive, send)


class LakestreamPlugin(AirflowPlugin):
    """The page of all streams, the page of a DAG's streams, and the documentation in the menu "Docs"."""

    name = "lakestream"
    fastapi_apps = [{"app": LazyApp(), "url_prefix": PREFIX, "name": "Lakestream"}]
    # Airflow loads the script, and takes the component from `globalThis` by the view's name.
    react_apps = [
        {
            "name": "Lakestream",
            "bundle_url": f"{_STATIC}/lakestream.js",
            "destination": "nav",
            # Not "lakestream": the documentation has this route by its name.
            "url_route": "lakestream-streams",
            "nav_top_level": True,
            **_ICONS,
        },
        {"name": "Streams", "bundle_url": f"{_STATIC}/dag.js", "destination": "dag", "url_route": "streams", **_ICONS},
    ]
    external_views = [
        {"name": "Lakestream", "href": f"{_BASE}/docs/index.html", "destination": "nav", "category": "docs"}
    ]
