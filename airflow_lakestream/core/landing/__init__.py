"""A landing, from the plan to the report. `algorithm` has the steps: read this module first."""
