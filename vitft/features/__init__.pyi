"""Public names of `vitft.features`, imported on first use."""
