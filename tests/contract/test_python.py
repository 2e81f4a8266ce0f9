"""Images and numbers as Python programs have them, given to `vitft.load` and `vitft.finetune`."""

import base64
import gzip
import io
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitft
from tests.conftest import tiny_home
from vitft.data import open_image

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""Programs often leave the closing of a file to Python."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> vitft.Trained:
    home = tiny_home(tmp_path_factory.mktemp("python"))
    vitft.finetune(
        data=home / "data", weights=home / "w.safetensors", out=home / "run", cache="none"
    )
    return vitft.load(home / "run", device="cpu")


@pytest.fixture
def photo(image_folder: Path) -> Path:
    return image_folder / "red" / "000.png"


def values(photo: Path) -> Any:
    return np.array(open_image(photo))


class Table(dict[str, Any]):
    """A table with columns, as in pandas."""

    @property
    def columns(self) -> list[str]:
        return [*self]

    def to_csv(self, path: str, *, index: bool) -> None:
        assert not index
        rows = [self.columns, *zip(*self.values(), strict=True)]
        Path(path).write_text("".join(f"{','.join(row)}\n" for row in rows))


def written(photo: Path) -> io.BytesIO:
    buffer = io.BytesIO()
    open_image(photo).save(buffer, "PNG")
    return buffer  # at its end


def spooled(photo: Path) -> Any:
    file = tempfile.SpooledTemporaryFile()  # noqa: SIM115 - what FastAPI gives
    file.write(photo.read_bytes())
    return file


def zipped(photo: Path) -> Any:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.write(photo, "a.png")
    return zipfile.ZipFile(buffer).open("a.png")


@pytest.mark.parametrize(
    "image",
    [
        pytest.param(lambda p: io.BytesIO(p.read_bytes()), id="BytesIO"),
        pytest.param(written, id="a buffer that was just written"),
        pytest.param(lambda p: p.open("rb"), id="an open file"),
        pytest.param(spooled, id="UploadFile.file"),
        pytest.param(lambda p: SimpleNamespace(file=p.open("rb")), id="UploadFile"),
        pytest.param(zipped, id="a member of an archive"),
        pytest.param(
            lambda p: gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(p.read_bytes()))), id="gzip"
        ),
        pytest.param(lambda p: bytearray(p.read_bytes()), id="bytearray"),
        pytest.param(lambda p: memoryview(p.read_bytes()), id="memoryview"),
        pytest.param(lambda p: np.str_(p), id="a string of NumPy"),
        pytest.param(lambda p: np.array(str(p)), id="an array with one string"),
        pytest.param(lambda p: np.array([str(p)]), id="an array of strings"),
        pytest.param(lambda p: np.array([p], dtype=object), id="an array of paths"),
        pytest.param(lambda p: [p.open("rb")], id="a list of files"),
        pytest.param(lambda p: (bytearray(p.read_bytes()),), id="a tuple"),
        pytest.param(str, id="a string"),
        pytest.param(lambda p: p.read_bytes(), id="bytes"),
        pytest.param(open_image, id="an image of Pillow"),
        pytest.param(values, id="an array (H, W, 3)"),
        pytest.param(lambda p: torch.from_numpy(values(p)), id="a tensor (H, W, 3)"),
        pytest.param(
            lambda p: torch.from_numpy(values(p)).permute(2, 0, 1), id="a tensor (3, H, W)"
        ),
        pytest.param(
            lambda p: (torch.from_numpy(values(p)).double() / 255).requires_grad_(),
            id="part of a computation",
        ),
    ],
)
def test_one_image_in_any_form_is_one_row(
    model: vitft.Trained, photo: Path, image: Callable[[Path], Any]
) -> None:
    (expected,) = model.predict(photo)

    (found,) = model.predict(image(photo))

    assert (found.classes, found.probabilities) == (expected.classes, expected.probabilities)
    np.testing.assert_array_equal(model.features(image(photo)), model.features(photo))


def test_an_image_of_pillow_has_the_notes_of_its_file(model: vitft.Trained, tmp_path: Path) -> None:
    dark = np.arange(1024, dtype=np.uint16).reshape(32, 32)
    Image.fromarray(dark).save(file := tmp_path / "dark.png")

    opened, read = (model.predict(one)[0].notes for one in (Image.open(file), file))
    assert opened == read
    assert "nearly black" in str(read)


def test_a_batch_of_tensors_is_as_many_rows(model: vitft.Trained, photo: Path) -> None:
    batch = torch.from_numpy(np.stack([values(photo)] * 2)).permute(0, 3, 1, 2) / 255

    assert model.predict(batch, top_k=3)[1].probabilities == pytest.approx(
        model.predict(photo, top_k=3)[0].probabilities, abs=1e-6
    )


def test_a_table_and_a_dictionary_are_refused_with_what_to_pass(
    model: vitft.Trained, photo: Path
) -> None:
    paths = [str(photo)]
    for images in (Table(label=["red"], path=paths), {"path": paths}):
        with pytest.raises(vitft.VitftError) as caught:
            model.predict(images)

        assert caught.value.fix == 'pass its images, e.g. list(images["path"])'
        assert model.predict(list(images["path"]))[0].classes == ("red",)


def test_text_that_is_no_path_gets_a_row_that_says_what_it_is(
    model: vitft.Trained, photo: Path
) -> None:
    text = base64.b64encode(photo.read_bytes()).decode()
    url = f"data:image/png;base64,{text}"

    rows = model.predict([text, url, "https://x.org/a.jpg", "s3://photos/a.jpg"])

    for row, given in zip(rows[:2], (text, url), strict=True):
        assert row.path == str([text, url].index(given))  # not the text itself
        code = row.error.partition("pass the bytes, ")[2]
        image = eval(code, {"base64": base64, "text": given})
        assert model.predict(image)[0].classes == ("red",)
    assert "`vitft predict https://x.org/a.jpg`" in rows[2].error
    assert "an address: pass the bytes" in rows[3].error
    with pytest.raises(vitft.VitftError, match="text mode"):
        model.predict(photo.open(encoding="latin-1"))


def test_the_transform_prepares_images_for_a_dataset_of_torch(
    model: vitft.Trained, photo: Path
) -> None:
    image = open_image(photo)
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    turned, file = image.rotate(180), io.BytesIO()
    turned.save(file, "PNG", exif=exif)

    inputs = model.transform(image)

    assert (inputs.dtype, inputs.shape) == (torch.float32, (3, *model.transform.image_size))
    torch.testing.assert_close(model.transform(Image.open(file)), inputs)


@pytest.mark.parametrize(
    "arguments",
    [
        {"epochs": np.int64(1), "batch_size": np.int32(4)},
        {"epochs": 1, "lr": np.float32(0.01)},
        {"group_duplicates": np.bool_(True), "seed": torch.tensor(1)},
        {"image_size": np.array([16, 16])},
        {
            "image_size": (np.int64(16), np.int64(16)),
            "settings": {"data.val_rate": np.float64(0.3)},
        },
    ],
    ids=str,
)
def test_numbers_of_numpy_and_torch_are_settings(
    image_folder: Path, tiny_weights: Path, tmp_path: Path, arguments: dict[str, Any]
) -> None:
    result = vitft.finetune(
        data=image_folder, weights=tiny_weights, out=tmp_path / "run", cache="none", **arguments
    )

    assert result.status == "finished"


def test_a_number_that_is_no_integer_is_still_refused(image_folder: Path) -> None:
    with pytest.raises(vitft.VitftError, match=r"invalid optim.epochs=1.5"):
        vitft.finetune(data=image_folder, epochs=np.float64(1.5))  # type: ignore[arg-type]


def test_a_table_as_data_is_not_printed_and_its_fix_works(
    image_folder: Path, tiny_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = sorted(image_folder.rglob("*.png"))
    table = Table(path=[str(file) for file in files], label=[file.parent.name for file in files])

    with pytest.raises(vitft.VitftError) as caught:
        vitft.finetune(data=table)  # type: ignore[arg-type]

    assert "000.png" not in str(caught.value)
    code, name = 'data.to_csv("data.csv", index=False)', 'data="data.csv"'
    assert caught.value.fix == f"write a table with {code}, and pass {name}"
    eval(code, {"data": table})
    result = vitft.finetune(
        data="data.csv",
        weights=tiny_weights,
        out=tmp_path / "run",
        cache="none",
        settings={"data.root": str(image_folder)},
    )
    assert result.status == "finished"
