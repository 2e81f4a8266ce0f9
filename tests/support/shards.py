"""Tar shards of a folder's images, and a web server on loopback that has them."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from tests.data.download.test_archive import plain, tar_bytes
from tests.data.download.test_fetch import Handler, Site
from tests.support.serving import loopback


def shard(samples: Mapping[str, Mapping[str, bytes]]) -> bytes:
    """A tar file of samples: the members of each key by their components, e.g. `jpg`."""
    return tar_bytes(
        *(plain(f"{key}.{name}", data) for key, m in samples.items() for name, data in m.items())
    )


def shards_of(folder: Path, *, shards: int = 4) -> list[bytes]:
    """The images of a folder of classes as shards, in the order of the folder."""
    samples = [
        (f"{path.parent.name}{path.stem}", {"png": path.read_bytes(), "cls": label(path)})
        for path in sorted(folder.rglob("*.png"))
    ]
    size = -(-len(samples) // shards)
    return [shard(dict(samples[i * size : (i + 1) * size])) for i in range(shards)]


def label(path: Path) -> bytes:
    return path.parent.name.encode() + b"\n"


def write_shards(folder: Path, contents: Sequence[bytes], name: str = "part") -> str:
    """Write shards, and return the value of `--data` for them."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, content in enumerate(contents):
        (folder / f"{name}-{number:02}.tar").write_bytes(content)
    return f"wds:{folder}/{name}-{{00..{len(contents) - 1:02}}}.tar"


def json_text(**fields: object) -> bytes:
    return json.dumps(fields).encode()


class LoggingHandler(Handler):
    """A handler that notes the path and the range of each request."""

    requests: ClassVar[list[str]]

    def do_GET(self) -> None:
        self.requests.append(f"{self.path} {self.headers.get('Range', '')}".strip())
        self.path = self.path.partition("?")[0]
        super().do_GET()


@contextlib.contextmanager
def serving_shards(contents: Sequence[bytes]) -> Iterator[tuple[Site, list[str]]]:
    """Serve shards as /part-00.tar and so on; yield the site and the requests it was sent."""
    site = Site({f"/part-{number:02}.tar": data for number, data in enumerate(contents)})
    asked: list[str] = []
    handler = type("H", (LoggingHandler,), {"site": site, "requests": asked})
    with loopback(handler) as url:
        site.url = f"wds:{url}/part-{{00..{len(contents) - 1:02}}}.tar"
        yield site, asked
