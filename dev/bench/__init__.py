"""Speed and memory, measured on the real parts: `python -m dev.bench`. Ratios in one run, never absolute promises."""
