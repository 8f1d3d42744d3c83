"""Google Cloud Storage: storage options from a catalog's properties or from delta-rs' options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SCHEMES = ("gs", "gcs")
# PyIceberg's names.
_OF_CATALOGS = {"gcs.service.host": "google_base_url", "gcs.oauth2.token": "google_bearer_token"}
# delta-rs' names without a prefix.
_PLAIN = ("service_account", "service_account_path", "service_account_key", "application_credentials")


def options_of(properties: Mapping[str, Any]) -> dict[str, str]:
    """Return the storage options of a catalog's properties; given storage options win over properties.

    Further properties are left out.
    """
    settings = {option: str(properties[name]) for name, option in _OF_CATALOGS.items() if properties.get(name)}
    for key, value in properties.items():
        name = key.lower()
        if name.startswith("google_") or name in _PLAIN:
            settings[name] = str(value)
    if settings.get("google_base_url", "").startswith("http://"):
        settings["google_allow_http"] = "true"
    return settings
