"""Findings of the doctor about a part of a setup."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from airflow_lakestream.exceptions import LakestreamError, Transient
from airflow_lakestream.onramp.dag_file import without_secrets


class PartHealth(StrEnum):
    """Health of a part: `NOTE` is worth knowing, `WRONG` has to be mended, `UNKNOWN` could not be checked."""

    OK = "ok"
    NOTE = "note"
    WRONG = "wrong"
    UNKNOWN = "unknown"


_EXIT_CODES = {PartHealth.WRONG: 1, PartHealth.UNKNOWN: 2}


@dataclass(frozen=True)
class DoctorFinding:
    """A line of the doctor; `text` contains the problem and the remedy."""

    part: str
    health: PartHealth
    text: str

    def to_dict(self) -> dict[str, str]:
        """Return JSON-ready values."""
        return {"part": self.part, "health": str(self.health), "text": self.text}

    def __str__(self) -> str:
        return f"{self.health:<8} {self.part:<10} {self.text}"


Look = Callable[[], Iterable[DoctorFinding]]


def findings_of(part: str, look: Look, secrets: Callable[[], Iterable[str]]) -> list[DoctorFinding]:
    """Return the findings of a look; an error is a finding, too, after the findings before it. Secrets are hidden.

    An error is WRONG if it needs a person: a terminal error, a missing import, an OSError. Otherwise it is UNKNOWN.

    :param part: the part that is looked at, for the finding of an error.
    :param secrets: returns the texts to hide; called after the look, which may have opened connections.
    """
    found: list[DoctorFinding] = []
    try:
        # One by one: the findings before an error stay.
        for one in look():
            found.append(one)
    except LakestreamError as e:
        found.append(DoctorFinding(part, PartHealth.UNKNOWN if isinstance(e, Transient) else PartHealth.WRONG, str(e)))
    except (ImportError, OSError) as e:
        found.append(DoctorFinding(part, PartHealth.WRONG, f"{type(e).__name__}: {e}"))
    except Exception as e:  # noqa: BLE001  # for any error of a client, the other parts are still checked
        found.append(DoctorFinding(part, PartHealth.UNKNOWN, f"{type(e).__name__}: {e}"))
    hidden = list(secrets())
    return [replace(one, text=" ".join(without_secrets(one.text, hidden).split())) for one in found]


def exit_code(findings: Sequence[DoctorFinding]) -> int:
    """Return 2 if a part could not be checked, 1 if a part is wrong, otherwise 0."""
    return max((_EXIT_CODES.get(one.health, 0) for one in findings), default=0)
