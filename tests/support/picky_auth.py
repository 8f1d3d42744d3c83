"""An auth manager by which some may not read all DAGs: Airflow's simple one lets each role read everything."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager


class PickyAuthManager(SimpleAuthManager):
    """Shows the DAGs whose names begin with `secret` to admins alone, and lets them alone start runs of `no_outlet`."""

    def is_authorized_dag(self, *, method: Any, user: Any, access_entity: Any = None, details: Any = None) -> bool:
        """Whether the user may."""
        if details is not None and str(details.id).startswith("secret") and user.role != "admin":
            return False
        if details is not None and details.id == "no_outlet" and method != "GET" and user.role != "admin":
            return False
        return super().is_authorized_dag(method=method, user=user, access_entity=access_entity, details=details)
