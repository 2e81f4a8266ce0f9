"""A Hugging Face dataset on a loopback hub, streamed by `datasets` in a process of its own."""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from tests.conftest import draw_folder
from tests.data.remote.test_hugging_face import write_parquet  # skips without `datasets`
from tests.support import hub_server
from tests.support.hub_server import HubHandler, HubServer, Repo

pytestmark = pytest.mark.filterwarnings("ignore")  # of `datasets` and what it imports
ROOT = Path(__file__).parents[3]
COPY = """
import hashlib, json, sys
from vitft.config.sections import DataSpec
from vitft.data.images import read_bytes
from vitft.data.copies import prepare_data
from vitft.data.scan import scan
folder = scan(prepare_data(sys.argv[1], DataSpec()))
paths = [f"{folder.root}/{file.path}" for file in folder.rows]
digests = [hashlib.sha256(read_bytes(path)).hexdigest() for path in paths]
print(json.dumps([folder.classes, digests]))
"""


class DatasetHandler(HubHandler):
    """The hub's answers about datasets: the commit, the files, and ranges of their content."""

    def respond(self) -> None:
        url = urlsplit(self.path)
        path = unquote(url.path).strip("/")
        match = re.fullmatch(r"api/datasets/([^/]+/[^/]+)/paths-info/(.+)", path)
        if match:
            repo = self.hub.repos[match[1]]
            body = self.body().decode()
            is_json = "json" in self.headers.get("Content-Type", "")
            asked = json.loads(body)["paths"] if is_json else parse_qs(body)["paths"]
            self.answer_json([self.listed(name, repo) for name in asked if name in repo.files])
            return
        if re.fullmatch(r"api/datasets/[^/]+/[^/]+/tree/[^/]+/.+", path):  # there are no folders
            self.refuse(404, "EntryNotFound")
            return
        self.path = self.path.replace("/api/datasets/", "/api/models/", 1)
        self.path = re.sub(r"^/datasets/", "/", self.path)
        super().respond()

    def resolve(self, name: str, repo: Repo, file: str) -> None:
        content, wanted = repo.files[file], self.headers.get("Range", "")
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted)
        if match is None:
            super().resolve(name, repo, file)
            return
        start, end = int(match[1]), min(int(match[2] or len(content)), len(content) - 1)
        span = {"Content-Range": f"bytes {start}-{end}/{len(content)}"}
        headers = {"X-Repo-Commit": repo.commit, "ETag": f'"{len(content)}"', **span}
        self.answer(206, headers, content[start : end + 1])


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[HubServer, Path]]:
    """A hub with a dataset of one Parquet file, and the folder of its images."""
    images = draw_folder(tmp_path / "data", per_class=8)
    parquet = write_parquet(tmp_path / "parquet", images)
    files = {path.name: path.read_bytes() for path in parquet.iterdir()}
    monkeypatch.setattr(hub_server, "HubHandler", DatasetHandler)
    with HubServer({"me/colours": Repo(files)}) as found:
        yield found, images


def copy(
    endpoint: str, home: Path, *, data: str = "hf:me/colours"
) -> "subprocess.CompletedProcess[str]":
    environment = {
        **{name: value for name, value in os.environ.items() if "proxy" not in name.lower()},
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "PYTHONPATH": str(ROOT),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1",
    }
    words = [sys.executable, "-W", "ignore", "-c", COPY, data]
    return subprocess.run(words, env=environment, text=True, capture_output=True, check=False)


def test_a_dataset_of_the_hub_is_copied_once(hub: tuple[HubServer, Path], tmp_path: Path) -> None:
    server, images = hub
    first = copy(server.endpoint, tmp_path / "home")
    assert first.returncode == 0, first.stderr
    asked = len(server.requests)
    again = copy("http://127.0.0.1:9", tmp_path / "home")  # nobody is there

    digests = [hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(images.rglob("*.png"))]
    assert json.loads(first.stdout) == [["blue", "green", "red"], digests]
    assert again.stdout == first.stdout
    assert len(server.requests) == asked
