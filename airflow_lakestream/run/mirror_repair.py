"""Repair of a mirror, or of a table by key, in a single commit: rows of the audit's fold replace wrong rows.

The commit is made for exactly the snapshot, and so for the ledger, that the audit compared with Kafka.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_lakestream.audit.keyed import RowFault
from airflow_lakestream.audit.result import AuditResult, RepairResult
from airflow_lakestream.audit.run import Audit
from airflow_lakestream.cdc.design import strategy_noted
from airflow_lakestream.cdc.merge.repair import RowRepair
from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.config.settings import SettingField
from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.core.policies import OnDataLoss
from airflow_lakestream.core.ports import or_discard
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal
from airflow_lakestream.lakes import LakeCapability, lake_of
from airflow_lakestream.run.fan_out_audit import is_mirror
from airflow_lakestream.run.job import Lake, build_job
from airflow_lakestream.run.mirror_audit import ComparedRows, MirrorAudit, mirror_of
from airflow_lakestream.run.repair import TableRepair


class MirrorFilesLost(LakestreamError, Terminal):
    """Error of lost data files of a mirror, which may have had rows whose records are gone from Kafka."""

    def __init__(self, table: str, path: str, files: int) -> None:
        more = f" and {files - 1} more files" if files > 1 else ""
        super().__init__(
            f"{table}: {path}{more} are lost, and Kafka has no longer all records of the table: which rows were in "
            "them is unknown. Nothing was repaired. Put the files back (from a backup, or a version that the store "
            'kept). If they are gone for good, repair once with on_data_loss="record": the files go out of the table, '
            "and what Kafka still has is landed again."
        )


def check_repair(lake: Lake, table: str, argument: str) -> None:
    """Raise InvalidArgument for a table that can't be repaired: no mirror, and of a format without repair.

    :param argument: the name of the argument that asks for a repair.
    """
    if not is_mirror(lake, table):
        lake_of(table).require(LakeCapability.REPAIR, argument, table)


def repair_of(
    audit: Audit, lake: Lake, options: Mapping[str, Any], landing: Mapping[str, Any] | None
) -> TableRepair | MirrorRepair:
    """Return the repair for the table's kind. Raises InvalidArgument for a wrong argument.

    :param options: arguments of decoding, `tombstones` and `on_data_loss`.
    :param landing: other arguments of a mirror's landing, which the rows depend on; None is refused for a mirror.
    """
    if is_mirror(lake, audit.table):
        if landing is None:
            problem = f"is missing: the rows of {audit.table} depend on the arguments of its landing."
            remedy = (
                "Name a DAG or a pipeline, or give delete_when, merge and so on as JSON: {} if it has none of them."
            )
            raise InvalidArgument("landing", problem, remedy)
        decoding = dict(options)
        on_loss = {"on_data_loss": decoding.pop("on_data_loss")} if "on_data_loss" in decoding else {}
        return MirrorRepair(audit=MirrorAudit(audit=audit, landing={**decoding, **landing}), **on_loss)
    return TableRepair(audit=audit, **options)


def can_repair(lake: Lake, table: str) -> bool:
    """Return whether a table can be repaired."""
    if not is_mirror(lake, table):
        return LakeCapability.REPAIR in lake_of(table).can
    return _repair_obstacle(MirrorAudit(audit=Audit(table=table, consumer_group="")).note(lake)) is None


def _repair_obstacle(note: Mapping[str, Any]) -> str | None:
    """Return the reason against a repair of a mirror, as a text that continues "the table ..."; or None."""
    if strategy_noted(note).keeps_versions:
        return "is a history: a version depends on all records of its key."
    if note.get("insert_only"):
        return "keeps the first record of each key, which depends on how records were cut into batches."
    return None


@dataclass(frozen=True, kw_only=True)
class MirrorRepair:
    """Repair of the wrong rows in an audit of a mirror.

    :param on_data_loss: treatment of lost files with rows whose records may be gone from Kafka: `"fail"`, or `"record"`
        to give these rows up.
    """

    audit: MirrorAudit
    on_data_loss: SettingField[OnDataLoss] = SettingField(ExtractConfig.on_data_loss)

    def run(self, lake: Lake) -> AuditResult:
        """Audit, repair in a single commit, and return a new audit with the repair.

        Raises the errors of the audit, ChangedSinceAudit, MirrorFilesLost, and InvalidArgument for a history. An error
        before the commit leaves the table unchanged.
        """
        table, full = self.audit.audit.table, replace(self.audit.audit, full=True)
        if (problem := _repair_obstacle(self.audit.note(lake))) is not None:
            raise InvalidArgument("repair", f"{table} {problem}", "Land the topic into a new table.")
        # The audit calls the repair while the compared rows exist; without a comparison nothing is repaired.
        repairs = [RepairResult()]
        audit = replace(self.audit, audit=full)
        result = audit.run(lake, lambda compared: repairs.append(self._repair(compared, lake)))
        if repairs[-1].snapshot_id is not None:
            result = audit.run(lake)
        result.repaired = repairs[-1]
        return result

    def _repair(self, compared: ComparedRows, lake: Lake) -> RepairResult:
        """Commit the repair of compared rows, if any row can be repaired; return the result."""
        # DuckDB is loaded only for a repair.
        from airflow_lakestream.audit.key_repair import KeyRepairPlan

        plan = KeyRepairPlan(compared.comparison)
        lost_files = compared.comparison.sides["held"].lost
        paths = tuple(file.path for file in lost_files)
        if paths and self.on_data_loss is OnDataLoss.FAIL and (not plan.is_whole or plan.left()):
            raise MirrorFilesLost(self.audit.audit.table, paths[0], len(paths))
        if (change := plan.change(compared.head, paths)) is None:
            return RepairResult(left=tuple(plan.left()))
        snapshot_id = self._commit(change, compared, lake)
        ranges = {fault: plan.ranges(compared.topic, fault) for fault in RowFault}
        extra = [f"{ranges[RowFault.EXTRA]}: extra"] if ranges[RowFault.EXTRA] else []
        return RepairResult(
            snapshot_id=snapshot_id,
            rows_out=change.rows_out,
            rows_in=change.rows_in,
            landed=ranges[RowFault.MISSING],
            undoubled=ranges[RowFault.DOUBLED],
            corrected=ranges[RowFault.DIFFERENT],
            left=tuple(plan.left()),
            removed=(*extra, *(file.text for file in lost_files)),
        )

    def _commit(self, change: RowRepair, compared: ComparedRows, lake: Lake) -> int:
        """Commit a repair; return the snapshot's id."""
        audit, landing_id = self.audit.audit, f"repair {uuid.uuid4().hex}"
        config = replace(compared.config, table=audit.table, table_format=lake_of(audit.table).format)
        job = build_job(config, audit.kafka, lake, run_id=landing_id, where=audit.where, stop=audit.stop, dry=True)
        mirror = mirror_of(job)
        mirror.load(landing_id)
        with or_discard(mirror):
            return mirror.table.repair(change, mirror.design, Landing(landing_id, landing_id, {}))
