"""Public names of `vitft.config`, imported on first use."""
