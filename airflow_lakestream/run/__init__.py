"""Runs put together: from a configuration to the job of `core.landing`, with all further steps."""
