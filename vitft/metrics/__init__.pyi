"""Public names of `vitft.metrics`, imported on first use."""
