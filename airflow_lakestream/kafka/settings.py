"""Check of librdkafka's settings before a client is made. Imports no client."""

from __future__ import annotations

from collections.abc import Mapping

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


def problem_of(settings: Mapping[str, object], *, has_login: bool = False) -> tuple[str, str] | None:
    """Return (problem, remedy) of a connection's settings, or None.

    Without a matching security.protocol librdkafka ignores settings of TLS or a login: it connects without them,
    silently. An unknown security.protocol is not checked here, since librdkafka refuses it by name.

    :param has_login: the connection has a login or a password next to the settings.
    """
    for name, value in settings.items():
        if isinstance(value, list | tuple | Mapping):
            remedy = 'Write one text, such as "broker-1:9092,broker-2:9092".' if "servers" in name else "Write a text."
            return f"{name} is a {'mapping' if isinstance(value, Mapping) else 'list'}.", remedy
    protocol = str(settings.get("security.protocol") or "plaintext").upper()
    if protocol not in _PROTOCOLS:
        # librdkafka refuses it by name.
        return None
    for prefix, wanted, other in (("sasl.", "SASL_SSL", "SASL_PLAINTEXT"), ("ssl.", "SSL", "SASL_SSL")):
        given = [name for name, value in settings.items() if name.startswith(prefix) and value not in (None, "")]
        if given and protocol not in (wanted, other):
            protocol_text = "is missing" if "security.protocol" not in settings else f"is {protocol}"
            problem = (
                f"it has {', '.join(given)}, and security.protocol {protocol_text}: the client would connect without."
            )
            return problem, f'Set security.protocol to "{wanted}" or "{other}", or leave the others out.'
    if has_login and not protocol.startswith("SASL_"):
        remedy = (
            'Put them into the extra: "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN" or '
            '"SCRAM-SHA-512", "sasl.username", "sasl.password".'
        )
        return "its fields login and password are read by nothing: the client would connect without a login.", remedy
    return None
