"""Metrics of `vitft serve` for Prometheus."""

import logging
import re
import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from tests.serve.test_serve import make_predictor, png
from tests.support.limits import HANG_S
from tests.support.serving import Client, serving
from vitft.metrics import Results
from vitft.predict import Postprocess
from vitft.serve import request_log

NAME = 'a "run"\\\n\udcff'
LINE = re.compile(r'vitft_\w+(\{\w+="(?:[^"\\\n]|\\.)*"(,\w+="(?:[^"\\\n]|\\.)*")*\})? [\d.e+-]+')


@pytest.fixture
def client() -> Iterator[Client]:
    predictor = make_predictor()
    accuracy = {"value": 0.9, "interval": [0.8, 0.95], "images": 40, "kind": "validation"}
    run = Results.from_json({"name": NAME, "headline": accuracy})
    with serving(predictor, postprocess=Postprocess(outputs=predictor.outputs, run=run)) as found:
        yield found


def metrics(client: Client) -> dict[str, float]:
    """Return the values by metric, with labels, after checking the format of every line."""
    answer = client.ask("GET", "/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = answer.body.decode().removesuffix("\n").split("\n")
    values = [line for line in lines if not line.startswith(("# HELP vitft_", "# TYPE vitft_"))]
    assert all(LINE.fullmatch(line) for line in values)
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in values)}


def test_requests_are_counted_by_path_and_status(client: Client) -> None:
    client.form("/predict", ("a.png", png(0)), ("b.png", png(1)))
    client.post("/predict?topk=1", png(0))
    client.ask("GET", "/any/path?x=1")
    client.ask("GET", "/", host="evil.example")

    found = metrics(client)

    counts = {name: n for name, n in found.items() if name.startswith("vitft_requests_total")}
    assert counts == {
        'vitft_requests_total{path="/",status="421"}': 1,
        'vitft_requests_total{path="/predict",status="200"}': 1,
        'vitft_requests_total{path="/predict",status="422"}': 1,
        'vitft_requests_total{path="other",status="404"}': 1,
    }
    assert found["vitft_images_total"] == 2
    assert 0.5 < found["vitft_expected_correct_total"] <= 2
    assert "vitft_unlike_images_total" not in found  # there is no reference
    assert 1 <= found["vitft_batches_total"] <= 2
    assert (found["vitft_queue_images"], found["vitft_queue_limit"]) == (0, 64)
    bounds = {*re.findall('le="(.*?)"', " ".join(found))} - {"+Inf"}
    assert {*map(float, bounds)} == {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30}
    again = metrics(client)
    assert again['vitft_requests_total{path="/metrics",status="200"}'] == 1


def test_each_request_has_a_line_in_the_access_log(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    def logged() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.name == request_log.name]

    assert not request_log.isEnabledFor(logging.DEBUG)
    with caplog.at_level(logging.DEBUG, request_log.name):
        client.post("/predict?top_k=1", png(0))
        client.ask("GET", "/any/path?key=secret")
        client.ask("GET", "/", host="evil.example")
        deadline = time.monotonic() + HANG_S
        while len(logged()) < 3 and time.monotonic() < deadline:  # lines follow their answers
            time.sleep(0.01)

    lines = logged()
    found = [re.fullmatch(r"(\S+) 127\.0\.0\.1 (\S+ \S+ \d+) ([\d.]+) ms", line) for line in lines]
    assert [one[2] for one in found if one] == [
        "POST /predict 200",
        "GET /any/path 404",
        "GET / 421",
    ]
    for one in found:
        assert one is not None
        assert datetime.fromisoformat(one[1]).tzinfo is not None
        assert float(one[3]) > 0
