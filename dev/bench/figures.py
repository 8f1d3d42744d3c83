"""A measured figure, as it is printed and written down."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One measured figure, the bound it is held to, and whether it holds; without a bound it only informs."""

    case: str
    metric: str
    value: float
    unit: str
    bound: str | None = None
    holds: bool | None = None

    def __str__(self) -> str:
        verdict = {None: "", True: f"   holds ({self.bound})", False: f"   DOES NOT HOLD ({self.bound})"}[self.holds]
        return f"{self.case:25} {self.metric:30} {self.value:>14,.2f} {self.unit}{verdict}"
