"""What frozen features give: the cut, extraction, cache, heads, label errors, OOD detection."""
