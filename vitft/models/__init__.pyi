"""Public names of `vitft.models`, imported on first use."""
