"""Public names of `vitft.messages`, imported on first use."""

from .results import accuracy_text as accuracy_text
from .results import chance_clause as chance_clause
from .results import difference_text as difference_text
from .results import estimate_text as estimate_text
from .results import measured_on as measured_on
from .results import run_details as run_details
from .results import using as using
