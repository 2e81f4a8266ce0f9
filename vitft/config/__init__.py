"""Settings: one dataclass per section, TOML, `--set`, defaults and recipes. No torch."""
