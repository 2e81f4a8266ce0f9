"""The page of `export --html`: its engine in Node, its contents, and the page in Chromium."""

import base64
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.conftest import tiny
from tests.models.test_numpy_vit import KINDS, model_of
from tests.support.children import ended
from tests.support.chromium import Chromium
from tests.support.export_run import make_run
from tests.support.reference_run import FOREIGN, make_reference_run
from vitft.cli.main import main
from vitft.data import EvalTransform
from vitft.export import Exported, export_run, html_page, plan_export, read_page
from vitft.features import Reference
from vitft.models import Card, NumpyModel, VisionTransformer, normalise
from vitft.report import digest_source
from vitft.system import visible

HOSTILE = ("</script><script>alert(1)</script>", "<img src=x onerror=alert(2)>", "{script}\u202e\\")
"""Class names that mean something in HTML, in a template, or to the direction of text."""
NODE, CHROMIUM = shutil.which("node"), shutil.which("chromium")
needs_node = pytest.mark.skipif(NODE is None, reason="node is not installed")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

# Runs the function `run` of the code in stdin, which follows the engine, and prints its result.
HARNESS = """
globalThis.self = {};
globalThis.OffscreenCanvas = class {  // gives back the pixels that were put into it
  constructor(width, height) { Object.assign(this, { width, height }); }
  getContext() {
    let kept;
    return {
      createImageData: (width, height) => ({ data: new Uint8ClampedArray(4 * width * height) }),
      putImageData: (image) => { kept = image; },
      getImageData: () => kept,
    };
  }
};
const request = JSON.parse(require("fs").readFileSync(0, "utf8"));
const run = new Function(request.engine + ";" + request.code);
Promise.resolve(run(request)).catch((error) => ({ problem: error.message }))
  .then((answer) => console.log(JSON.stringify(answer)));
"""


def in_node(code: str, page: str, **request: Any) -> Any:
    """Return what code returns that follows the engine of a page; `request` is its argument."""
    (engine,) = re.findall('<script id="engine" type="text/plain">(.*?)</script>', page, re.DOTALL)
    done = ended(
        [str(NODE), "-e", HARNESS],
        input=json.dumps({"engine": engine, "code": f"return ({code})(arguments[0])", **request}),
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def weights_of(page: str) -> bytes:
    """Return the weights of a small page."""
    (part,) = re.findall('<script class="weights"[^>]*>(.*?)</script>', page)
    return base64.b64decode(part)


def parts_of(data: bytes) -> list[str]:
    """Return bytes as base64 text in two parts, as a large page contains them."""
    middle = len(data) // 6 * 3
    return [base64.b64encode(part).decode() for part in (data[:middle], data[middle:])]


# the engine --------------------------------------------------------------------------------------

LATER = [
    pytest.param({"activation": "gelu_tanh"}, id="GELU with tanh"),
    pytest.param({"activation": "quick_gelu", "embed_norm": True}, id="CLIP"),
    pytest.param({"pool": "mean", "class_token": False, "norm_before_pool": True}, id="SigLIP"),
    pytest.param({"in_channels": 1}, id="grey"),
    pytest.param({"width": 30, "heads": 5}, id="a width that is no multiple of four"),
]
CLASSIFY = """async ({ meta, parts, views }) => {
  const warning = load(meta, parts);
  return { warning, rows: views.map((view) => {
    const { feature, intermediate, logits } = scores(Uint8Array.from(view));
    const score = reference ? scoreOf(feature, intermediate, reference) : null;
    const [first, second] = [feature, intermediate || []].map((values) => [...values]);
    return { feature: first, intermediate: second, logits: [...logits], score };
  }) };
}"""


@needs_node
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("settings", [*KINDS, *LATER])
def test_the_engine_computes_what_numpy_computes(settings: dict[str, Any], bits: Any) -> None:
    model = model_of(**settings)
    config, size = model.config, model.config.feature_size
    channels = config.in_channels
    transform = EvalTransform(
        image_size=(24, 32), mean=(0.4, 0.5, 0.6)[:channels], std=(0.2, 0.25, 0.3)[:channels]
    )
    card = Card(architecture=config, transform=transform, classes=tuple("abcde"))
    noise = np.random.default_rng(0).normal(size=(3, size, size)).astype(np.float32)
    reference = Reference(centre=noise[0, 0], means=noise[1, :4], within=noise[2], limit=1.0)
    width, blocks = config.width, config.depth - config.read_blocks
    if blocks:
        more = np.random.default_rng(2).normal(size=(3, width, width)).astype(np.float32)
        intermediate = Reference(centre=more[0, 0], means=more[1, :4], within=more[2])
        reference = replace(reference, intermediate_blocks=blocks, intermediate=intermediate)
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    views = np.random.default_rng(1).integers(0, 256, (2, 24, 32, channels), np.uint8)

    page = html_page(card, weights, reference, bits, {})
    meta, tensors = read_page(page)
    parts = parts_of(weights_of(page))
    found = in_node(CLASSIFY, page, meta=meta, parts=parts, views=views.reshape(2, -1).tolist())

    twin = NumpyModel(config, tensors)
    both = twin.features(normalise(views, transform), blocks)
    features, inner = both[:, :size], both[:, size:]
    logits = twin.classify(features)
    arrays = {n: tensors.get(f"reference.{n}", value) for n, value in reference.arrays().items()}
    stored = Reference.from_arrays(arrays)
    assert found["warning"] == ""
    for row, feature, other, logit, score in zip(
        found["rows"], features, inner, logits, stored.scores(features, inner), strict=True
    ):
        assert row["feature"] == pytest.approx(feature.tolist(), abs=1e-5)
        assert row["intermediate"] == pytest.approx(other.tolist(), abs=1e-5)
        assert row["logits"] == pytest.approx(logit.tolist(), abs=2e-5)
        assert row["score"] == pytest.approx(score, rel=1e-4)


def small_model() -> tuple[Card, dict[str, Any]]:
    """Return the card and the weights of a small model."""
    model, transform = model_of(), EvalTransform(image_size=(24, 32))
    card = Card(architecture=model.config, transform=transform, classes=tuple("abcde"))
    return card, {name: tensor.numpy() for name, tensor in model.state_dict().items()}


@needs_node
def test_a_page_whose_weights_were_changed_fails_its_self_test() -> None:
    card, weights = small_model()
    page = html_page(card, weights, None, 16, {})
    other = html_page(card, {**weights, "head.weight": -weights["head.weight"]}, None, 16, {})

    meta, _ = read_page(page)
    changed, short = (
        in_node(CLASSIFY, page, meta=meta, parts=parts_of(data), views=[])
        for data in (weights_of(other), weights_of(page)[:-4])
    )

    assert "the self-test failed" in changed["problem"]
    assert short["problem"]


@needs_node
def test_resizing_equals_pillow_byte_for_byte(done: Exported) -> None:
    random, cases, expected = np.random.default_rng(1), list[dict[str, Any]](), list[Any]()
    sides = [
        (60, 40), (20, 23), (31, 20), (32, 32), (35, 35), (17, 190), (900, 7), (6, 700), (64, 48),
        (36, 32), (100, 35), (35, 300),
    ]  # fmt: skip
    for i in range(72):
        channels = 1 if i % 4 == 3 else 3
        transform = EvalTransform(
            image_size=((32, 32), (24, 40))[i // 12 % 2],
            crop=(0.9, 1.0, 0.875)[i % 3],
            interpolation=("bicubic", "bilinear", "lanczos")[i // 24],
            fit=("crop", "squash", "pad")[(i % 5 == 0) + 2 * (i % 5 == 1)],
            mean=(0.1, 0.5, 0.9)[:channels],
            std=(0.5,) * channels,
        )
        width, height = sides[i % len(sides)]
        image = random.integers(0, 2, (height, width, 3), dtype=np.uint8) * 255  # overshoots
        if i % 2:
            image = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
        fields = {"width": width, "height": height, "data": image.ravel().tolist()}
        cases.append({**fields, "transform": transform.to_json()})
        expected.append(transform.pixels(Image.fromarray(image))[..., :channels].ravel().tolist())

    found = in_node(
        """({ cases }) => cases.map(({ width, height, data, transform }) => {
          const image = { width, height, data: Uint8Array.from(data), channels: 3 };
          return [...viewOf(image, transform).data];
        })""",
        (done.folder / "index.html").read_text(),
        cases=cases,
    )

    assert [
        i for i, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1]
    ] == []


# the export --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The page of a run with hostile class names."""
    root = tmp_path_factory.mktemp("made")
    run = make_run(root, classes=HOSTILE)
    return export_run(str(run), plan_export(["html"], str(root / "page")))


class Elements(HTMLParser):
    """The start tags of a page, and the text of its scripts and style sheets."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[dict[str, str | None], str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] in ("script", "style") and data.strip():
            self.texts.append((self.tags[-1][1], data))


def test_hostile_names_are_only_in_the_json_of_the_page(done: Exported) -> None:
    page = (done.folder / "index.html").read_text()
    found = Elements()
    found.feed(page)

    scripts = [attributes for tag, attributes in found.tags if tag == "script"]
    run = [text for attributes, text in found.texts if attributes == {}]
    assert [attributes for attributes in scripts if "type" not in attributes] == [{}]  # our own
    assert {a["type"] for a in scripts if a} == {
        "application/json", "text/plain", "application/octet-stream",
    }  # fmt: skip
    assert not [name for name in HOSTILE if name in page]
    assert not any(key.startswith("on") for _, attributes in found.tags for key in attributes)
    assert read_page(page)[0]["classes"] == [*HOSTILE]
    policy = next(
        a["content"] or "" for tag, a in found.tags if tag == "meta" and "http-equiv" in a
    )
    assert {digest_source(text) for text in run} == {*re.findall(r"'sha256-[^']*'", policy)}
    assert "default-src 'none'" in policy
    assert "connect-src 'none'" in policy
    assert "unsafe" not in policy


def test_multiply_adds_of_an_image_are_counted(tmp_path: Path) -> None:
    kept = make_run(tmp_path, config=tiny(3, image_size=(128, 128)))  # 1,025 tokens, 32 wide

    done = export_run(str(kept), plan_export(["html"], str(tmp_path / "page")))

    products = 2 * (12 * 32**2 * 1025 + 2 * 1025**2 * 32)
    assert f"an image takes {products / 1e9:.1f} billion multiply-adds" in done.notes[1]


def test_the_page_names_no_address_and_no_path(done: Exported) -> None:
    page = (done.folder / "index.html").read_text()

    assert {*re.findall(r"https?://[^\s'\"]*", page)} == {"http://www.w3.org/2000/svg"}
    assert str(done.folder.parent) not in page


# the page in a browser ---------------------------------------------------------------------------

SHOWN = """Array.from(document.querySelectorAll(".card"), (card) => ({
  name: card.querySelector("h2").textContent,
  classes: Array.from(card.querySelectorAll(".name"), (name) => name.textContent),
  answer: JSON.parse(card.dataset.prediction || "null"),
  notes: Array.from(card.querySelectorAll(".notes, .problem"), (note) => note.textContent),
}))"""


def draw(folder: Path) -> list[Path]:
    """Images that a browser and vitft must open alike: turned by EXIF, transparent and CMYK."""
    random = np.random.default_rng(2)
    coarse = Image.fromarray(random.integers(0, 256, (5, 7, 4), dtype=np.uint8), "RGBA")
    image = coarse.resize((70, 50), Image.Resampling.BICUBIC)
    turned = Image.Exif()
    turned[0x0112] = 6
    image.convert("RGB").save(folder / "turned.jpg", exif=turned, quality=95)
    image.save(folder / "transparent.png")
    image.convert("CMYK").save(folder / "cmyk.jpg", quality=95)
    Image.fromarray(random.integers(0, 65536, (40, 40)).astype(np.uint16)).save(folder / "wide.png")
    (folder / "text.png").write_text("not an image")
    return [folder / name for name in ("turned.jpg", "transparent.png", "cmyk.jpg", "wide.png")]


@needs_chromium
def test_a_browser_without_a_network_answers_as_predict_does(
    tmp_path: Path, tiny_vit: VisionTransformer, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_reference_run(tmp_path, tiny_vit, HOSTILE)
    folder = export_run(str(run), plan_export(["html"], str(tmp_path / "page"))).folder
    images = [*(tmp_path / f"{name}.png" for name in ("0", "1", "foreign")), *draw(tmp_path)]
    options = ["--run", str(run), "--top-k", "3", "--format", "jsonl"]
    assert main(["predict", *map(str, images), *options]) == 0
    expected = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    with Chromium(str(CHROMIUM), tmp_path / "profile", folder / "index.html") as browser:
        browser.choose("#files", *images, tmp_path / "text.png")
        browser.wait_for("document.querySelectorAll('#cards .classes, #cards .problem').length > 7")
        shown = browser.evaluate(SHOWN)
        foreign_elements = browser.evaluate("document.querySelectorAll('[onerror]').length")
        complaints = browser.complaints()
        blocked = browser.evaluate("fetch('https://example.com').then(() => false, () => true)")

    assert complaints == []  # no violation of the content security policy, no error
    assert blocked
    assert foreign_elements == 0
    *shown, text = shown
    assert text["notes"] == ["this browser cannot open the file as an image"]
    for row, want in zip(shown, expected, strict=True):
        assert row["classes"] == [visible(each["class"]) for each in want["classes"]], row["name"]
        found = {each["class"]: each["probability"] for each in row["answer"]["classes"]}
        for each in want["classes"]:
            assert found[each["class"]] == pytest.approx(each["probability"], abs=0.01), row["name"]
        assert (FOREIGN in "".join(row["notes"])) == (FOREIGN in want.get("notes", [])), row["name"]
    assert "16-bit image, which the browser reduced to 8 bits" in shown[-1]["notes"][0]


def test_a_page_contains_valid_json_that_cannot_end_its_element() -> None:
    card, weights = small_model()

    page = html_page(card, weights, None, 16, {"title": "</script><script>"})

    assert page.count("</script><script>") == 0
    assert read_page(page)[0]["title"] == "</script><script>"
    with pytest.raises(ValueError, match="not JSON compliant"):
        html_page(card, weights, None, 16, {"title": float("nan")})
