"""Notes on predictions: from a server with --threshold, and on its page, run by Node."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.reference_run import FOREIGN, make_reference_run
from tests.support.serving import Client, command_serving, shown_by
from vitft.models import VisionTransformer

PAGE = Path(__file__).with_name("page.mjs")


@pytest.fixture
def flagging(tmp_path: Path, tiny_vit: VisionTransformer) -> Iterator[Client]:
    """The command `vitft serve --threshold 0.99` for a run that flags foreign images."""
    run = make_reference_run(tmp_path, tiny_vit)
    options = ["--run", str(run), "--threshold", "0.99", "--device", "cpu"]
    with command_serving("serve", *options, stderr=None) as (client, *_):
        yield client


def test_the_page_shows_the_notes_on_each_image(flagging: Client, tmp_path: Path) -> None:
    files = [tmp_path / "0.png", tmp_path / "foreign.png"]

    page = shown_by(PAGE, f"http://127.0.0.1:{flagging.port}/", *files)

    assert page["notes"] == [["not sure"], [f"not sure; {FOREIGN}; blank: one uniform colour"]]
    assert page["known"] == "Run run distinguishes 3 classes."
