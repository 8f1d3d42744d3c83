"""HTTP servers on loopback, whose answers a test decides."""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from dev.ports import LOOPBACK


class LoopbackServer(ThreadingHTTPServer):
    """Serves on a free port, as long as its context lasts."""

    scheme = "http"

    def __init__(self, handler: Any) -> None:
        super().__init__((LOOPBACK, 0), handler)

    @property
    def url(self) -> str:
        return f"{self.scheme}://{LOOPBACK}:{self.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self.shutdown()
        super().__exit__(*error)


class LoopbackHandler(BaseHTTPRequestHandler, ABC):
    """Answers requests of each method in `respond`, and logs nothing."""

    server: Any

    @abstractmethod
    def respond(self, body: bytes) -> None:
        """Answer a request, by `reply`."""

    def reply(self, status: int, content: object = b"", **headers: str) -> None:
        """Send an answer: bytes, a text, or any other value as JSON."""
        text = content if isinstance(content, bytes | str) else json.dumps(content)
        data = text if isinstance(text, bytes) else text.encode()
        self.send_response(status)
        for name, value in {"Content_Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def _answer(self) -> None:
        self.respond(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815  # names that http.server looks up

    def log_message(self, *_: Any) -> None:
        pass
