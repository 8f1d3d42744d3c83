"""Of the process that runs: its children, its memory, its threads. Standard library only."""
