"""Public names of `vitft.messages`, imported on first use."""

from .results import chance_clause as chance_clause
from .results import class_table as class_table
from .results import compared_with_accuracy as compared_with_accuracy
from .results import headline_text as headline_text
from .results import needed_budget as needed_budget
from .results import selected_epoch as selected_epoch
