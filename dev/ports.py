"""Free ports on the loopback."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

LOOPBACK = "127.0.0.1"

# Below the ephemeral range of Linux and macOS: no outgoing connection takes such a port between our look and the bind.
_CANDIDATES = range(20_000, 32_000)


def free_ports(count: int) -> tuple[int, ...]:
    """Find ports that nothing on this machine listens on, all different."""
    ports: list[int] = []
    with ExitStack() as held:
        for port in random.sample(_CANDIDATES, len(_CANDIDATES)):
            probe = held.enter_context(socket.socket())
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
            ports.append(port)
            if len(ports) == count:
                return tuple(ports)
    raise OSError(f"no {count} free ports between {_CANDIDATES.start} and {_CANDIDATES.stop}")


def listening(port: int) -> bool:
    """Whether something accepts connections on this port of the loopback."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((LOOPBACK, port)) == 0
