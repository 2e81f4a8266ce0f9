"""Frozen features: extraction, caching, linear heads, label errors and OOD detection."""
