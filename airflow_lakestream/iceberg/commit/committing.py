"""Commit attempts of a landing: repeated if possible, and looked up in the table after an unknown outcome."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, ValidationException
from pyiceberg.manifest import DataFile

from airflow_lakestream.exceptions import LakestreamError, Transient
from airflow_lakestream.iceberg.commit.attempt import CommitAttempt
from airflow_lakestream.iceberg.commit.commit import RefusalCarrier
from airflow_lakestream.tables.tries import tries

log = logging.getLogger(__name__)

# Attempts of a landing's commit, and the first pause between two attempts in seconds.
COMMIT_TRIES = 8
RETRY_PAUSE = 0.2


class CommitOutcomeUnknown(LakestreamError, Transient):
    """Commit with an unknown outcome: the catalog gave no answer, and the landing was not found afterwards.

    `outcome` is a sentence about the last look at the table.
    """

    def __init__(self, table: str, files: int, cause: BaseException, outcome: str) -> None:
        super().__init__(
            f"{table}: the catalog did not report whether the last commit was applied ({cause!r}), at any try. "
            f"{outcome} Its {files} data files were left in place, since the commit may still land. A retry finds out: "
            "the ledger is in the same commit as the rows, so nothing is doubled or lost."
        )


class CommitRefused(LakestreamError, Transient):
    """Failure of all commit attempts, since the catalog refused each; the table is unchanged."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"{table}: the commit lost against other writers {COMMIT_TRIES} times, each time after PyIceberg's own "
            "retries. Nothing was applied and its files were deleted. Retry, or raise the table properties "
            "commit.retry.num-retries and commit.retry.total-timeout-ms."
        )


def commit_files(attempt: CommitAttempt, files: Sequence[DataFile]) -> int:
    """Commit a landing, as often as needed, and return the snapshot id.

    An unclear outcome is looked up in the table. Sets `may_be_applied` of the attempt: whether the files must stay.
    Raises the landing's refusal, CommitOutcomeUnknown and CommitRefused, and the catalog's error if no request was
    sent.
    """
    unknown: BaseException | None = None
    for _ in tries(COMMIT_TRIES, RETRY_PAUSE):
        try:
            snapshot_id = attempt.commit(files)
        except RefusalCarrier as refused:
            attempt.clean_up(keep=None)
            raise refused.error from None
        except (CommitFailedException, ValidationException) as e:
            log.info("Commit to %s not applied (%s), trying again.", attempt.name, e)
        except Exception as e:  # of a catalog's client: raised if nothing was sent, else the outcome is looked up
            if not attempt.reached_catalog:
                attempt.clean_up(keep=None)
                raise
            log.warning("Commit to %s: the catalog did not report whether it was applied: %r", attempt.name, e)
            unknown = e
        except BaseException:
            attempt.may_be_applied = attempt.reached_catalog
            if not attempt.may_be_applied:
                attempt.clean_up(keep=None)
            raise
        else:
            return _applied(attempt, snapshot_id)
    return _give_up(attempt, len(files), unknown)


def _applied(attempt: CommitAttempt, snapshot_id: int) -> int:
    """Keep the files of snapshot `snapshot_id`, delete those of all other tries, and return the id."""
    attempt.may_be_applied = True
    attempt.clean_up(keep=snapshot_id)
    return snapshot_id


def _give_up(attempt: CommitAttempt, files: int, unknown: BaseException | None) -> int:
    """End after the last try: return the snapshot's id if a try was applied after all, else raise the error."""
    if unknown is None:
        attempt.clean_up(keep=None)
        raise CommitRefused(attempt.name)
    attempt.may_be_applied = True
    # The last try, too, may have been applied with its answer lost.
    try:
        snapshot_id, outcome = attempt.look(), "The table is there, so far without it."
    except NoSuchTableError:
        snapshot_id, outcome = None, "The table is not there so far."
    except Exception as e:  # noqa: BLE001  # the error that led here is the one to raise
        log.info("%s can't be asked either: %r", attempt.name, e)
        snapshot_id, outcome = None, "The table can't be read either."
    if snapshot_id is not None:
        return _applied(attempt, snapshot_id)
    raise CommitOutcomeUnknown(attempt.name, files, unknown, outcome) from unknown
