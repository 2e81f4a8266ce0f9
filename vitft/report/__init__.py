"""Reports as single HTML files: the page of a run, and the comparison of several runs.

    run_files    the files of a run directory as one object, with its thumbnails
    summary      sentences and figures at the top of a page
    advice       next steps, and how certain they are
    reproduce    command, package versions and digests needed to repeat a run
    run_page     all sections of the page of a run
    comparison   several runs on their shared validation images, and their page
    charts, svg  the charts of the pages, and the SVG engine that draws them
    palette      colours for light and dark mode
    html         rendering of a template, the style sheet and the script to one HTML file
    plots        PNG figures for `vitft explain --model` and `vitft study` (matplotlib)

Only `plots` needs packages other than jinja2 and numpy. A page is made from the run directory
alone; the images of the data folder are not opened.
"""
