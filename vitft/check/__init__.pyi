"""Public names of `vitft.check`, imported on first use."""
