"""Public names of `vitft.training`, imported on first use."""
