"""HTTP server for a trained model, with an API and a web page for uploading images.

The server has no authentication, encryption or rate limit; a reverse proxy can add them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
