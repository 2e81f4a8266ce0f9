"""Public names of `vitft.data`, imported on first use."""
