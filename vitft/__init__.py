"""Fine-tune a Vision Transformer on a folder of images.

The package logs to the logger `vitft` and prints nothing. To see its messages, call
`logging.basicConfig(level=logging.INFO)`.

The names below are imported on first use, so that `import vitft` does not import torch.
"""

import logging

import lazy_loader

logging.getLogger(__name__).addHandler(logging.NullHandler())

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
