"""Search for secrets in arguments, since DAG files, Airflow's database and the UI show arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_lakestream.exceptions import InvalidArgument

# A secret's name ends in one of these; Azure's account keys and tokens have the account's name after them.
_NAME = re.compile(
    r"(?:password|passwd|passphrase|secret|secret[._-]?(?:access[._-]?)?key|private[._-]?key|api[._-]?key|token"
    r"|credential|authorization|user[._-]?info|jaas[._-]?config|connection[._-]?string"
    r"|(?:account|shared)[._-]?key|account[._-]key\..+|(?:fixed|sas)[._-]token\..+)$",
    re.IGNORECASE,
)
# Names of a secret's place, or about a column of such a name.
_NO_SECRET = re.compile(r"\.secretKeyRef\.|\.secrets\.|\.column\.", re.IGNORECASE)
# Further names of secrets among a URL's parameters.
_OF_URLS = re.compile(r"(?:sig|signature|key|auth)$", re.IGNORECASE)
_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^\s'\"]+", re.IGNORECASE)
_ASSIGNED = re.compile(r"(?:^|[\s;,]|-D)([\w.-]+)=[\"']?[^\s;,\"']")
# The text in the place of a secret.
HIDDEN = "***"
# A name before its value: in quotes, also escaped ones, or bare.
_NAMED = re.compile(r"""["']([^"'\\]*)\\*["']\s*:|(?<![\w.-])([\w.-]+)[ \t]*[=:]""")
_TEMPLATE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)
# Names that Airflow masks wherever it shows them, from 3.1 on.
MASKED = re.compile("password|passwd|passphrase|secret|token|api_?key|authorization|private_key", re.IGNORECASE)
_REMEDY = "Put it into an Airflow connection."


def without_templates(text: str, instead: str = "x") -> str:
    """Return a text with each template expression replaced."""
    return _TEMPLATE.sub(instead, text)


def url_holds_secret(text: str) -> bool:
    """Return whether a text has a URL with a password, or with a parameter of a secret's name."""
    return any(map(_url_holds_secret, _URL.findall(text)))


def _url_holds_secret(url: str) -> bool:
    """Return whether a URL has a password, a user of HTTP, or a parameter with a secret's name."""
    scheme, _, address = url.partition("://")
    user, separator, _ = re.split(r"[/?#;]", address, maxsplit=1)[0].rpartition("@")
    name, _, password = user.partition(":")
    if separator and (password or (name and scheme.lower() in ("http", "https"))):
        return True
    for part in re.split(r"[?&;#]", url)[1:]:
        parameter, _, value = part.partition("=")
        if value and (_NAME.search(parameter) or _OF_URLS.search(parameter)):
            return True
    return False


def is_secret_name(name: str) -> bool:
    """Return whether a name is a secret's name, and not only about the place of a secret."""
    return bool(_NAME.search(name)) and not _NO_SECRET.search(name)


def without_secrets(text: str) -> str:
    """Return a text with likely secrets hidden: all text behind a secret's name, and URLs with secrets.

    Names are found in quotes before a colon, as in JSON, and in `name=value` or `name: value`. The end of such a value
    is not searched, since a record can feign it.
    """
    for match in _NAMED.finditer(text):
        if is_secret_name(match[1] or match[2] or ""):
            text = f"{text[: match.end()]}{HIDDEN}"
            break
    return _URL.sub(lambda match: HIDDEN if _url_holds_secret(match[0]) else match[0], text)


def secrets_in(value: Any, at: str = "", *, rendered: str = "x", assigned: bool = False) -> Iterator[str]:
    """Yield the places of secrets in an argument, by names of keys and in URLs; never the secrets.

    :param at: the name of the argument.
    :param rendered: replaces a template expression; empty if Airflow masks the rendered value.
    :param assigned: search text such as `-Dpassword=...`, too, as in settings of programs.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            place = f"{at}.{key}" if at else str(key)
            if is_secret_name(str(key)) and isinstance(item, str | int) and not isinstance(item, bool):
                # A path only shows the place of a secret.
                text = without_templates(str(item), rendered)
                yield from [place] if text and not text.startswith("/") else []
            else:
                yield from secrets_in(item, place, rendered=rendered, assigned=assigned)
    elif isinstance(value, str):
        text = without_templates(value, rendered)
        names = _ASSIGNED.findall(text) if assigned else []
        if url_holds_secret(text) or any(map(is_secret_name, names)):
            yield at
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for n, item in enumerate(value):
            yield from secrets_in(item, f"{at}[{n}]", rendered=rendered, assigned=assigned)


def refuse_shown(argument: str, value: Any, remedy: str = _REMEDY) -> None:
    """Refuse secrets in an argument. Raises InvalidArgument with the places, never with the secrets."""
    if secrets := list(secrets_in(value)):
        places = " and ".join(place or "its text" for place in secrets)
        raise InvalidArgument(argument, f"{places} holds a secret, which would be shown.", remedy)
