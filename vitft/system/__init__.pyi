"""Public names of `vitft.system`, imported on first use."""
