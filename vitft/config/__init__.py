"""Settings: one dataclass per section, defaults, TOML files and recipes.

This package does not import torch.
"""
