"""`vitft label` with simulated answers: accuracy by answers, coverage of its intervals, response time.

    python -m benchmarks.accuracy.label --weights FILE --data DIR [DIR ...] [--seeds 10] [--most 160]
    python -m benchmarks.accuracy.label --seconds [--pictures 10000] [--answers 300]

First form: for each seed, a quarter of the photos is set aside at random for testing, and the rest is the
unlabelled folder. The true class answers what the session asks; audit pictures are not counted as answers.
Random order: the same head on the same number of photos drawn from the folder. Coverage: how often the
interval shown for the audit sample contains the head's accuracy on all photos that it was not fitted to.

Second form: a session over HTTP with random features of ten classes; the time from sending an answer to the
next question, with the head fitted again and the answer on the disk.
"""

import argparse
import hashlib
import http.client
import json
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.folders import merge_splits
from benchmarks.timing import mean_deviation
from vitft.config.sections import TrainSpec
from vitft.data.parts import AUDIT, PICKED
from vitft.features.logistic import linear_logits
from vitft.serve.label.answers import AnswerFile
from vitft.serve.label.app import make_label_app
from vitft.serve.label.chooser import PSEUDO_LABELLED, self_trained_head
from vitft.serve.label.pool import PicturePool, find_pictures, load_pool
from vitft.serve.label.session import TYPICAL_START, Session
from vitft.serve.limits import ServeLimits, access_for
from vitft.serve.server import listen, make_server

ANSWERS = (5, 10, 20, 40, 80, 160)
AUDITED = (20, 50)


def make_pool(z: Tensor, seed: int) -> PicturePool:
    """Return a pool of pictures with these directions (n, D) and with names instead of files."""
    names = [f"{i:06}.jpg" for i in range(len(z))]
    digests = tuple(hashlib.sha256(f"{seed} {name}".encode()).hexdigest() for name in names)
    return PicturePool(root=Path(), paths=tuple((name,) for name in names), digests=digests, z=z)


def simulate(
    z: Tensor, y: Tensor, seed: int, most: int, into: Path
) -> tuple[dict[str, dict[int, float]], list[tuple[int, bool, float]]]:
    """Answer one session.

    Returns:
        The test accuracy by arm and number of answers, and for each interval the number of audit
        answers, whether it contains the accuracy, and its width.
    """
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(seed))
    test, own = order[: len(z) // 4], order[len(z) // 4 :]
    zp, yp = z[own], y[own]
    drawn = torch.randperm(len(own), generator=torch.Generator().manual_seed(1000 + seed))
    classes = int(y.max()) + 1
    found: dict[str, dict[int, float]] = {"label": {}, "random": {}}
    intervals: list[tuple[int, bool, float]] = []
    most = min(most, len(own) // 2)
    with AnswerFile(into / f"{seed}.csv") as file:
        pool = make_pool(zp, seed)
        session = Session(pool, file, prefix="")
        answered: list[int] = []
        for n in (n for n in ANSWERS if n <= most):
            while len(answered) < n:
                asked = session.chosen_questions(n - len(answered))
                fixed = [
                    picture for picture, _ in asked if len(answered) < TYPICAL_START
                ]  # whatever the answers
                pictures = fixed[: TYPICAL_START - len(answered)] or [asked[0][0]]
                lines = [(pool.paths[i][0], str(int(yp[i])), PICKED) for i in pictures]
                file.append(lines)
                session.refresh()
                answered += pictures
            names = torch.tensor([int(name) for name in session.classes])
            head = session.head if session.head is not None else torch.zeros(1, z.shape[1] + 1)
            right = names[linear_logits(z, head).argmax(dim=1)] == y
            found["label"][n] = right[test].double().mean().item()
            rows = drawn[:n]
            others = zp[drawn[n:][:PSEUDO_LABELLED]]
            plain = self_trained_head(zp[rows], yp[rows], torch.ones(n), others, classes=classes)
            found["random"][n] = (
                (linear_logits(z[test], plain).argmax(dim=1) == y[test]).double().mean().item()
            )
            unseen = torch.ones(len(z), dtype=torch.bool)
            unseen[own[answered]] = False
            truth = right[unseen].double().mean().item()
            intervals += audited(session, yp, truth)
    return found, intervals


def audited(session: Session, yp: Tensor, truth: float) -> list[tuple[int, bool, float]]:
    """Answer parts of the audit sample and return the intervals; the session stays as it was."""
    found = []
    if session.head is None:
        return []
    for most in AUDITED:
        sample = session.audit_sample[:most]
        for picture in sample:
            session.kind_of[picture] = AUDIT
            name = str(int(yp[picture]))
            if name not in session.classes:
                session.classes.append(name)
            session.label_of[picture] = session.classes.index(name)
        shown = session.accuracy()
        found.append(
            (len(sample), shown["low"] <= truth <= shown["high"], shown["high"] - shown["low"])
        )
        for picture in sample:
            del session.kind_of[picture], session.label_of[picture]
    return found


def compare(data: Path, weights: str, seeds: range, most: int, into: Path) -> None:
    """Print the table of one data set."""
    root = merge_splits(data, into)
    pool = load_pool(find_pictures(root), weights=weights, run=None, train=TrainSpec())
    names = [paths[0].split("/")[-2] for paths in pool.paths]
    known = sorted({*names})
    y = torch.tensor([known.index(name) for name in names])
    scores: dict[str, dict[int, list[float]]] = {
        "label": defaultdict(list),
        "random": defaultdict(list),
    }
    intervals: list[tuple[int, bool, float]] = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            found, more = simulate(pool.z, y, seed, most, Path(folder))
        intervals += more
        for arm, values in found.items():
            for n, value in values.items():
                scores[arm][n].append(100 * value)
    print(
        f"\n{data.name}: {len(names)} photos, {len(known)} classes, seeds {seeds[0]} to {seeds[-1]}, accuracy in %"
    )
    print("| answers | " + " | ".join(map(str, scores["label"])) + " |")
    for arm, columns in scores.items():
        print(f"| {arm} | " + " | ".join(mean_deviation(v) for v in columns.values()) + " |")
    for size in sorted({size for size, _, _ in intervals}):
        held = [(inside, width) for one, inside, width in intervals if one == size]
        print(
            f"audit of {size}: {np.mean([i for i, _ in held]):.1%} of {len(held)} intervals contain "
            f"the accuracy, mean width {100 * np.mean([w for _, w in held]):.0f} points",
            flush=True,
        )


def seconds(pictures: int, answers: int, into: Path) -> None:
    """Print the time to the next question."""
    torch.manual_seed(0)
    y = torch.randint(10, (pictures,))
    z = F.normalize(torch.randn(10, 768)[y] + 3 * torch.randn(pictures, 768), dim=1)
    begin = time.perf_counter()
    with listen("127.0.0.1", 0) as bound, AnswerFile(into / "labels.csv") as file:
        session = Session(make_pool(z, 0), file, prefix="")
        ready = time.perf_counter() - begin
        app = make_label_app(session, access_for("127.0.0.1", []), key="t")
        server = make_server(app, ServeLimits())
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        client = http.client.HTTPConnection("127.0.0.1", bound.getsockname()[1], timeout=60)
        client.request("GET", "/state?key=t")
        state, taken = json.loads(client.getresponse().read()), []
        for _ in range(answers):
            picture = state["question"]["picture"]
            body = json.dumps({"picture": picture, "label": f"class {int(y[picture])}"})
            begin = time.perf_counter()
            client.request("POST", "/answer?key=t", body, {"content-type": "application/json"})
            state = json.loads(client.getresponse().read())
            taken.append(1000 * (time.perf_counter() - begin))
        server.should_exit = True
        thread.join()
    print(
        f"{pictures:,} pictures, 768 dimensions, {answers} answers: ready after {ready:.1f} s; next "
        f"question after {np.median(taken):.0f} ms (median), {np.quantile(taken, 0.95):.0f} ms (95%), "
        f"{max(taken):.0f} ms (most)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", default="demo")
    parser.add_argument("--data", type=Path, nargs="+", default=[])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=ANSWERS[-1], help="number of answers")
    parser.add_argument("--seconds", action="store_true")
    parser.add_argument("--pictures", type=int, default=10_000)
    parser.add_argument("--answers", type=int, default=300)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        into = Path(temporary)
        for data in args.data:
            compare(
                data,
                args.weights,
                range(args.first_seed, args.first_seed + args.seeds),
                args.most,
                into,
            )
        if args.seconds:
            seconds(args.pictures, args.answers, into)


if __name__ == "__main__":
    main()
