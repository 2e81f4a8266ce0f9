"""Public names of `vitft.report`, imported on first use."""

from .charts import learning_chart as learning_chart
from .comparison import RunComparison as RunComparison
from .comparison import compare_runs as compare_runs
from .comparison import comparison_results as comparison_results
from .comparison import draw_comparison as draw_comparison
from .comparison import write_comparison as write_comparison
from .html import digest_source as digest_source
from .notebook import Explanation as Explanation
from .notebook import result_card as result_card
from .plots import accuracy_curves_png as accuracy_curves_png
from .plots import cut_patches as cut_patches
from .plots import distance_png as distance_png
from .plots import drawable as drawable
from .plots import filters_png as filters_png
from .plots import patches_png as patches_png
from .plots import positions_png as positions_png
from .run_files import command_of as command_of
from .run_files import read_run as read_run
from .run_page import write_report as write_report
