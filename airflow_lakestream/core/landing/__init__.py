"""One landing, from its plan to its report. `algorithm` has the steps: read it first."""
