"""What blocks an event loop: a file, a socket, a client, a catalog, a line of log."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any

# What Python itself tells of: an audit hook stays for good, and looks at one thread while that runs a loop.
BLOCKING = (
    *("open", "os.listdir", "os.scandir", "time.sleep", "subprocess.Popen"),
    *("socket.connect", "socket.getaddrinfo", "sqlite3.connect"),
)
# And whose code does the rest: librdkafka tells no audit hook.
CLIENTS = ("/confluent_kafka/", "/pyiceberg/catalog/", "/pyiceberg/io/", "/sqlalchemy/", "/airflow_lakestream/hooks/")
_watched: dict[str, Any] = {}


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event in BLOCKING and _watched.get("loop") == threading.get_ident():
        _watched["seen"].append((event, str(arguments)[:200]))


def _profile(frame: FrameType, event: str, called: Any) -> None:
    code = frame.f_code
    # Logs go through a pipe, which may be full.
    is_log = code.co_name == "callHandlers" and code.co_filename == logging.__file__
    if event == "call" and (is_log or any(part in code.co_filename for part in CLIENTS)):
        _watched["seen"].append((code.co_filename, code.co_name))
    elif event == "c_call" and str(getattr(called, "__module__", "")).startswith("confluent_kafka"):
        _watched["seen"].append(("confluent_kafka", called.__name__))


def in_loop(work: Callable[[], Coroutine[Any, Any, Any]]) -> tuple[Any, list[tuple[str, str]]]:
    """Run a coroutine in a loop of its own; return its result, and what blocked the loop."""
    if not _watched:
        sys.addaudithook(_audit)

    async def watched() -> Any:
        _watched.update(loop=threading.get_ident(), seen=[])
        sys.setprofile(_profile)
        try:
            return await asyncio.wait_for(work(), 120)
        finally:
            sys.setprofile(None)
            _watched["loop"] = None

    return asyncio.run(watched()), _watched["seen"]
