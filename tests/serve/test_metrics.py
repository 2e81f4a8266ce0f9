"""Metrics of `vitft serve` for Prometheus."""

import itertools
import logging
import re
import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from tests.serve.test_serve import CLASSES, make_predictor, png
from tests.support.limits import HANG_S
from tests.support.serving import Client, serving
from vitft.predict.postprocess import Postprocess
from vitft.predict.run_info import RunInfo
from vitft.serve.batching import BatchQueue
from vitft.serve.limits import ServeLimits
from vitft.serve.metrics import LATENCY_BOUNDS, ServerMetrics, access_line, request_log

NAME = 'a "run"\\\n\udcff'
LINE = re.compile(r'vitft_\w+(\{\w+="(?:[^"\\\n]|\\.)*"(,\w+="(?:[^"\\\n]|\\.)*")*\})? [\d.e+-]+')


@pytest.fixture
def client() -> Iterator[Client]:
    predictor = make_predictor()
    run = RunInfo(name=NAME, classes=3, top1=None, images=0, trained_at=0.0, at_chance="")
    with serving(predictor, postprocess=Postprocess(classes=predictor.classes, run=run)) as found:
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
    assert 1 <= found["vitft_batches_total"] <= 2
    assert (found["vitft_queue_images"], found["vitft_queue_limit"]) == (0, 64)
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


def test_the_histogram_is_cumulative_and_ends_with_all_requests(client: Client) -> None:
    for seed in range(3):
        client.post("/predict", png(seed))

    found = metrics(client)

    edges = [*map(str, LATENCY_BOUNDS), "+Inf"]
    counts = [found[f'vitft_request_seconds_bucket{{path="/predict",le="{e}"}}'] for e in edges]
    assert counts == sorted(counts)
    assert counts[-1] == found['vitft_request_seconds_count{path="/predict"}'] == 3
    assert 0 < found['vitft_request_seconds_sum{path="/predict"}'] < 60


def test_durations_are_counted_up_to_and_including_each_bound() -> None:
    metrics = ServerMetrics(
        BatchQueue(make_predictor(), Postprocess(classes=CLASSES), ServeLimits())
    )
    metrics.paths = ("/predict",)

    for seconds in (0.01, 0.011, 0.05, 30.0, 31.0):
        metrics.add("/predict", 200, seconds)
    metrics.add("/secret", 404, 0.02)

    lines = metrics.text().splitlines()
    counts = [int(line.rpartition(" ")[2]) for line in lines if 'bucket{path="/predict"' in line]
    assert counts == [1, 2, 3, 3, 3, 3, 3, 3, 3, 3, 4, 5]
    assert 'vitft_request_seconds_sum{path="/predict"} 61.071000' in lines
    assert 'vitft_request_seconds_count{path="/predict"} 5' in lines
    assert 'vitft_request_seconds_sum{path="other"} 0.020000' in lines
    assert 'vitft_requests_total{path="other",status="404"} 1' in lines
    (started,) = (line for line in lines if line.startswith("vitft_start_time_seconds "))
    assert abs(float(started.split()[1]) - time.time()) < 60


def test_each_bound_of_the_histogram_is_two_to_three_times_the_one_before() -> None:
    steps = [b / a for a, b in itertools.pairwise(LATENCY_BOUNDS)]

    assert LATENCY_BOUNDS[0] == 0.01
    assert all(1.999 <= step <= 3.001 for step in steps)


def test_a_line_of_the_access_log_has_milliseconds_and_the_path_without_the_query() -> None:
    scope = {"method": "GET", "path": "/x", "query_string": b"key=secret", "client": ("::1", 9)}

    assert access_line(scope, 404, 0.12345).split(" ", 1)[1] == "::1 GET /x 404 123.5 ms"
    assert access_line({**scope, "client": None}, 200, 0).split(" ", 1)[1].startswith("- GET")


def test_any_name_of_a_run_is_one_escaped_label(client: Client) -> None:
    (info,) = (name for name in metrics(client) if name.startswith("vitft_info"))

    assert info.endswith(r',run="a \"run\"\\\n?"}')
