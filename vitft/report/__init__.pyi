"""Public names of `vitft.report`, imported on first use."""

from .chart_sections import epochs_section as epochs_section
from .patch_plot import cut_patches as cut_patches
from .patch_plot import patches_png as patches_png
from .run_files import find_run as find_run
from .run_files import read_run as read_run
from .run_page import write_report as write_report
from .summary import key_figures as key_figures
