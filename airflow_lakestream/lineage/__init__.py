"""What a task has landed, as OpenLineage tells it: facts are kept at each landing, and become datasets at the end."""
