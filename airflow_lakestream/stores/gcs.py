"""Google Cloud Storage: storage options from a catalog's properties or from delta-rs' options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_lakestream.stores.given_options import given_options

SCHEMES = ("gs", "gcs")
# PyIceberg's names.
_OF_CATALOGS = {"gcs.service.host": "google_base_url", "gcs.oauth2.token": "google_bearer_token"}
# delta-rs' names without a prefix.
_PLAIN = ("service_account", "service_account_path", "service_account_key", "application_credentials")
# delta-rs' other names for the options above.
_ALIASES = {"base_url": "google_base_url", "bearer_token": "google_bearer_token"}


def options_of(properties: Mapping[str, Any]) -> dict[str, str]:
    """Return the storage options of a catalog's properties; given storage options win over properties.

    Further properties of a catalog are left out; see `given_options`.
    """
    settings = {option: str(properties[name]) for name, option in _OF_CATALOGS.items() if properties.get(name)}
    settings |= given_options(properties, "google_", _PLAIN, _ALIASES)
    if settings.get("google_base_url", "").startswith("http://"):
        settings["google_allow_http"] = "true"
    return settings
