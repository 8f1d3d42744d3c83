"""OpenLineage of a task's landings: facts are kept at each landing, and become datasets at the end."""
