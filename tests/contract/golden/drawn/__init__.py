"""Figures, pictures and images that are drawn, as numbers, against reviewed texts."""
