"""The root cause of a Spark error: in plain words, in Spark's own, and with a remedy."""

from __future__ import annotations

import re

from airflow_lakestream.exceptions import LakestreamError, Terminal, Transient
from airflow_lakestream.kafka.errors import CHECK_CERTIFICATE, CHECK_CLIENT, CHECK_CREDENTIALS

# Most characters of Spark's own text in our error.
_MOST_CHARACTERS = 500
_TRACEBACK_START = "Traceback (most recent call last):"
# Pattern of Spark's error, the cause in plain words, and the remedy. The first pattern that matches anywhere in the
# error wins, so causes precede their consequences.
_KNOWN_CAUSES = (
    (
        r"ChecksumException|Checksum error|Incomplete log file|Log file was malformed|Failed to read log file",
        "a file of the checkpoint is damaged",
        "Delete the checkpoint. Nothing is lost: the query then starts from what the table's ledger lacks. With "
        "stream_transform its state is in there: put a copy back.",
    ),
    (
        r"No space left on device|Disk quota exceeded",
        "a disk is full",
        "Free space there, in spark.local.dir of the executors, or in the table's store.",
    ),
    (r"invalid_token|oauthbearer\..*Exception|OAuthBearer.*Exception", "Kafka refused the token", CHECK_CLIENT),
    (r"Received fatal alert", "Kafka refused the certificate", CHECK_CERTIFICATE),
    (
        r"SaslAuthenticationException|SslAuthenticationException|AuthorizationException|Authentication failed",
        "Kafka refused the credentials, the certificate or the permission",
        CHECK_CREDENTIALS,
    ),
    (
        r"UnknownTopicOrPartition|UnknownTopicIdException|This server does not host this topic",
        "the topic was deleted, or was never there",
        "Create it, or correct `topic` (names are case sensitive).",
    ),
    (
        r"OffsetOutOfRange|KAFKA_DATA_LOSS|Partition offset was changed|Cannot fetch offset .*out of range",
        "the offsets are no longer in the topic",
        'The topic deletes them before they are landed. on_data_loss="record" goes on after them, and notes the loss. '
        "With stream_transform the state would lack them: start again with an empty checkpoint_location.",
    ),
    (
        r"Failed to construct kafka|No resolvable bootstrap|Timed out waiting for a node|TimeoutException: ",
        "Kafka did not answer",
        "Check bootstrap.servers, security.protocol and the network between the driver and the brokers.",
    ),
    (
        r"OutOfMemoryError|MemoryError|ArrowMemoryError|malloc of size|exceeding .*memory|OOMKilled",
        "an executor, or a Python worker of it, ran out of memory",
        "Give it more (spark.executor.memory, spark.executor.memoryOverhead), or land less at once "
        "(max_offsets_per_trigger).",
    ),
    (
        r"ExecutorLostFailure|Executor heartbeat timed out|Remote RPC client disassociated|worker lost",
        "an executor was lost",
        "Look into its log. Most are killed for their memory: raise spark.executor.memoryOverhead, or land less at "
        "once (max_offsets_per_trigger).",
    ),
    (
        r"Python worker exited unexpectedly|Python worker keep-alive",
        "a Python worker of an executor was killed, or crashed",
        "Most are killed for their memory: raise spark.executor.memoryOverhead, or land less at once "
        "(max_offsets_per_trigger).",
    ),
    (
        r"SparkContext was shut down|stopped SparkContext|Answer from Java side is empty|Connection refused.*py4j",
        "the driver's JVM ended",
        "Look into the driver's log: it was stopped, or killed for its memory (spark.driver.memory).",
    ),
    (
        r"CorruptRecordException|InvalidRecordException|Record batch for partition|seek past the record",
        "a batch of records is damaged in Kafka",
        "Let a replica that has the whole batch lead the partition, or give the batch up by `lakestream ledger forget "
        "--damaged`. With stream_transform the state would lack it: start again with an empty checkpoint_location.",
    ),
    (r"SPARK_JOB_CANCELLED|cancelled as part of", "somebody cancelled the job", "Start it again."),
)


class QueryFailed(LakestreamError, Transient):
    """Error of a query ended by Spark, with the root cause."""

    def __init__(self, location: str, cause: str) -> None:
        super().__init__(f"checkpoint {location}: Spark ended the query: {cause} Committed rows stay landed.")


class QueryRefused(QueryFailed, Terminal):
    """Error of a query ended by Spark for a reason that a restart can't change."""


def query_failed(location: str, error: Exception) -> QueryFailed:
    """Return our error for Spark's error at the end of a query.

    The error is a QueryRefused if a restart repeats the failure: a damaged checkpoint or batch, a missing topic, a
    refusal by Kafka.
    """
    plain_cause, _ = _known_cause(str(error)) or ("", "")
    # The beginnings of the causes in `_KNOWN_CAUSES` that a restart can't change.
    is_final = plain_cause.startswith(("a file of", "the topic was", "Kafka refused", "a batch of"))
    return (QueryRefused if is_final else QueryFailed)(location, cause_of(error))


def cause_of(error: Exception) -> str:
    """Return the root cause of an error from the JVM: in plain words, in Spark's own, and with a remedy."""
    line = _best_line(str(error)) or type(error).__name__
    known = _known_cause(str(error))
    if known is None:
        return f"{line}."
    plain_cause, remedy = known
    return f"{plain_cause} ({line}). {remedy}"


def _known_cause(text: str) -> tuple[str, str] | None:
    """Return the cause in plain words and the remedy for an error's text, or None if the cause is unknown."""
    return next(((cause, remedy) for pattern, cause, remedy in _KNOWN_CAUSES if re.search(pattern, text)), None)


def _best_line(text: str) -> str:
    """Return the line with the best explanation of an error; empty for an empty text.

    The best line is the error of a Python task, then a line with a known cause, then the innermost cause with a
    message, then any line with an error.
    """
    lines = text.splitlines()
    if python_error := _python_error(lines):
        return python_error[:_MOST_CHARACTERS]
    # Without the frames of Java's stack.
    stripped = [line.strip() for line in lines]
    messages = [line.removeprefix(": ") for line in stripped if line and not line.startswith("at ")]
    with_known_cause = [line for line in messages if _known_cause(line) is not None]
    causes = [line.removeprefix("Caused by: ") for line in messages if line.startswith("Caused by: ")]
    # If the innermost cause has no message, such as java.io.EOFException, the line above explains more.
    with_message = [line for line in reversed(causes) if ": " in line]
    with_error = [line for line in messages if "Exception" in line or "Error" in line]
    best = next(iter([*with_known_cause, *with_message, *with_error, *messages]), "")
    return best.removeprefix("Caused by: ")[:_MOST_CHARACTERS].rstrip(".")


def _python_error(lines: list[str]) -> str:
    """Return the last line of a Python task's traceback, with the error's name; empty without a traceback."""
    error_line = ""
    is_in_traceback = False
    for line in lines:
        if line.endswith(_TRACEBACK_START):
            is_in_traceback = True
        elif is_in_traceback and line and not line[0].isspace():
            # The first line after the frames, which are indented.
            error_line, is_in_traceback = line.strip(), False
    return error_line.rstrip(".")
