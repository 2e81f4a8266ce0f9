"""Frozen features: extraction, cache, linear heads, label errors and OOD detection."""
