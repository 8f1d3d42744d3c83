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
    """Return the findings of a look at a part, without secrets. An error of the look is its last finding.

    The health after an error is WRONG if a person has to act (a terminal error, a missing import, an OSError), and
    otherwise UNKNOWN.

    :param part: the part, for the finding of an error.
    :param secrets: returns the texts to hide; called after the look, which may have opened connections.
    """
    findings: list[DoctorFinding] = []
    try:
        # Appended one by one: an error does not discard the findings before.
        for finding in look():
            findings.append(finding)
    except LakestreamError as e:
        findings.append(
            DoctorFinding(part, PartHealth.UNKNOWN if isinstance(e, Transient) else PartHealth.WRONG, str(e))
        )
    except (ImportError, OSError) as e:
        findings.append(DoctorFinding(part, PartHealth.WRONG, f"{type(e).__name__}: {e}"))
    except Exception as e:  # noqa: BLE001  # for any error of a client, the other parts are still checked
        findings.append(DoctorFinding(part, PartHealth.UNKNOWN, f"{type(e).__name__}: {e}"))
    hidden = list(secrets())
    return [replace(finding, text=" ".join(without_secrets(finding.text, hidden).split())) for finding in findings]


def exit_code(findings: Sequence[DoctorFinding]) -> int:
    """Return 2 if a part could not be checked, 1 if a part is wrong, otherwise 0."""
    return max((_EXIT_CODES.get(finding.health, 0) for finding in findings), default=0)
