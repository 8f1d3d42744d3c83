"""The page of streams on the oldest Airflow that is promised: the same answers."""

from __future__ import annotations

from tests.dags.test_page import (
    said,
    test_a_backfill_is_offered_where_it_lands_intervals,
    test_a_dag_that_may_not_be_read_never_shows,
    test_a_landing_is_known_by_its_asset_by_its_report_or_by_its_progress,
    test_a_press_is_told_which_table_it_is_and_how_records_are_decoded,
    test_a_press_needs_permission_on_the_dag_of_the_stream,
    test_a_run_that_was_told_another_table_is_a_stream_of_its_own,
    test_a_stream_has_its_history_with_holes_and_losses,
    test_airflow_knows_the_page_below_the_path_of_its_proxy,
    test_every_route_refuses_who_is_not_logged_in,
    test_names_are_those_of_the_newest_run_and_not_the_template,
    test_rows_by_the_hour_are_those_of_the_last_day,
    test_scripts_are_read_by_everybody,
    test_the_states_are_those_of_the_newest_runs_and_of_the_supervision,
    test_what_a_table_holds_is_told_of_one_stream_with_its_age,
    test_what_comes_next_is_seen,
    test_what_is_older_than_the_newest_landings_of_all_is_found_too,
)

__all__ = [
    "said",
    "test_a_backfill_is_offered_where_it_lands_intervals",
    "test_a_dag_that_may_not_be_read_never_shows",
    "test_a_landing_is_known_by_its_asset_by_its_report_or_by_its_progress",
    "test_a_press_is_told_which_table_it_is_and_how_records_are_decoded",
    "test_a_press_needs_permission_on_the_dag_of_the_stream",
    "test_a_run_that_was_told_another_table_is_a_stream_of_its_own",
    "test_a_stream_has_its_history_with_holes_and_losses",
    "test_airflow_knows_the_page_below_the_path_of_its_proxy",
    "test_every_route_refuses_who_is_not_logged_in",
    "test_names_are_those_of_the_newest_run_and_not_the_template",
    "test_rows_by_the_hour_are_those_of_the_last_day",
    "test_scripts_are_read_by_everybody",
    "test_the_states_are_those_of_the_newest_runs_and_of_the_supervision",
    "test_what_a_table_holds_is_told_of_one_stream_with_its_age",
    "test_what_comes_next_is_seen",
    "test_what_is_older_than_the_newest_landings_of_all_is_found_too",
]
