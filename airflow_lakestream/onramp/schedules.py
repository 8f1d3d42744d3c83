"""Check of schedules, by Airflow's own parser."""

from __future__ import annotations

# Airflow takes these too; croniter knows the presets that are cron.
_PRESETS = ("@continuous", "@once", "@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly")


def schedule_problem(schedule: str) -> str | None:
    """Return the problem of a schedule with a remedy, or None if Airflow accepts the schedule.

    :param schedule: a cron expression, or a preset that begins with @.
    """
    if schedule.startswith("@"):
        return None if schedule in _PRESETS else f"{schedule!r} is not one of {', '.join(_PRESETS)}."
    from croniter import croniter  # Airflow itself brings it.

    try:
        # The scheduler would refuse a schedule without any date, and then skip all DAGs of the file.
        croniter(schedule).get_next()
    except ValueError:
        # The parser's own reasons speak of its iterators, and of a sixth and a seventh field that Airflow does not use.
        return f'{schedule!r} is not a cron expression. Write five fields, as in "*/5 * * * *", or "@hourly".'
    return None
