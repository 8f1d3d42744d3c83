"""Runs put together: from a configuration to the job of `core.landing`, and what runs besides it."""
