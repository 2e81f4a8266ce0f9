"""Options as they are written on the command line and in Python."""

import pytest

from vitft.system.spelling import option, parameter


@pytest.mark.parametrize(
    ("name", "value", "on_the_command_line", "in_python"),
    [
        ("threshold", "", "--threshold", "threshold"),
        ("threshold", 0.8, "--threshold 0.8", "threshold=0.8"),
        ("threshold", 1.0, "--threshold 1", "threshold=1"),
        ("block", 0, "--block 0", "block=0"),
        ("method", "rollout", "--method rollout", 'method="rollout"'),
        ("class", "rose", "--class rose", 'about="rose"'),
    ],
)
def test_an_option_is_spelled_as_its_user_writes_it(
    name: str, value: str | float, on_the_command_line: str, in_python: str
) -> None:
    assert option(name, value) == on_the_command_line
    assert parameter(name, value) == in_python
