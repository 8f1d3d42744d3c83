"""The driver's decisions for executors between two rounds: new columns for fields, and tables for records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_lakestream.core.landing.job import LandingJob
from airflow_lakestream.core.landing.plan import Plan
from airflow_lakestream.core.ports import RowSchema
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.sharing.pieces import at_most_offsets
from airflow_lakestream.decode.rows import RowDecoderFactory
from airflow_lakestream.iceberg.fan_out.sink import FanOutSink
from airflow_lakestream.tables.rejects.sink import RejectingSink

# Read by the first round if no table is known: reading these offsets again costs little.
FIRST_OFFSETS = 20_000


def fan_out_of(job: LandingJob) -> FanOutSink | None:
    """Return the sink of a job whose records choose the table; None for any other sink."""
    inner = job.sink.inner if isinstance(job.sink, RejectingSink) else job.sink
    return inner if isinstance(inner, FanOutSink) else None


@dataclass
class RoundDecisions:
    """The driver's part of a plan for executors; the base class has nothing to decide."""

    job: LandingJob
    plan: Plan

    def decoders(self) -> RowDecoderFactory:
        """Return the decoders of the executors for the next round."""
        assert isinstance(self.job.decoders, RowDecoderFactory), "that is what build_job makes"
        return self.job.decoders

    def first(self, ranges: RangeSet) -> RangeSet:
        """Return the offset ranges for the first round."""
        return ranges

    def decide(self, brought: Sequence[Any], columns: RowSchema) -> None:
        """Decide the questions that executors met in records.

        :param columns: the payload's columns, as executors knew them.
        """
        raise AssertionError(f"nothing is to be decided here, and executors ask for {brought[0]!r}")


@dataclass
class ColumnDecisions(RoundDecisions):
    """Adds a column to the table for each new field, of a type for the values of all executors."""

    decided: bool = False

    def decoders(self) -> RowDecoderFactory:
        """Return the decoders of the executors for the next round."""
        decoders = super().decoders()
        return replace(decoders, payload=replace(decoders.payload, decided=self.decided))

    def decide(self, brought: Sequence[Any], columns: RowSchema) -> None:
        """Let the next commit add the columns; if no further column is possible, the remaining records are bad."""
        decoders, identity = super().decoders(), self.plan.state.identity
        grown = decoders.payload.grown(columns, brought)
        self.decided = grown.equals(columns)
        if not self.decided:
            self.job.sink.write(decoders.without_records(grown, identity.topic)[1], identity)


@dataclass
class RouteDecisions(RoundDecisions):
    """Admits or refuses tables for records, in the order in which records ask for them.

    :param fan_out: the sink of the job.
    :param known: routes of the landing before, which records are likely to ask for again.
    """

    fan_out: FanOutSink
    known: Sequence[str]

    def decoders(self) -> RowDecoderFactory:
        """Return the decoders of the executors for the next round."""
        decoders = super().decoders()
        assert decoders.router is not None, "records choose their tables"
        return replace(decoders, router=replace(decoders.router, refusals=self.fan_out.outline().refusals))

    def first(self, ranges: RangeSet) -> RangeSet:
        """Look at the tables of known routes; return all ranges, or without known routes a few to learn routes from."""
        routes = self.known or self.fan_out.routes
        self.fan_out.expect(routes, self.plan.state.identity, ranges)
        return ranges if routes else at_most_offsets(ranges, FIRST_OFFSETS)

    def decide(self, brought: Sequence[Any], columns: RowSchema) -> None:
        """Admit or refuse routes."""
        self.fan_out.decide(brought)
