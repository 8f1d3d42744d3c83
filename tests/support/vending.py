"""A REST catalog that gives a table's client the keys of its files: it stands before another, which has no keys."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import requests

from dev.ports import LOOPBACK
from dev.services.rest_catalog import RestCatalog

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

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_ONE_HOP}
            answer = requests.request(
                self.command, f"{behind.url}{self.path}", data=body, headers=headers, timeout=_WITHIN_S
            )
            content = answer.content
            if answer.ok and self.headers.get("X-Iceberg-Access-Delegation") == "vended-credentials":
                content = self.with_keys(content)
            self.send_response(answer.status_code)
            self.send_header("Content-Type", answer.headers.get("Content-Type", "application/json"))
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def with_keys(self, content: bytes) -> bytes:
            told: Any = json.loads(content) if content else None
            # What a catalog says of a table.
            if not isinstance(told, dict) or "metadata" not in told or "/tables" not in self.path:
                return content
            keys = new_keys()
            catalog.given.append(keys)
            return json.dumps({**told, "config": {**told.get("config", {}), **keys}}).encode()

        def do_GET(self) -> None:
            self.answer()

        def do_HEAD(self) -> None:
            self.answer()

        def do_POST(self) -> None:
            self.answer()

        def do_DELETE(self) -> None:
            self.answer()

        def log_message(self, *_: Any) -> None:
            return

    with ThreadingHTTPServer((LOOPBACK, 0), Handler) as server:
        catalog = VendingCatalog(f"http://{LOOPBACK}:{server.server_port}", behind)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield catalog
        finally:
            server.shutdown()
            thread.join()
