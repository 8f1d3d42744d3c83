"""What Airflow takes for a schedule, by the parser that it uses itself."""

from __future__ import annotations

# Airflow takes these too; croniter knows the presets that are cron.
_PRESETS = ("@continuous", "@once", "@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly")


def schedule_problem(schedule: str) -> str | None:
    """Return what is wrong with a schedule, and what to write instead; None for one that Airflow takes."""
    if schedule.startswith("@"):
        return None if schedule in _PRESETS else f"{schedule!r} is not one of {', '.join(_PRESETS)}."
    from croniter import croniter  # Airflow itself brings it.

    try:
        # One that never comes is found out by the scheduler, which then takes none of the file's DAGs.
        croniter(schedule).get_next()
    except ValueError as error:
        why = " ".join(str(error).split()).rstrip(".")
        return f'{schedule!r} is no cron expression ({why}). Write five fields, as in "*/5 * * * *", or "@hourly".'
    return None
