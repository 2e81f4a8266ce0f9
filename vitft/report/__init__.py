"""Reports as single HTML files: the page of a run, and the comparison of several runs.

    run_files    contents of a run directory as one object, including thumbnails
    summary      sentences and key figures at the top of the page of a run
    advice       suggested next steps, with the evidence for each
    reproduce    command, package versions and digests needed to repeat a run
    run_page     all sections of the page of a run
    comparison   several runs on their shared validation images, and their page
    notebook     results of the Python API as HTML for the output cells of notebooks
    charts, svg  the charts of the pages, and the SVG engine that draws them
    palette      colours for light and dark mode
    html         rendering of a page, with its style sheet and script, to one HTML file
    plots        PNG figures for `vitft explain --model` and `vitft study` (matplotlib)

Only `plots` needs packages other than jinja2 and numpy. Pages are generated from the run
directories alone; the images in the data folder are not opened.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
