"""Takeover between tools: a ledger for the rows of another tool, and the end of a ledger as a tool's start."""
