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


class IcebergCommitter:
    """Commit of a landing, with retries."""

    def __init__(self, attempt: CommitAttempt) -> None:
        self._table, self._attempt = attempt.name, attempt
        # Whether files may be in the table, now or later. Such files must not be deleted.
        self.may_be_applied = False

    def commit(self, files: Sequence[DataFile]) -> int:
        """Commit the landing by the attempt, as often as needed, and return the snapshot id.

        An unclear outcome is looked up in the table. Sets `may_be_applied`: whether the files must stay. Raises the
        landing's refusal, CommitOutcomeUnknown and CommitRefused, and the catalog's error if no request was sent.
        """
        unknown: BaseException | None = None
        for _ in tries(COMMIT_TRIES, RETRY_PAUSE):
            try:
                snapshot_id = self._attempt.commit(files)
            except RefusalCarrier as refused:
                self._attempt.clean_up(keep=None)
                raise refused.error from None
            except (CommitFailedException, ValidationException) as e:
                log.info("Commit to %s not applied (%s), trying again.", self._table, e)
            except Exception as e:
                # A catalog's client may raise any error: raised if nothing was sent; else the outcome is looked up.
                if not self._attempt.reached_catalog:
                    self._attempt.clean_up(keep=None)
                    raise
                log.warning("Commit to %s: the catalog did not report whether it was applied: %r", self._table, e)
                unknown = e
            except BaseException:
                self.may_be_applied = self._attempt.reached_catalog
                if not self.may_be_applied:
                    self._attempt.clean_up(keep=None)
                raise
            else:
                return self._applied(snapshot_id)
        return self._give_up(len(files), unknown)

    def _applied(self, snapshot_id: int) -> int:
        self.may_be_applied = True
        self._attempt.clean_up(keep=snapshot_id)
        return snapshot_id

    def _give_up(self, files: int, unknown: BaseException | None) -> int:
        """End after the last try: return the snapshot's id if a try was applied after all, else raise the error."""
        if unknown is None:
            self._attempt.clean_up(keep=None)
            raise CommitRefused(self._table)
        self.may_be_applied = True
        # The last try, too, may have been applied with its answer lost.
        snapshot_id, outcome = self._look_once_more()
        if snapshot_id is not None:
            return self._applied(snapshot_id)
        raise CommitOutcomeUnknown(self._table, files, unknown, outcome) from unknown

    def _look_once_more(self) -> tuple[int | None, str]:
        """Look for the landing in the table; return its snapshot or None, and the result in words."""
        try:
            snapshot_id = self._attempt.look()
        except NoSuchTableError:
            return None, "The table is not there so far."
        except Exception as e:  # noqa: BLE001  # the error that led here is the one to raise
            log.info("%s can't be asked either: %r", self._table, e)
            return None, "The table can't be read either."
        return snapshot_id, "The table is there, so far without it."
