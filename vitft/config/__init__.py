"""Settings: one dataclass per section, defaults, TOML files and recipes. Does not import torch."""
