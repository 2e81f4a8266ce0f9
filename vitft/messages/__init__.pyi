"""Public names of `vitft.messages`, imported on first use."""

from .pages import compared_with_accuracy as compared_with_accuracy
from .results import accuracy_text as accuracy_text
from .results import baseline_text as baseline_text
from .results import chance_clause as chance_clause
from .results import chance_remedy as chance_remedy
from .results import class_table as class_table
from .results import difference_text as difference_text
from .results import distinguishes as distinguishes
from .results import estimate_text as estimate_text
from .results import headline_text as headline_text
from .results import how_measured as how_measured
from .results import measured_on as measured_on
from .results import run_details as run_details
from .results import using as using
from .results import weak_text as weak_text
from .training import needed_budget as needed_budget
from .training import selected_epoch as selected_epoch
