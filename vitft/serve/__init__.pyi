"""Public names of `vitft.serve`, imported on first use."""
