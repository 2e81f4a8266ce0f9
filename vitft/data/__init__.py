"""Data handling: scan, inspect, split and decode the images of a folder.

Only `data.augment` imports torch at import time.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
