"""Public names of `vitft.study`, imported on first use."""
