"""Public names of `vitft.explain`, imported on first use."""
