"""What a log complains of: the words that are quoted of a service that did not start."""

from __future__ import annotations

import pytest

from dev.causes import causes_in

KAFKA = """\
[2026-11-28 22:01:02,003] INFO Registered MBean (kafka.utils.Log4jControllerRegistration$)
[2026-11-28 22:01:02,903] ERROR Exiting Kafka due to fatal exception (kafka.Kafka$)
org.apache.kafka.common.KafkaException: Socket server failed to bind to 127.0.0.1:9092: Address already in use.
\tat kafka.network.Acceptor.openServerSocket(SocketServer.scala:726)
Caused by: java.net.BindException: Address already in use
\tat java.base/sun.nio.ch.Net.bind0(Native Method)
\t... 7 more
[2026-11-28 22:01:03,001] INFO App info kafka.server for 1 unregistered (org.apache.kafka.common.utils.AppInfoParser)
[2026-11-28 22:01:03,002] INFO closing ExceptionHandler and ERROR reporter (x.Reporter)
"""
AIRFLOW = """\
\x1b[35mapi-server | \x1b[0mINFO:     Started server process [20]
\x1b[35mapi-server | \x1b[0mTraceback (most recent call last):
\x1b[35mapi-server | \x1b[0m  File "/x/psycopg2/__init__.py", line 122, in connect
\x1b[35mapi-server | \x1b[0mpsycopg2.OperationalError: connection to server failed
\x1b[35mapi-server | \x1b[0m
\x1b[35mapi-server | \x1b[0mThe above exception was the direct cause of the following exception:
\x1b[35mapi-server | \x1b[0m
\x1b[35mapi-server | \x1b[0mTraceback (most recent call last):
\x1b[35mapi-server | \x1b[0m  File "/x/sqlalchemy/engine/base.py", line 145, in __init__
\x1b[35mapi-server | \x1b[0msqlalchemy.exc.OperationalError: (psycopg2.OperationalError) connection to server failed
\x1b[36mscheduler  | \x1b[0m2026-11-28T22:01:02Z [info     ] Exception handlers and ERROR counters are there
\x1b[36mscheduler  | \x1b[0mERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 8793)
\x1b[36mscheduler  | \x1b[0m2026-11-28T22:01:03Z [info     ] Shutting down
"""
POSTGRES = """\
2026-11-28 22:01:02.003 UTC [12] LOG:  starting PostgreSQL 15.15
2026-11-28 22:01:02.004 UTC [12] LOG:  could not bind IPv4 address "127.0.0.1": Address already in use
2026-11-28 22:01:02.005 UTC [12] FATAL:  could not create any TCP/IP sockets
2026-11-28 22:01:02.006 UTC [12] LOG:  database system is shut down
"""


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (KAFKA, "java.net.BindException: Address already in use"),
        (
            AIRFLOW,
            "first: sqlalchemy.exc.OperationalError: (psycopg2.OperationalError) connection to server failed; "
            "last: ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 8793)",
        ),
        (POSTGRES, "2026-11-28 22:01:02.005 UTC [12] FATAL:  could not create any TCP/IP sockets"),
        ("ERROR: no disk", "ERROR: no disk"),
        (
            "Error occurred during initialization of VM\nToo small maximum heap\n",
            "Error occurred during initialization of VM Too small maximum heap",
        ),
        (
            # Another program of the same start wrote last.
            "Terminating due to java.lang.OutOfMemoryError: Metaspace\nPicked up JAVA_TOOL_OPTIONS: -Xmx4m\n",
            "Terminating due to java.lang.OutOfMemoryError: Metaspace",
        ),
        ("starting\nINFO no Exception and no ERROR here\n\n", "its last line: INFO no Exception and no ERROR here"),
        ("x: command not found\n", "its last line: x: command not found"),
        ("", "it logged nothing"),
    ],
    ids=["Kafka", "Airflow", "PostgreSQL", "one line", "Java", "out of memory", "harmless", "another", "nothing"],
)
def test_what_a_log_complains_of(log: str, told: str) -> None:
    assert causes_in(log) == told


def test_what_is_quoted_is_short() -> None:
    assert len(causes_in(f"ERROR {'x' * 9999}\nok\nFATAL {'y' * 9999}")) < 700
