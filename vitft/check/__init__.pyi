"""Public names of `vitft.check`, imported on first use."""

from .folder import CheckResult as CheckResult
from .folder import check_folder as check_folder
from .folder import write_check_page as write_check_page
