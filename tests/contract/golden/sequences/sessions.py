"""Sessions of `vitft label`, step by step."""

import json
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.contract.app_client import KEY, AppClient, labelled
from tests.contract.built.golden import pixels
from tests.contract.golden.readers import short

COLOURS = {"ash": (90, 150, 120), "elm": (150, 110, 100), "oak": (110, 110, 160)}
WEIGHTS = "../w.safetensors"


def draw_leaves(spread: float = 25) -> None:
    """Draw 54 pictures of three classes whose colours overlap, and a copy of one of them.

    They are BMP files, because the order of the random sample follows the bytes of the files.
    """
    Path("leaves").mkdir()
    for number in range(54):
        name = [*COLOURS][number % 3]
        colour = np.array(COLOURS[name]) + np.random.default_rng(number).normal(0, spread, 3)
        picture = Image.fromarray(pixels(number, colour.tolist()).astype(np.uint8))
        picture.save(f"leaves/{name}{number:02}.bmp")
    Path("leaves/ash-copy.bmp").write_bytes(Path("leaves/ash00.bmp").read_bytes())


class User:
    """A user of `vitft label` who answers by the names of the files."""

    def __init__(self, client: AppClient, mode: str = "mixed") -> None:
        self.client, self.mode = client, mode
        self.state: dict[str, Any] = client.ask("GET", f"/state?key={KEY}&mode={mode}").json
        self.lines = [f"--- {mode}", *self.state["notes"], self.seen("start")]

    def seen(self, did: str) -> str:
        """Return all that the page shows after a step, in a line."""
        state, asked = self.state, self.state["question"] or {}
        guesses = [f"{one['class']} {one['probability']:.3f}" for one in asked.get("guesses", ())]
        classes = [f"{c['name']} {c['answers']}+{c['likely']}" for c in state["classes"]]
        what = [asked.get(name) for name in ("path", "picture", "copies", "kind", "reason")]
        numbers = [f"{name} {state[name]}" for name in ("answered", "skipped", "pictures")]
        accuracy = [f"{name} {short(value)}" for name, value in state["accuracy"].items()]
        parts = [[did], what, guesses, state["upcoming"], classes, numbers, accuracy]
        return " | ".join(" ".join(map(str, part)) for part in [*parts, [state["undo"]]])

    def post(self, route: str, **body: object) -> None:
        head = {"content-type": "application/json"}
        address = f"/{route}?key={KEY}&mode={self.mode}"
        answer = self.client.ask("POST", address, json.dumps(body).encode(), head)
        if answer.status == 200:
            self.state = answer.json
        did = f"{route} {body.get('label', '')}"
        self.lines.append(self.seen(did) if answer.status == 200 else f"{did}: {answer.json}")

    def answer(self, times: int) -> None:
        for _ in range(times):
            if asked := self.state["question"]:
                self.post("answer", picture=asked["picture"], label=asked["path"][:3])

    def likely(self, name: str) -> list[int]:
        """Return the likely pictures of a class, those with equal percentages by number."""
        found = self.client.ask("GET", f"/likely?class={name}&key={KEY}").json["pictures"]
        pairs = [(f"{one['probability']:.2f}", one["picture"]) for one in found]
        pairs = [pair for _, same in groupby(pairs, itemgetter(0)) for pair in sorted(same)]
        each = [f"{picture} {probability}" for probability, picture in pairs]
        self.lines.append(f"likely {name}: {', '.join(each)}")
        return [picture for _, picture in pairs]


def honest_answers() -> Iterator[str]:
    """A session in which every question gets its answer."""
    draw_leaves()
    with labelled("leaves", Path("labels.csv"), weights=Path(WEIGHTS)) as client:
        user = User(client)
        user.answer(30)
        for name in COLOURS:
            user.likely(name)
        yield from user.lines
    yield Path("labels.csv").read_text()


def all_kinds_of_answers() -> Iterator[str]:
    """A session with skipped, undone, confirmed and refused answers, and one that continues it."""
    draw_leaves()
    classes = ("oak", "elm")
    with labelled("leaves", Path("labels.csv"), weights=Path(WEIGHTS), classes=classes) as client:
        user = User(client)
        user.answer(3)
        user.post("skip", picture=user.state["question"]["picture"])
        user.answer(5)
        user.post("undo")
        user.post("undo")
        user.answer(4)
        user.post("answer", picture=user.state["question"]["picture"], label=" Birch  tree")
        user.post("answer", picture=user.state["question"]["picture"], label="OAK")
        user.post("answer", picture=user.state["question"]["picture"], label="a|b")
        for name in ("ash", "elm"):
            *some, first, second = user.likely(name)[:6]
            user.post("confirm", pictures=some, label=name, taken_out=[first, second])
            user.post("confirm", pictures=some, label=name, taken_out=[])
            user.answer(3)
        user.post("undo")
        user.post("confirm", pictures=user.likely("oak")[:3], label="oak", taken_out=[])
        user.post("undo")
        yield from user.lines
    yield Path("labels.csv").read_text()
    with labelled("leaves", Path("labels.csv"), weights=Path(WEIGHTS)) as client:
        user = User(client, "audit")
        user.answer(4)
        user.post("skip", picture=user.state["question"]["picture"])
        user.answer(20)
        yield from user.lines
        user = User(client)
        user.answer(40)
        yield from user.lines
    yield Path("labels.csv").read_text()
