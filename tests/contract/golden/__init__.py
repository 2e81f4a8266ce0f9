"""Small runs and what every reader of a run directory shows of them."""
