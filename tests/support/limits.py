"""Limits of time in tests."""

HANG_S = 600
"""After this time a child process hangs, in seconds: generous, because machines are shared."""
