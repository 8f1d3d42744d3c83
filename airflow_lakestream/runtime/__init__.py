"""The running process: child processes, memory, threads. Standard library only."""
