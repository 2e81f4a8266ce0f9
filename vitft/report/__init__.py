"""Reports as single HTML files: the page of a run, and the comparison of several runs.

The sections of a page take their values from `run_files`, and from `vitft.messages` what other
commands say, too.
Only `plots` needs packages other than jinja2 and numpy. Pages are generated from the run
directories alone; the images in the data folder are not opened.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
