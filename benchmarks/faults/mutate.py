"""Seeded mutations of bytes and of JSON values, and coverage of the code that reads them."""

import copy
import json
import random
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

PACKAGE = "vitft"
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 3, 7, 8, 16, 17, 255, 4096, 4097, 20_000, 10**9, 2**53, 2**63,
    10**400, 0.5, -0.0, 1e-300, 1e30, 1e300, -1e9, "", "x", "0", "../x", "/etc/passwd", "\x00",
    "\ud800", "\udcff", "<script>", "=1+1", "a" * 3000, [], {}, [1], [16, 16], [16.0, 16.0],
    [[]], {"a": 1}, {"": None}, ["x", "x"], [0.5, 0.5, 0.5], [None],
)  # fmt: skip
ODD_TEXTS = (
    "",
    "{",
    "[]",
    "null",
    "NaN",
    "[NaN]",
    '{"a":1,"a":2}',
    "[" * 60_000,
    "\ufeff{}",
    "5",
    '"x"',
    "1" * 6000,
)


def mutate_bytes(content: bytes, rng: random.Random, header: int) -> bytes:
    """Damage content in one to four places, three in four of them in the first `header` bytes."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        if not data:
            break
        place = rng.randrange(min(header, len(data)) if rng.random() < 0.75 else len(data))
        kind = rng.choice(("flip", "byte", "digit", "cut", "insert", "double", "zero", "swap"))
        length = rng.choice((1, 2, 8, 64, 1000))
        if kind == "flip":
            data[place] ^= 1 << rng.randrange(8)
        elif kind == "byte":
            data[place : place + 1] = bytes([rng.randrange(256)])
        elif kind == "digit":
            data[place : place + 1] = rng.choice(b'0123456789-e.,[]{}":').to_bytes(1, "little")
        elif kind == "cut":
            del data[place : place + length if rng.random() < 0.7 else len(data)]
        elif kind == "insert":
            data[place:place] = rng.randbytes(length)
        elif kind == "double":
            data[place:place] = data[place : place + length]
        elif kind == "zero":
            data[place : place + length] = bytes(min(length, len(data) - place))
        else:
            data[place : place + 2] = data[place : place + 2][::-1]
    return bytes(data)


def places(value: Any, start: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value inside a JSON value; long lists are sampled."""
    found: list[tuple[Any, ...]] = []
    pairs: Any = value.items() if isinstance(value, dict) else enumerate(value[:8])
    for key, inner in pairs:
        found.append((*start, key))
        if isinstance(inner, dict | list):
            found += places(inner, (*start, key))
    return found


def mutate_json(value: Any, rng: random.Random) -> str:
    """Return JSON text of a value that was changed in one to three places."""
    changed = json.loads(json.dumps(value))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        known = places(changed) if isinstance(changed, dict | list) else []
        if not known or rng.random() < 0.03:
            return rng.choice(ODD_TEXTS)
        *parents, last = rng.choice(known)
        inner = changed
        for key in parents:
            inner = inner[key]
        action = rng.random()
        if action < 0.12:
            del inner[last]
        elif action < 0.2 and isinstance(inner, dict):
            inner[rng.choice(("x", "timm", "stem", "")) + str(last)[:3]] = inner[last]
        elif action < 0.3 and type(inner[last]) in (int, float) and abs(inner[last]) < 1e300:
            inner[last] *= rng.choice((-1, 2, 0.5, 10, 1e6))
        else:
            inner[last] = copy.deepcopy(rng.choice(ODD_VALUES))
    text = json.dumps(changed)
    return text if rng.random() > 0.02 else text[: rng.randrange(len(text) + 1)]


class LineCoverage:
    """Lines of the package that were executed; cheap because known functions are not traced.

    It uses `sys.monitoring` (Python 3.12 and later) or else `sys.settrace`, in this thread only.
    """

    def __init__(self) -> None:
        self.lines: set[tuple[CodeType, int]] = set()
        self.calls: dict[CodeType, int] = {}
        self.has_new = False

    def run(self, function: Callable[[], Any]) -> Any:
        """Call a function; set `has_new` if it reached lines that were not reached before."""
        self.has_new = False
        if hasattr(sys, "monitoring"):
            return self.monitored(function)
        before = sys.gettrace()
        sys.settrace(self.enter)
        try:
            return function()
        finally:
            sys.settrace(before)

    def monitored(self, function: Callable[[], Any]) -> Any:
        """Call a function under `sys.monitoring`, where each line reports itself once."""
        tools: Any = sys.monitoring  # type: ignore[attr-defined]
        number = tools.COVERAGE_ID
        tools.use_tool_id(number, "fuzz")
        tools.register_callback(number, tools.events.LINE, self.line)
        tools.set_events(number, tools.events.LINE)
        try:
            return function()
        finally:
            tools.set_events(number, 0)
            tools.free_tool_id(number)

    def line(self, code: CodeType, number: int) -> Any:
        """Record a line of the package, then stop reporting it."""
        if PACKAGE in code.co_filename and (code, number) not in self.lines:
            self.lines.add((code, number))
            self.has_new = True
        return sys.monitoring.DISABLE  # type: ignore[attr-defined]

    def enter(self, frame: FrameType, *_: Any) -> Any:
        """Trace a call of a function of the package that has been called fewer than 300 times."""
        code = frame.f_code
        if PACKAGE not in code.co_filename:
            return None
        count = self.calls[code] = self.calls.get(code, 0) + 1
        return self.step if count < 300 or count % 50 == 0 else None

    def step(self, frame: FrameType, event: str, _: Any) -> Any:
        """Record a line."""
        place = (frame.f_code, frame.f_lineno)
        if event == "line" and place not in self.lines:
            self.lines.add(place)
            self.has_new = True
        return self.step
