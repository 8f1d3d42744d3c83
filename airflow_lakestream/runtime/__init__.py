"""The running process: children, memory, threads. Standard library only."""
