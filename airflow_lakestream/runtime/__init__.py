"""The running process: its children, its memory, its threads. Standard library only."""
