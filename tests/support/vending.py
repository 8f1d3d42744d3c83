"""A REST catalog that gives a table's client the keys of its files: it stands before another, which has no keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import requests

from dev.services.rest_catalog import RestCatalog
from tests.support.loopback import LoopbackHandler, LoopbackServer

_WITHIN_S = 60
_OF_ONE_HOP = ("host", "connection", "content-length", "accept-encoding", "transfer-encoding")


@dataclass
class VendingCatalog:
    """The catalog, as its clients see it; `given` are the keys of all tables so far, one for each time it was asked."""

    url: str
    behind: RestCatalog
    given: list[Mapping[str, str]] = field(default_factory=list)

    @property
    def properties(self) -> dict[str, str]:
        """Properties of a PyIceberg catalog; no keys of a store are among them."""
        return {**self.behind.properties, "uri": self.url}


@contextmanager
def vending(behind: RestCatalog, new_keys: Callable[[], Mapping[str, str]]) -> Iterator[VendingCatalog]:
    """Give such a catalog while the context lasts; `new_keys` are called for each table that a client loads."""

    class Handler(LoopbackHandler):
        protocol_version = "HTTP/1.1"

        def respond(self, body: bytes) -> None:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_ONE_HOP}
            answer = requests.request(
                self.command, f"{behind.url}{self.path}", data=body, headers=headers, timeout=_WITHIN_S
            )
            content = answer.content
            if answer.ok and self.headers.get("X-Iceberg-Access-Delegation") == "vended-credentials":
                content = self.with_keys(content)
            kind = answer.headers.get("Content-Type", "application/json")
            self.reply(answer.status_code, content, Content_Type=kind)

        def with_keys(self, content: bytes) -> bytes:
            told: Any = json.loads(content) if content else None
            # What a catalog says of a table.
            if not isinstance(told, dict) or "metadata" not in told or "/tables" not in self.path:
                return content
            keys = new_keys()
            catalog.given.append(keys)
            return json.dumps({**told, "config": {**told.get("config", {}), **keys}}).encode()

    with LoopbackServer(Handler) as server:
        catalog = VendingCatalog(server.url, behind)
        yield catalog
