"""Models and their files: Vision Transformer, timm models, checkpoints and pretrained weights."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
