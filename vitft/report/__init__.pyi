"""Public names of `vitft.report`, imported on first use."""
