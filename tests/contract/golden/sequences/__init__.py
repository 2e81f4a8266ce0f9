"""Sequences of steps or commands and what they show, against reviewed texts."""
