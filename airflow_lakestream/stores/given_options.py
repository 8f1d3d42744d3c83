"""Storage options of delta-rs, as a connection gives them: next to a catalog's properties, or alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

# The prefixes of the options of each store; one connection may have options for several stores.
_PREFIXES = ("aws_", "azure_", "google_")
# Properties without a dot, one of which each catalog has.
_OF_CATALOGS = ("type", "uri", "warehouse")


def given_options(
    properties: Mapping[str, Any], prefix: str, plain: Collection[str], other_names: Mapping[str, str]
) -> dict[str, str]:
    """Return a store's options among properties, in lower case.

    Of a catalog's properties these are the options with the store's prefix, or with a known name without it. Without a
    property of a catalog, all are options, except those with the prefix of another store: the store refuses by name
    what it does not know.

    :param plain: the known names without the prefix.
    :param other_names: the names to use in place of further names that delta-rs knows.
    """
    lower = {key.lower(): str(value) for key, value in properties.items()}
    if any("." in name or name in _OF_CATALOGS for name in lower):
        own = {name: value for name, value in lower.items() if name.startswith(prefix) or name in plain}
    else:
        others = tuple(one for one in _PREFIXES if one != prefix)
        own = {name: value for name, value in lower.items() if not name.startswith(others)}
    return {other_names.get(name, name): value for name, value in own.items()}
