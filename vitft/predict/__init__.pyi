"""Public names of `vitft.predict`, imported on first use."""
