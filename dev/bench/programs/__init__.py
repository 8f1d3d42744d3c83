"""What runs in a process of its own, to be measured; each writes what it saw to the file that `--result` names."""
