"""The folder for transformers.js, whose graphs take the pixels of an image of any size."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from PIL import Image

from tests.support.export_run import make_run
from tests.support.limits import HANG_S
from vitft.data import grey_levels, open_image
from vitft.export import Exported, export_run, plan_export
from vitft.predict import Predictor


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    return make_run(root, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))


@pytest.fixture(scope="module")
def done(run: Path) -> Exported:
    return export_run(str(run), plan_export(["transformers-js"], str(run.parent / "js")))


def test_the_files_are_where_transformers_js_looks_for_them(done: Exported) -> None:
    files = {str(p.relative_to(done.folder)) for p in done.folder.rglob("*") if p.is_file()}

    assert files == {
        "README.md",
        "config.json",
        "preprocessor_config.json",
        "onnx/model.onnx",
        "onnx/model_quantized.onnx",  # what pages load by default
    }
    config = json.loads((done.folder / "config.json").read_text())
    assert config["id2label"] == {"0": "blue", "1": "green", "2": "red"}
    assert config["problem_type"] == "single_label_classification"  # softmax


@pytest.mark.parametrize(("name", "limit"), [("model", 0.01), ("model_quantized", 0.1)])
def test_the_graphs_answer_as_the_run_does_for_images_of_any_size(
    run: Path, done: Exported, name: str, limit: float
) -> None:
    session = onnxruntime.InferenceSession(done.folder / "onnx" / f"{name}.onnx")
    predictor = Predictor.from_run(str(run), device="cpu")

    for path in sorted((run.parent / "photos").rglob("*.png")):
        image = open_image(path)
        # As transformers.js passes it: floats from 0 to 255, colours first.
        pixels = np.asarray(image, np.float32).transpose(2, 0, 1)[None]
        (theirs,) = session.run(["logits"], {"pixel_values": pixels})
        ours = predictor.scores(predictor.transform.pixels(image)[None]).logits
        assert np.abs(theirs - ours).max() < limit * np.abs(ours).max()


def program(folder: Path) -> str:
    """Return the program in a README, with line breaks as in the file."""
    return (folder / "README.md").read_text().split("```js\n")[1].split("```")[0]


NODE = shutil.which("node")
SHARP = """
export default (file) => {
  const image = {
    metadata: async () => ({ space: "grey16", channels: 1 }),
    rotate: () => image, toColourspace: () => image, raw: () => image,
    toBuffer: async () => ({
      data: Buffer.from(new Uint16Array([0, 120, 1000, 2010, 3900, 4095]).buffer),
      info: { width: 3, height: 2 },
    }),
  };
  return image;
};
"""
"""Module in place of sharp: every file holds six 16-bit grey values."""
LIBRARY = """
export const env = {};
export class RawImage { constructor(...fields) { this.fields = fields; } }
export const pipeline = async () => async (image) => {
  const [data, width, height, channels] = image.fields;
  return [{ label: [...data].join(" "), score: width * 100 + height * 10 + channels }];
};
"""


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_the_program_scales_16_bit_images_by_the_range_as_vitft_does(tmp_path: Path) -> None:
    kept = make_run(tmp_path, grey_range=(120.0, 3900.0))
    folder = export_run(str(kept), plan_export(["transformers-js"], str(tmp_path / "js"))).folder
    modules = tmp_path / "js" / "node_modules"
    for name, code in (("sharp", SHARP), ("@huggingface/transformers", LIBRARY)):
        (modules / name).mkdir(parents=True)
        (modules / name / "index.js").write_text(code)
        (modules / name / "package.json").write_text('{"type": "module", "main": "index.js"}')
    (folder / "program.mjs").write_text(program(folder))

    done = subprocess.run(
        [str(NODE), "program.mjs"], cwd=folder, capture_output=True, text=True, timeout=HANG_S
    )

    assert done.returncode == 0, done.stderr
    values = np.array([[0, 120, 1000], [2010, 3900, 4095]], np.uint16)
    greys = grey_levels(Image.fromarray(values), (120.0, 3900.0)).ravel()
    shown = " ".join(str(level) for level in greys for _ in range(3))
    assert json.loads(done.stdout) == [shown, 323]
