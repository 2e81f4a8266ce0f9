"""Frozen features: extraction, caching, linear heads, label-error detection and OOD detection."""
