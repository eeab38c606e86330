"""Support for long computations: checkpoints, atomic writes and the memory limit."""
