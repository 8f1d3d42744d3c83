"""Serves a model of AWS Glue on the loopback: `python -m dev.services.glue_server PORT [--careless]`.

Moto takes every change of a table, whichever version it was made for. Glue refuses one that was made for another
version than the newest, and a commit hangs on that; it is added here. `--careless` leaves it out.
"""

from __future__ import annotations

import sys
import threading

from moto.glue.exceptions import GlueClientError
from moto.glue.responses import GlueResponse
from moto.server import main

from dev.ports import LOOPBACK

_held = threading.Lock()
_update = GlueResponse.update_table


def _compare_and_update(self: GlueResponse) -> str:
    with _held:
        wanted = self.parameters.get("VersionId")
        table = self.glue_backend.get_table(self.parameters.get("DatabaseName"), self.parameters["TableInput"]["Name"])
        if wanted is not None and int(wanted) != max(map(int, table.versions)):
            raise GlueClientError("ConcurrentModificationException", f"The table is not at version {wanted} any more.")
        return _update(self)


if __name__ == "__main__":
    [port, *options] = sys.argv[1:]
    if "--careless" not in options:
        GlueResponse.update_table = _compare_and_update
    main(["-H", LOOPBACK, "-p", port])
