"""Which configurations of a sink of Kafka Connect can be adopted."""

from __future__ import annotations

import pytest

from airflow_lakestream.adopt.claim import CannotAdopt
from airflow_lakestream.adopt.tools import check_config


@pytest.mark.parametrize(
    "config",
    [
        {"topics": "clicks, orders"},
        {"topics.regex": "orders"},
        {"topics.regex": "(?i)(clicks|ORD[a-z]+)"},
        {"topics.regex": r"\w++"},
        {"topics": "orders", "iceberg.tables.default-commit-branch": "main"},
    ],
)
def test_a_sink_that_reads_the_topic_into_main_can_be_adopted(config: dict[str, str]) -> None:
    check_config("connect c", config, "orders")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"topics": "clicks, orders2"}, "connect c reads clicks, orders2, not orders"),
        ({"topics.regex": "clicks.*"}, r"topics\.regex 'clicks\.\*', which does not match orders"),
        # As Kafka does, the whole name is compared.
        ({"topics.regex": "order"}, "does not match orders"),
        ({"topics.regex": "rders"}, "does not match orders"),
        # Java's own syntax.
        ({"topics.regex": r"\p{Lower}+"}, r"topics\.regex .* can't be checked here .* Set topics=orders"),
        ({"topics.regex": "[a-z&&[^o]]+"}, r"topics\.regex .* can't be checked here"),
        ({"topics": "orders", "iceberg.tables.default-commit-branch": "etl"}, "the branch 'etl', not main"),
    ],
)
def test_a_sink_of_other_topics_or_of_a_branch_is_refused(config: dict[str, str], reason: str) -> None:
    with pytest.raises(CannotAdopt, match=reason):
        check_config("connect c", config, "orders")
