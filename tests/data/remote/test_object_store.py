"""Tar shards in an object store: moto's S3 on loopback."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import draw_folder
from tests.data.remote.test_copies import figures, split_by_digest, train
from tests.support.shards import shards_of
from vitft.config import DataSpec
from vitft.data import DownloadLimits, place_of, prepare_data
from vitft.system import DataError

pytest.importorskip("s3fs", reason="needs the extra `s3`")
server = pytest.importorskip("moto.server", reason="needs moto[server]")
pytestmark = pytest.mark.filterwarnings("ignore")  # of botocore and moto

DATA = "wds:s3://photos/set/part-{00..03}.tar"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of images whose shards are in a bucket."""
    import boto3
    import s3fs

    found = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    found.start()
    host, port = found.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    folder = draw_folder(tmp_path / "data", per_class=8)
    client = boto3.client("s3")
    client.create_bucket(Bucket="photos")
    for number, content in enumerate(shards_of(folder)):
        client.put_object(Bucket="photos", Key=f"set/part-{number:02}.tar", Body=content)
    s3fs.S3FileSystem.clear_instance_cache()
    yield folder
    found.stop()


def test_shards_in_a_bucket_are_the_folder_they_were_made_of(
    store: Path, tmp_path: Path, tiny_weights: Path
) -> None:
    train(str(store), tiny_weights, tmp_path / "folder")
    train(DATA, tiny_weights, tmp_path / "s3")

    assert split_by_digest(tmp_path / "s3") == split_by_digest(tmp_path / "folder")
    assert figures(tmp_path / "s3") == figures(tmp_path / "folder")


def test_a_broken_download_is_continued(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import s3fs

    assert store.is_dir()
    monkeypatch.setattr("vitft.data.web.PIECE", 1000)
    starts: list[tuple[str, int]] = []
    cat_file = s3fs.S3FileSystem.cat_file

    def failing(self: object, path: str, start: int, end: int) -> bytes:
        starts.append((path[-6:], start))
        if len(starts) == 3:
            raise OSError("connection lost")
        return bytes(cat_file(self, path, start=start, end=end))

    monkeypatch.setattr(s3fs.S3FileSystem, "cat_file", failing)
    prepare_data(DATA, DataSpec(), DownloadLimits(wait_s=0.01))

    assert starts[:4] == [("00.tar", 0), ("00.tar", 1000), ("00.tar", 2000), ("00.tar", 2000)]
    assert len({*starts}) == len(starts) - 1
    place = place_of(DATA)
    assert place is not None
    copies = [(place.folder / "shards" / f"part-0{i}.tar").read_bytes() for i in range(4)]
    assert copies == shards_of(store)


def test_a_missing_object_is_named(store: Path) -> None:
    assert store.is_dir()
    with pytest.raises(DataError, match=r"cannot fetch s3://photos/set/part-04.tar: the file does"):
        prepare_data(DATA.replace("03", "04"), DataSpec())
