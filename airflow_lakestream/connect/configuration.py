"""A connector's configuration in Connect's form, without literal secrets, and without misspelt keys."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from airflow_lakestream.core.secrecy import secrets_in
from airflow_lakestream.exceptions import InvalidArgument, Terminal

log = logging.getLogger(__name__)

ICEBERG_SINK = "org.apache.iceberg.connect.IcebergSinkConnector"
_REFERENCE = re.compile(r"\$\{[^}]*\}")
# Settings of clients and converters, which Connect passes through unread.
_HANDED_ON = (
    *(f"{client}.override." for client in ("consumer", "producer", "admin")),
    *(f"{what}.converter." for what in ("key", "value", "header")),
)
# Least similarity of an unknown key to a known key that counts as misspelt.
_ALIKE = 0.86


class ConfigRefused(InvalidArgument, Terminal):
    """Error of a connector's configuration refused by Connect, or taken without the intended effect."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__("config", problem, remedy)


def as_text(config: Mapping[str, Any]) -> dict[str, str]:
    """Return a configuration in Connect's form: all values are text. Raises ConfigRefused.

    True and false become lower-case words. Lists, mappings and None have no such form, and are refused.
    """
    text = {}
    for key, value in config.items():
        if isinstance(value, Mapping | list | tuple | set) or value is None:
            raise ConfigRefused(f"{key} is a {type(value).__name__}.", "Connect takes text, numbers and true or false.")
        text[str(key)] = str(value).lower() if isinstance(value, bool) else str(value).strip()
    return text


def refuse_literal_secrets(config: Mapping[str, Any]) -> None:
    """Refuse literal secrets in the configuration, visible to everybody in Connect. Raises ConfigRefused.

    A secret has to be a reference to a config provider, such as `${file:/etc/connect/lake.properties:password}`.
    """
    if secrets := sorted(set(_literal_secrets(config))):
        remedy = "Refer to it by a config provider of the workers, such as ${file:/path/lake.properties:password}."
        raise ConfigRefused(f"{' and '.join(secrets)} holds a secret, which Connect would show.", remedy)


def _literal_secrets(config: Mapping[str, Any]) -> Iterator[str]:
    for key, value in config.items():
        # A reference to a config provider is not literal; the text around it may still hold a secret.
        text = _REFERENCE.sub("", value) if isinstance(value, str) else value
        if isinstance(text, str) and key.endswith("jaas.config"):
            # A line of settings, of which only some are secret.
            yield from (key for _ in secrets_in(text, key, assigned=True))
        else:
            yield from secrets_in({key: text})


def changed_settings(wanted: Mapping[str, str], existing: Mapping[str, str]) -> list[str]:
    """Return the names of the settings with different values, or with a value on a single side.

    The key `name`, which Connect adds, is left out.
    """
    names = (set(wanted) | set(existing)) - {"name"}
    return sorted(name for name in names if wanted.get(name) != existing.get(name))


def check_keys(config: Mapping[str, str], known: Collection[str], handed_on: Collection[str] = ()) -> None:
    """Refuse misspelt keys, since Connect ignores unknown keys. Raises ConfigRefused.

    An unknown key that looks like a known key is refused, and so is any unknown key of a transformation or predicate.
    Any other unknown key gets a warning only: some connectors pass settings to a library.

    :param known: the names that Connect returns from its validation.
    :param handed_on: prefixes of further settings that the connector passes on, and that are not checked.
    """
    prefixes = (*_HANDED_ON, *handed_on)
    for key in sorted(set(config) - set(known) - {"name"}):
        if key.startswith(prefixes):
            continue
        similar = difflib.get_close_matches(key, known, n=1, cutoff=_ALIKE)
        if similar:
            raise ConfigRefused(f"{key} is not a setting of the connector.", f"Is {similar[0]} meant?")
        if key.startswith(("transforms.", "predicates.")):
            remedy = f"Is it listed in {key.partition('.')[0]}, and does its type have such a setting?"
            raise ConfigRefused(f"{key} does not belong to a transformation or predicate of this connector.", remedy)
        log.warning("%s is not a setting that the connector lists; the connector may pass it to a library.", key)


def check_errors(errors: Mapping[str, Collection[str]], config: Mapping[str, str]) -> None:
    """Refuse a configuration with errors of Connect's own validation. Raises ConfigRefused.

    Connect resolves config providers before the validation, and its message may contain the value, a secret. So the
    message is left out for a setting with a reference to a provider.
    """
    problems = "; ".join(
        f"{name}: the value of {config[name]}, which is not shown"
        if _REFERENCE.search(config.get(name, ""))
        else f"{name}: {' '.join(errors[name])}"
        for name in errors
    )
    if problems:
        raise ConfigRefused(f"Connect refuses {problems[:1000]}")
