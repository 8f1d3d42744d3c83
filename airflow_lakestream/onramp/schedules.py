"""Check of schedules, by Airflow's own parser."""

from __future__ import annotations

# Airflow's presets, of which croniter knows only some.
_PRESETS = ("@continuous", "@once", "@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly")


def schedule_problem(schedule: str) -> str | None:
    """Return the problem of a schedule with a remedy, or None if Airflow accepts the schedule.

    :param schedule: a cron expression, or a preset that begins with @.
    """
    if schedule.startswith("@"):
        return None if schedule in _PRESETS else f"{schedule!r} is not one of {', '.join(_PRESETS)}."
    from croniter import croniter  # a requirement of Airflow

    try:
        # For a schedule that never comes, such as 30 February, Airflow would skip all DAGs of the file.
        croniter(schedule).get_next()
    except ValueError:
        # Not the parser's own reason, which mentions its iterators, and fields that Airflow does not use.
        return f'{schedule!r} is not a cron expression. Write five fields, as in "*/5 * * * *", or "@hourly".'
    return None
