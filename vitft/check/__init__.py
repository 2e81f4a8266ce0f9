"""Checks of a labelled image folder (`vitft check`): findings and proposed fixes.

folder  all checks of a folder, and the findings as written to audit.json
page    the findings as an HTML page with controls for choosing fixes
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
