"""The address of a schema registry, and the settings to reach it."""

from __future__ import annotations

import json
import math
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from airflow_lakestream.core.secrecy import without_templates
from airflow_lakestream.exceptions import InvalidArgument

# The settings that are never shown, and belong into a connection.
SECRETS = ("password", "token", "key_password")

# The settings by their names in Confluent's clients, after the prefix "schema.registry.".
_CONFLUENT = {
    "url": "url",
    "bearer.auth.token": "token",
    "ssl.ca.location": "ca_file",
    "ssl.certificate.location": "cert_file",
    "ssl.key.location": "key_file",
    "ssl.key.password": "key_password",
    "timeout": "timeout",
    "max.retries": "retries",
}
_PREFIX = "schema.registry."
_USER_INFO = "basic.auth.user.info"


@dataclass(frozen=True)
class RegistryConfig:
    """Address of a schema registry, and the settings to reach it.

    :param url: base URL, such as "https://registry:8081" or "http://apicurio:8080/apis/ccompat/v7".
    :param username: for basic authentication, with `password`.
    :param token: for bearer authentication, instead of username and password.
    :param ca_file: trusted certificates, in PEM (default: the system's).
    :param cert_file: client certificate, in PEM, with `key_file` and perhaps `key_password`.
    :param timeout: seconds per request.
    :param retries: the most repetitions of a request after a failure that may pass.
    """

    url: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    timeout: float = 10.0
    retries: int = 3

    def __post_init__(self) -> None:
        try:
            parts = urllib.parse.urlsplit(self.url)
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_address = False
        if not is_address:
            raise InvalidArgument("schema_registry", "its url is not one of http or https.")
        if parts.username or parts.password:
            raise InvalidArgument(
                "schema_registry", "its url holds credentials.", "Give username and password separately."
            )
        if parts.query or parts.fragment:
            # Paths are appended to the URL, so a query can't be kept. The error does not show it: it may be a key.
            raise InvalidArgument(
                "schema_registry", "its url has a query or a fragment.", "Give a token, or username and password."
            )
        if self.token and self.username:
            raise InvalidArgument("schema_registry", "both a token and a username are given.", "Leave one out.")
        if (self.username is None) != (self.password is None):
            raise InvalidArgument("schema_registry", "a username needs a password, and the other way round.")
        if self.cert_file is None and (self.key_file or self.key_password):
            raise InvalidArgument("schema_registry", "a key without a certificate.", "Give cert_file.")
        if not 0 < self.timeout < math.inf or self.retries < 0:
            raise InvalidArgument("schema_registry", "timeout has to be above 0, and retries not below 0.")

    @classmethod
    def parse(cls, value: Any) -> RegistryConfig:
        """Return the configuration of a URL, a mapping, or a mapping in JSON text. Raises InvalidArgument.

        A RegistryConfig is returned unchanged.
        """
        if isinstance(value, cls):
            return value
        given = settings(value)
        known = [item.name for item in fields(cls)]
        unknown = sorted(set(given) - set(known))
        if unknown or "url" not in given:
            problem = f"unknown settings {', '.join(unknown)}." if unknown else "its url is missing."
            raise InvalidArgument("schema_registry", problem, f"It takes {', '.join(known)}.")
        for name in given:
            if name not in ("timeout", "retries"):
                given |= {name: _text(name, given[name])}
        for name, kind in (("timeout", float), ("retries", int)):
            try:
                if name in given:
                    given[name] = kind(str(given[name]))
            except ValueError:
                raise InvalidArgument("schema_registry", f"its {name} is not a number.") from None
        return cls(**given)

    @classmethod
    def from_client_settings(cls, client: Mapping[str, Any]) -> RegistryConfig | None:
        """Return the registry of a Kafka client's settings, or None without any setting of a registry.

        Raises InvalidArgument for an unknown setting: if the setting were ignored, no later error would name it.
        """
        given = {key.removeprefix(_PREFIX): value for key, value in client.items() if key.startswith(_PREFIX)}
        # The setting selects where Confluent's clients find user name and password: here always in _USER_INFO.
        given.pop("basic.auth.credentials.source", None)
        if not given:
            return None
        settings = {}
        if _USER_INFO in given:
            settings["username"], _, settings["password"] = str(given.pop(_USER_INFO)).partition(":")
        if unknown := sorted(set(given) - set(_CONFLUENT)):
            known = ", ".join(_PREFIX + name for name in sorted([*_CONFLUENT, _USER_INFO]))
            names = ", ".join(_PREFIX + name for name in unknown)
            raise InvalidArgument("schema_registry", f"the Kafka connection has {names}.", f"It may have {known}.")
        return cls.parse(settings | {_CONFLUENT[name]: value for name, value in given.items()})


def settings(value: Any) -> dict[str, Any]:
    """Return a user's URL, mapping, or mapping in JSON text as an unchecked mapping. Raises InvalidArgument."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except ValueError:
            # The error does not show the text, which may have a password.
            raise InvalidArgument("schema_registry", "it begins like JSON text, but is not JSON.") from None
    if isinstance(value, str):
        return {"url": value.strip()}
    if not isinstance(value, Mapping):
        problem = f"it is a {type(value).__name__}."
        raise InvalidArgument("schema_registry", problem, "Give a URL, or a mapping with url in it.")
    return dict(value)


def _text(name: str, value: object) -> str | None:
    """Return a setting as a text; a number by its digits."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument("schema_registry", f"its {name} is a {type(value).__name__}, not a text.")
    return str(value)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def is_client_setting(key: str) -> bool:
    """Return whether a Kafka connection's setting is for the schema registry, not for librdkafka."""
    return key.startswith(_PREFIX)


def is_address(value: Any) -> bool:
    """Return whether a user's value is a registry's URL or mapping, not the id of a connection."""
    return not isinstance(value, str) or "://" in value or value.lstrip().startswith("{")


def refuse_secrets(value: Any) -> None:
    """Refuse secrets in an argument, since arguments are shown in logs, in the UI and in Airflow's database.

    Raises InvalidArgument, without the secret. A template expression as the value of a secret is refused, too.
    """
    remedy = "Put them into an Airflow connection, and give its id as schema_registry."
    if isinstance(value, str) and (filled := without_templates(value)) != value:
        if filled.lstrip().startswith("{") and not _is_json(filled):
            # Without its templates the text is not JSON: it can only be parsed after it is rendered.
            return
        value = filled
    if not is_address(value):
        if re.search("[@?]", value):
            raise InvalidArgument("schema_registry", "it is neither a URL nor the id of a connection.", remedy)
        return
    given = settings(value)
    if secrets := [name for name in SECRETS if given.get(name)]:
        raise InvalidArgument("schema_registry", f"it holds {' and '.join(secrets)}, which would be shown.", remedy)
    url = urllib.parse.urlsplit(without_templates(str(given.get("url", ""))))
    if "@" in url.netloc or url.query or url.fragment:
        raise InvalidArgument("schema_registry", "its url holds credentials, which would be shown.", remedy)
    if unknown := sorted(str(name) for name in set(given) - {item.name for item in fields(RegistryConfig)}):
        # The error names the settings without values: an unknown setting, such as a header, may be a secret.
        problem = f"it holds {' and '.join(unknown)}, which no registry takes here and which would be shown."
        raise InvalidArgument("schema_registry", problem, remedy)
