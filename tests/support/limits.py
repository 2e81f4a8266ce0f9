"""Limits of time in tests."""

HANG_S = 240
"""After this time a child process hangs, in seconds: generous, because machines are shared, and
below the `timeout` of pytest in pyproject.toml."""
