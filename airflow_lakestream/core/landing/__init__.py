"""One landing, from its plan to its report. `algorithm` says the steps: read it first."""
