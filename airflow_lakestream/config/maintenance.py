"""Configuration of the maintenance of tables, for the worker and for Spark: the tables, and the choice of works."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, TypeVar

from airflow_lakestream.config import arguments
from airflow_lakestream.config.settings import SettingField
from airflow_lakestream.core.policies import is_given, seconds
from airflow_lakestream.exceptions import InvalidArgument, UnknownValue
from airflow_lakestream.iceberg.upkeep.compaction_plan import CompactionRule
from airflow_lakestream.iceberg.upkeep.expiry import ExpiryRule
from airflow_lakestream.lakes import LakeCapability, LakeFormat, lake_of
from airflow_lakestream.tables.retention import RowRetention

Work = TypeVar("Work")

# Keys of works, in the order in which a table is maintained.
WORKS = ("retention", "compact", "rewrite_manifests", "expire", "remove_orphans")
_DAY = 86_400.0
# For a mirror that is compacted in parts: bytes of a part between two merges, which would undo the rewrite.
_PART_BYTES = 2 * 2**30


def _positive(unit: str) -> Callable[[str, Any], int]:
    return lambda name, value: arguments.count(name, value, unit) or 1


def _flag_or_none(name: str, value: object) -> bool | None:
    return arguments.flag(name, value) if is_given(value) else None


def _columns(name: str, value: object) -> tuple[str, ...]:
    return arguments.items(name, value) or ()


def _share(name: str, value: Any) -> float:
    try:
        if 0 < (share := float(value)) <= 1:
            return share
    except (TypeError, ValueError):
        pass
    raise InvalidArgument(name, f"{value!r} is not a share above 0, of 1 at most.")


# Options of Iceberg's `rewrite_data_files` that the worker knows: the setting of a rule, and its parser.
_OPTIONS: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "target-file-size-bytes": ("target_bytes", _positive("bytes")),
    "min-input-files": ("least_files", _positive("files")),
    "delete-file-threshold": ("most_deletes", _positive("files")),
    "delete-ratio-threshold": ("most_deleted", _share),
    "max-file-group-size-bytes": ("part_bytes", _positive("bytes")),
}


class CompactionStrategy(StrEnum):
    """Order of rows in new files: unchanged, or sorted."""

    BINPACK = "binpack"
    SORT = "sort"


@dataclass(frozen=True, kw_only=True)
class CompactionConfig:
    """Settings for compacting small files into large files.

    :param strategy: "binpack" or "sort"; default: mirrors are sorted, other tables are not.
    :param sort_order: for "sort", such as "user_id, timestamp DESC NULLS LAST" or "zorder(a, b)"; default: the table's.
    :param where: only files that may hold rows matching this SQL.
    :param partial_progress: commit in parts. A long compaction loses less to a conflict; each part is a snapshot.
        Default: mirrors are compacted in parts, other tables are not.
    :param tries: number of tries of a compaction that loses against other writers.
    :param parallelism: processes of the worker; default: 1.
    :param zorder_by: columns by which Delta tables are Z-ordered in place of the compaction.
    :param options: more options of Iceberg's `rewrite_data_files`.
    """

    strategy: str | None = None
    sort_order: str | None = None
    where: str | None = None
    partial_progress: SettingField[bool | None] = SettingField(None, _flag_or_none, "maintenance.compact.")
    tries: SettingField[int] = SettingField(3, _positive("tries"), "maintenance.compact.")
    parallelism: SettingField[int] = SettingField(1, _positive("processes"), "maintenance.compact.")
    zorder_by: SettingField[tuple[str, ...]] = SettingField((), _columns, "maintenance.compact.")
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.strategy is not None and self.strategy not in list(CompactionStrategy):
            raise UnknownValue("maintenance.compact.strategy", self.strategy, map(str, CompactionStrategy))
        if self.sort_order and self.strategy != CompactionStrategy.SORT:
            raise InvalidArgument("maintenance.compact.sort_order", 'goes with strategy "sort".')
        if not isinstance(self.options, Mapping):
            raise InvalidArgument("maintenance.compact.options", "is not a mapping.")

    def of_mirror(self, sort_order: str | None, *, is_sorted: bool) -> CompactionConfig:
        """Return the compaction of a mirror, with defaults for settings left out by the user.

        :param sort_order: see `CompactionConfig`.
        :param is_sorted: whether the mirror is sorted.
        """
        strategy = self.strategy or (CompactionStrategy.SORT if is_sorted else CompactionStrategy.BINPACK)
        order = sort_order if self.strategy is None else self.sort_order
        in_parts = True if self.partial_progress is None else self.partial_progress
        options = {"max-file-group-size-bytes": _PART_BYTES, "delete-file-threshold": 1, **self.options}
        return replace(self, strategy=strategy, sort_order=order, partial_progress=in_parts, options=options)

    def rule_for(self, target_bytes: int) -> CompactionRule:
        """Return the rule of a compaction in the worker. Raises InvalidArgument for settings of Spark's app alone.

        :param target_bytes: the table's target size of files.
        """
        for name in ("where", "sort_order"):
            if getattr(self, name):
                problem = "is for Spark's app maintain_iceberg: the worker keeps the table's own order, and looks at"
                raise InvalidArgument(f"maintenance.compact.{name}", f"{problem} all files.", "Leave it out.")
        arguments.check_keys("maintenance.compact.options", self.options, _OPTIONS)
        given = {
            field: kind(f"maintenance.compact.options.{name}", self.options[name])
            for name, (field, kind) in _OPTIONS.items()
            if name in self.options
        }
        return CompactionRule(**{"target_bytes": target_bytes, **given})


@dataclass(frozen=True)
class RetentionConfig:
    """The time to live of rows, applied by the worker alone: a rule for all tables; None: each table's property."""

    rule: RowRetention | None


def _retention(column: object = None, keep: object = None, exact: object = False) -> RetentionConfig:
    """Return the time to live of rows. Raises InvalidArgument.

    :param column: column of times; default: tables with the property `lakestream.retention` follow it, others keep all.
    :param keep: age up to which rows stay, such as "90 days"; goes with `column`.
    :param exact: also write files again in which only some rows are old.
    """
    is_exact = arguments.flag("maintenance.retention.exact", exact)
    if is_given(column) or is_given(keep):
        return RetentionConfig(RowRetention.make("maintenance.retention", column, keep, exact=is_exact))
    if is_exact:
        raise InvalidArgument("maintenance.retention.exact", "goes with column and keep.", "Give these, too.")
    return RetentionConfig(None)


def _expiry(older_than: object = "5d", retain_last: object = 1) -> ExpiryRule:
    """Return the rule of the expiry of snapshots. Raises InvalidArgument.

    :param older_than: seconds, or text such as "5d" or "36h".
    :param retain_last: number of main's last snapshots that stay, however old.
    """
    keep = _positive("snapshots")("maintenance.expire.retain_last", retain_last)
    return ExpiryRule(seconds("maintenance.expire.older_than", older_than), keep)


def _orphan_age(older_than: object = "3d", longest_run: object = "1d") -> float:
    """Return the least age of files without a snapshot to delete, in seconds. Raises InvalidArgument.

    :param older_than: seconds, or text such as "3d": younger files stay, since a running job may own them.
    :param longest_run: the time that the longest run writing into the tables takes, retries of its commit included.
    """
    name = "maintenance.remove_orphans.older_than"
    longest, age = seconds("maintenance.remove_orphans.longest_run", longest_run), seconds(name, older_than)
    if age <= longest:
        problem = f"{older_than} is not beyond longest_run, {longest_run}: files of runs would go."
        raise InvalidArgument(name, problem, "Let it be at least twice the longest run.")
    if age < _DAY:
        raise InvalidArgument(name, f"{older_than} is less than a day, which Iceberg refuses.")
    return age


@dataclass(frozen=True, kw_only=True)
class MaintenanceSection:
    """The section `maintenance`. A work is done if set to `true` or to a mapping of settings.

    :param tables: names of tables, or patterns such as "lake.*" and "lake.clicks*".
    :param remove_orphans: the least age of files to delete, in seconds.
    """

    tables: tuple[str, ...]
    retention: RetentionConfig | None = None
    compact: CompactionConfig | None = None
    expire: ExpiryRule | None = None
    remove_orphans: float | None = None
    rewrite_manifests: bool = False

    @classmethod
    def parse(cls, given: Any) -> MaintenanceSection:
        """Read the section from a mapping. Raises InvalidArgument with the key."""
        if not isinstance(given, Mapping):
            raise InvalidArgument("maintenance", f"is a {type(given).__name__}, not a mapping.")
        arguments.check_keys("maintenance", given, [one.name for one in fields(cls)])
        tables = arguments.items("maintenance.tables", given.get("tables")) or ()
        if not tables:
            raise InvalidArgument("maintenance.tables", "is missing.", 'Write ["lake.clicks", "lake.orders*"].')
        compact = _work("compact", CompactionConfig, given.get("compact"))
        for name in tables:
            _check_name(name)
            if compact is not None and compact.zorder_by:
                lake_of(name).require(LakeCapability.ZORDER, "maintenance.compact.zorder_by", name)
        section = cls(
            tables=tables,
            retention=_work("retention", _retention, given.get("retention")),
            compact=compact,
            expire=_work("expire", _expiry, given.get("expire")),
            remove_orphans=_work("remove_orphans", _orphan_age, given.get("remove_orphans")),
            rewrite_manifests=arguments.flag("maintenance.rewrite_manifests", given.get("rewrite_manifests")),
        )
        if not any(getattr(section, work) for work in WORKS):
            remedy = "Set retention, compact, rewrite_manifests, expire or remove_orphans."
            raise InvalidArgument("maintenance", "contains nothing to do.", remedy)
        return section


def _work(key: str, kind: Callable[..., Work], given: Any) -> Work | None:
    if isinstance(given, Mapping):
        arguments.check_keys(f"maintenance.{key}", given, inspect.signature(kind).parameters)
        return kind(**given)
    return kind() if arguments.flag(f"maintenance.{key}", given) else None


def format_of(tables: Sequence[str]) -> LakeFormat:
    """Return the format of tables to maintain together. Raises InvalidArgument for tables of several formats."""
    formats = {row.format: row for row in map(lake_of, tables)}
    if len(formats) > 1:
        problem = f"are of several formats: {', '.join(formats)}."
        raise InvalidArgument("maintenance.tables", problem, "Maintain those of each format by themselves.")
    return next(iter(formats.values()))


def _check_name(name: str) -> None:
    if LakeCapability.CATALOG not in (lake := lake_of(name)).can:
        lake.check_name(name, "maintenance.tables")
        return
    if ":" in name or not re.fullmatch(r"[^.\s]+(\.[^.\s]+)+", name):
        raise InvalidArgument("maintenance.tables", f"{name!r} is not the name of a table.", "Write namespace.table.")
