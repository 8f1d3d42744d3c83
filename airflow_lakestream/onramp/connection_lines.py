"""Connections as lines of a shell, with a placeholder for each secret."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from airflow_lakestream.core.secrecy import is_secret_name, url_holds_secret

# Secrets whose names end otherwise.
_KEYS = re.compile(r"(?:\.pem|access-key-id|access_key_id)$", re.IGNORECASE)
_USER_INFO = re.compile(r"(?<=://)([^/@\s]*)@")


def export_line(conn_id: str, fields: Mapping[str, Any]) -> str:
    """Return a shell's line `export AIRFLOW_CONN_...`, with the connection as JSON and placeholders for secrets.

    :param fields: of the connection: conn_type, host, login, password, ..., and extra, a mapping.
    """
    text = json.dumps({name: value for name, value in masked(fields).items() if value})
    return f"export AIRFLOW_CONN_{conn_id.upper()}={shlex.quote(text)}"


def masked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with a placeholder for each secret, also in nested settings and in URLs."""
    return {name: _masked(str(name), value) for name, value in settings.items()}


def _masked(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return masked(value)
    if not value:
        return value
    if is_secret_name(name) or _KEYS.search(name):
        return f"<{name}>"
    if isinstance(value, str) and url_holds_secret(value):
        return _USER_INFO.sub("<user>:<password>@", value.split("?")[0])
    return value


def secret_values(*settings: Mapping[str, Any] | None) -> list[str]:
    """Return the secrets in settings, the longest first, to hide in texts.

    A secret with colons counts as a whole and in parts. None among the settings is skipped.
    """
    return sorted(set(_secrets(settings)), key=len, reverse=True)


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return a text with stars in the place of each secret.

    :param secrets: the longest first, so that no part of a secret stays; see `secret_values`.
    """
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def _secrets(settings: Iterable[Mapping[str, Any] | None]) -> Iterable[str]:
    for one in settings:
        for name, value in (one or {}).items():
            if isinstance(value, Mapping):
                yield from _secrets([value])
            elif isinstance(value, str) and value and (is_secret_name(str(name)) or _KEYS.search(str(name))):
                yield value
                # Such as "user:password".
                yield from (part for part in value.split(":") if len(part) >= 4)
            elif isinstance(value, str) and url_holds_secret(value):
                yield from (part for found in _USER_INFO.findall(value) for part in found.split(":")[1:] if part)
