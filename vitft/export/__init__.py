"""Export of trained models to files for other tools; each export is verified before it is kept.

Each export is reopened with its target tool, including that tool's own preprocessing, and its
predictions on the run's validation images are compared with the original predictions. An export
that differs by more than the tolerance of its format is removed.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
