"""Settings: dataclasses, defaults, TOML files and recipes. This package does not import torch."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
