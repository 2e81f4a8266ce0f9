"""Sentences about numbers and findings, for every screen, page and file.

`results` is about runs and exports, `evaluation` about an evaluation.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
