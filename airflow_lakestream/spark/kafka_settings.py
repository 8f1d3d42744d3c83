"""librdkafka's settings, translated for Spark's Java client, and prepared for executors.

Settings that only tune librdkafka are left out for Java. Any other setting without a counterpart is refused: if it were
ignored, a later error would not point to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.kafka.client import NOT_FOR_US

# Options whose values Spark must mask: Spark's default pattern would show JAAS and PEM texts.
REDACTED = "(?i)secret|password|token|access[.]?key|jaas|keystore|truststore"

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
# The settings of librdkafka's method `oidc`, which asks a token endpoint; Java's client has the same method.
_BEARER = "OAUTHBEARER"
_BEARER_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
_BEARER_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
# Settings whose values begin with the name of a class of Kafka's client: a jar that relocates the client changes it.
NAMES_A_CLASS = ("sasl.jaas.config", "sasl.login.callback.handler.class")

_SAME_NAMES = (
    *("client.id", "client.rack", "client.dns.lookup", "metadata.max.age.ms", "connections.max.idle.ms", "check.crcs"),
    *("reconnect.backoff.ms", "reconnect.backoff.max.ms", "retry.backoff.ms", "socket.connection.setup.timeout.ms"),
    *("fetch.min.bytes", "fetch.max.bytes", "max.partition.fetch.bytes", "isolation.level"),
)
_RENAMED = {
    "metadata.broker.list": "bootstrap.servers",
    "bootstrap.servers": "bootstrap.servers",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "socket.timeout.ms": "request.timeout.ms",
    "socket.receive.buffer.bytes": "receive.buffer.bytes",
    "socket.send.buffer.bytes": "send.buffer.bytes",
}
# Beginnings of settings of librdkafka's work and logs, without influence on the records that are read.
_IGNORED_PREFIXES = (
    *("queued.", "log", "debug", "statistics.", "socket.", "api.version.", "broker.", "topic.metadata.", "builtin."),
    *("fetch.queue.", "fetch.error.", "message.max.", "receive.message.max.", "max.in.flight", "enable.partition.eof"),
    *("session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms", "metadata.recovery.", "compression."),
    *("linger.ms", "batch.", "acks", "enable.idempotence", "allow.auto.create.topics", "topic.blacklist", "plugin."),
)
_SASL = ("sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password")
_BEARER_PREFIX = "sasl.oauthbearer."
_ENDPOINT = f"{_BEARER_PREFIX}token.endpoint.url"
_CLIENT = {
    f"{_BEARER_PREFIX}client.id": "clientId",
    f"{_BEARER_PREFIX}client.secret": "clientSecret",
    f"{_BEARER_PREFIX}scope": "scope",
}


def kafka_options(connection: Mapping[str, Any]) -> dict[str, str]:
    """Return options for Spark's Kafka source, each with the prefix "kafka.".

    :param connection: librdkafka configuration.

    Raises InvalidArgument with the name of the setting, never with its value.
    """
    translated = {"isolation.level": "read_committed"}
    # Each step removes the settings that it translates.
    remaining = {key: value for key, value in connection.items() if value is not None and key not in NOT_FOR_US}
    for key in [key for key in remaining if key in _SAME_NAMES or key in _RENAMED]:
        translated[_RENAMED.get(key, key)] = _text(remaining.pop(key))
    if "security.protocol" in remaining:
        translated["security.protocol"] = str(remaining.pop("security.protocol")).upper()
    sasl_keys = [key for key in remaining if key in _SASL or key.startswith(_BEARER_PREFIX)]
    translated |= _sasl({key: remaining.pop(key) for key in sasl_keys})
    tls_keys = [key for key in remaining if key.startswith(("ssl.", "enable.ssl."))]
    translated |= _tls({key: remaining.pop(key) for key in tls_keys})
    for key in remaining:
        if not key.startswith(_IGNORED_PREFIXES):
            remedy = "Leave it out of the connection for Spark."
            raise InvalidArgument(f"kafka.{key}", "has no counterpart in Spark's Kafka client.", remedy)
    return {f"kafka.{key}": value for key, value in translated.items()}


def for_executors(connection: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration for librdkafka on another machine: the driver's PEM files become text.

    Raises InvalidArgument for a file that can't be read.
    """
    settings = dict(connection)
    for name in ("ssl.ca", "ssl.certificate", "ssl.key"):
        if (text := _pem(settings, name)) is not None:
            settings[f"{name}.pem"] = text
    return settings


def _sasl(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return Java's settings for librdkafka's settings of a login; empty without a login. Raises InvalidArgument."""
    if not settings:
        return {}
    mechanism = str(settings.get("sasl.mechanism", settings.get("sasl.mechanisms", "GSSAPI"))).upper()
    if mechanism == _BEARER:
        return _bearer({key: value for key, value in settings.items() if key.startswith(_BEARER_PREFIX)})
    if mechanism not in _LOGIN_MODULES:
        problem = f"{mechanism!r} is not translated for Spark."
        raise InvalidArgument("kafka.sasl.mechanism", problem, f"It may be {', '.join([*_LOGIN_MODULES, _BEARER])}.")
    for key in ("sasl.username", "sasl.password"):
        if key not in settings:
            raise InvalidArgument(f"kafka.{key}", f"is missing; sasl.mechanism is {mechanism}.")
    name, password = (_quoted(str(settings[key])) for key in ("sasl.username", "sasl.password"))
    return {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"{_LOGIN_MODULES[mechanism]} required username={name} password={password};",
    }


def _bearer(settings: dict[str, Any]) -> dict[str, str]:
    """Return Java's settings for getting each connection's token from an endpoint, with the client's id and secret.

    The translated settings are removed from `settings`; a remaining setting is refused. Raises InvalidArgument.
    """
    method = str(settings.pop(f"{_BEARER_PREFIX}method", "default")).lower()
    if method != "oidc":
        problem = f"{method!r} is not translated for Spark: a token that Python makes does not reach Java's client."
        raise InvalidArgument(f"kafka.{_BEARER_PREFIX}method", problem, f'Take "oidc", with {_ENDPOINT}.')
    for key in (_ENDPOINT, f"{_BEARER_PREFIX}client.id", f"{_BEARER_PREFIX}client.secret"):
        if key not in settings:
            raise InvalidArgument(f"kafka.{key}", f"is missing; sasl.mechanism is {_BEARER}.")
    endpoint = str(settings.pop(_ENDPOINT))
    options = {name: str(settings.pop(key)) for key, name in _CLIENT.items() if key in settings}
    for pair in filter(None, str(settings.pop(f"{_BEARER_PREFIX}extensions", "")).split(",")):
        name, _, value = pair.partition("=")
        options[f"extension_{name.strip()}"] = value
    grant_type = str(settings.pop(f"{_BEARER_PREFIX}grant.type", "client_credentials"))
    if grant_type != "client_credentials" or settings:
        unknown = min(settings, default=f"{_BEARER_PREFIX}grant.type")
        raise InvalidArgument(f"kafka.{unknown}", "has no counterpart in Spark's Kafka client.")
    login_options = " ".join(f"{name}={_quoted(value)}" for name, value in options.items())
    return {
        "sasl.mechanism": _BEARER,
        "sasl.jaas.config": f"{_BEARER_MODULE} required {login_options};",
        "sasl.login.callback.handler.class": _BEARER_HANDLER,
        "sasl.oauthbearer.token.endpoint.url": endpoint,
    }


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _tls(settings: dict[str, Any]) -> dict[str, str]:
    """Return Java's settings for librdkafka's settings of TLS, which are removed. Raises InvalidArgument."""
    translated: dict[str, str] = {}
    if (authorities := _pem(settings, "ssl.ca")) is not None:
        translated |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authorities}
    chain, key = _pem(settings, "ssl.certificate"), _pem(settings, "ssl.key")
    if (chain is None) != (key is None):
        raise InvalidArgument("kafka.ssl.certificate.location", "goes with ssl.key.location, and one is missing.")
    if chain is not None and key is not None:
        _check_key(key)
        translated |= {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": chain, "ssl.keystore.key": key}
    for name, (java_name, convert) in _TLS_SETTINGS.items():
        if name in settings:
            translated[java_name] = convert(settings.pop(name))
    if str(settings.pop("enable.ssl.certificate.verification", True)).lower() != "true":
        problem = "can't be turned off in Java's client."
        raise InvalidArgument("kafka.enable.ssl.certificate.verification", problem, "Give ssl.ca.location.")
    if settings:
        raise InvalidArgument(f"kafka.{min(settings)}", "has no counterpart in Spark's Kafka client.", "Use PEM files.")
    return translated


def _pem(settings: dict[str, Any], name: str) -> str | None:
    """Remove the settings of a PEM; return the PEM's text, or None without a PEM. Raises InvalidArgument.

    A PEM is set as a text or as a file; the driver reads the file, since executors have other files.

    :param name: beginning of the settings' names, such as "ssl.ca".
    """
    location, text = settings.pop(f"{name}.location", None), settings.pop(f"{name}.pem", None)
    # Without a file, Java trusts its own store, and librdkafka the store found by "probe".
    if text is not None or location is None or location == "probe":
        return None if text is None else str(text)
    try:
        return Path(location).read_text()
    except (OSError, UnicodeDecodeError) as e:
        raise InvalidArgument(f"kafka.{name}.location", f"{location} can't be read as PEM: {e}.") from None


def _check_key(key: str) -> None:
    """Raise InvalidArgument for a private key in another form than PKCS#8."""
    if "BEGIN PRIVATE KEY" not in key and "BEGIN ENCRYPTED PRIVATE KEY" not in key:
        remedy = "Convert it: openssl pkcs8 -topk8 -in key.pem -out key8.pem."
        raise InvalidArgument("kafka.ssl.key.location", "is not a PKCS#8 key, which Java's client needs.", remedy)


def _identification(value: object) -> str:
    return "" if str(value).lower() == "none" else str(value)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# By librdkafka's name, Java's name and the conversion of the value.
_TLS_SETTINGS: dict[str, tuple[str, Callable[[object], str]]] = {
    "ssl.key.password": ("ssl.key.password", _text),
    "ssl.endpoint.identification.algorithm": ("ssl.endpoint.identification.algorithm", _identification),
    "ssl.cipher.suites": ("ssl.cipher.suites", _text),
}
