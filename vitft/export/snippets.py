"""Programs that classify a photo, one per library, for the README of an exported folder.

Every program is complete, is run by the tests, and gives the same predictions as vitft. Files that
libraries open differently from vitft are converted first: photos rotated by EXIF, images with
transparency, and 16-bit grey images.
"""

import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from vitft.data.transforms import EvalTransform
from vitft.export.answers import (
    NUMPY_ANSWER,
    TORCH_ANSWER,
    answer_text,
    given_labels,
    pipeline_answer,
)
from vitft.system.text import shell_quote

OPEN = '''
def open_rgb(path):
    """Open an image as 8-bit RGB, rotated according to EXIF and composited on white."""
    image = ImageOps.exif_transpose(Image.open(path))
    WIDE
    if image.has_transparency_data:
        layers = image.convert("RGBA")
        image = Image.new("RGB", image.size, "white")
        image.paste(layers, mask=layers.getchannel("A"))
    return image.convert("RGB")
'''
UPPER_BITS = """
if image.mode.startswith("I"):  # 16-bit grey: keep the upper 8 bits
    values, transparent = np.asarray(image), image.info.get("transparency")
    greys = (values.clip(0, 65535) >> 8).astype(np.uint8)
    image = Image.fromarray(np.where(values == transparent, 255, greys).astype(np.uint8))
"""
RANGE = """
if image.mode == "F" or image.mode.startswith("I"):  # scale the training range to 0..255
    low, high = {low!r}, {high!r}
    source, transparent = np.asarray(image), image.info.get("transparency")
    values = np.nan_to_num(source - low).clip(0, high - low)
    greys = np.rint(values * (255 / (high - low)))
    image = Image.fromarray(np.where(source == transparent, 255, greys).astype(np.uint8))
"""
"""Code that converts grey images with more than 8 bits for a model with a grey range.

For other models, `UPPER_BITS` is used.
"""
OPENED = "image = ImageOps.exif_transpose(Image.open(path))"
OPENED_WITH_RANGE = """image = Image.open(path)
    if image.mode in ("RGB", "RGBA") and ";16" in str(image.tile):
        raise ValueError("16-bit colour can only be opened by vitft itself")
    image = ImageOps.exif_transpose(image)"""


JS_RANGE = """
  const {{ space, channels }} = await sharp(file).metadata();
  if (space === "rgb16") throw new Error("16-bit colour can only be opened by vitft itself");
  if (space === "grey16" && channels === 1) {{  // scale the training range to 0..255
    const [low, high] = [{low!r}, {high!r}];
    const scale = Math.fround(255 / (high - low));
    const grey = sharp(file, {{ ignoreIcc: true }}).rotate().toColourspace("grey16");
    const raw = grey.raw({{ depth: "ushort" }});
    const {{ data, info }} = await raw.toBuffer({{ resolveWithObject: true }});
    const values = new Uint16Array(new Uint8Array(data).buffer);
    const levels = new Uint8ClampedArray(3 * values.length);  // rounds and clips
    values.forEach((v, i) => levels.fill(Math.fround((v - low) * scale), 3 * i, 3 * i + 3));
    return new RawImage(levels, info.width, info.height, 3);
  }}
"""
"""JavaScript equivalent of `RANGE` for 16-bit grey; sharp clips floating-point images."""
JS_CMYK = """
  if ((await sharp(file).metadata()).space === "cmyk") {  // convert without a colour profile
    const cmyk = sharp(file, { ignoreIcc: true }).rotate().pipelineColourspace("cmyk");
    const raw = cmyk.toColourspace("cmyk").raw();
    const { data, info } = await raw.toBuffer({ resolveWithObject: true });
    const levels = new Uint8ClampedArray(3 * info.width * info.height);
    levels.forEach((_, i) => {
      const at = 4 * Math.trunc(i / 3);
      levels[i] = (255 - data[at + (i % 3)]) * (255 - data[at + 3]) / 255;
    });
    return new RawImage(levels, info.width, info.height, 3);
  }
"""
"""Code that converts CMYK images to RGB with Pillow's formula; sharp would use a colour profile."""


class Snippet(NamedTuple):
    """A program for one library."""

    title: str
    install: str
    """Command that installs the requirements; empty if none is needed."""
    code: str
    """Program that classifies photo.jpg; it runs in the exported folder."""
    language: str = "python"

    def lines(self) -> list[str]:
        """Return the program as Markdown."""
        code = re.sub(r"\n{3,}", "\n\n\n", self.code.strip())
        install = [f"Install with `{self.install}`.", ""] if self.install else []
        return [f"### {self.title}", "", *install, f"```{self.language}", code, "```", ""]


def open_code(transform: EvalTransform) -> str:
    """Return the code of the function `open_rgb`, which opens an image as the transform expects."""
    code, wide = OPEN, UPPER_BITS
    if transform.grey_range:
        low, high = transform.grey_range
        code, wide = OPEN.replace(OPENED, OPENED_WITH_RANGE), RANGE.format(low=low, high=high)
    return code.replace("    WIDE\n", textwrap.indent(wide.lstrip(), "    "))


def command_line(run: str) -> Snippet:
    """Return the vitft command for a model that is given as a folder or as hf:OWNER/NAME."""
    code = f"vitft predict --run {shell_quote(run)} photo.jpg"
    return Snippet("vitft", "", code, "sh")


def timm_snippet(transform: EvalTransform, repo: str, thresholds: Sequence[float] = ()) -> Snippet:
    """Return a program for timm; `thresholds` is empty unless the model is multi-label."""
    source = f"hf-hub:{repo}" if repo else "local-dir:."
    answer = TORCH_ANSWER
    if thresholds:
        answer = given_labels("logits.sigmoid()[0].tolist()", thresholds)
    code = f'''
import numpy as np
import timm
import torch
from PIL import Image, ImageOps
from timm.data import create_transform, resolve_data_config

model = timm.create_model("{source}", pretrained=True).eval()
labels = model.pretrained_cfg["label_names"]
view = create_transform(**resolve_data_config(model.pretrained_cfg))

{open_code(transform)}

def classify(path):
    """{answer_text(thresholds)}"""
    with torch.inference_mode():
        logits = model(view(open_rgb(path){in_grey(transform)})[None])
{answer}


print(classify("photo.jpg"))
'''
    return Snippet("timm", "pip install timm", code)


def transformers_snippet(
    transform: EvalTransform, repo: str, thresholds: Mapping[str, float] | None = None
) -> Snippet:
    """Return a program for transformers; `thresholds` is empty unless the model is multi-label."""
    answer = pipeline_answer(in_grey(transform), thresholds)
    stated = f"thresholds = {dict(thresholds)!r}\n" if thresholds else ""
    model = repo or "."
    code = f'''
import numpy as np
from PIL import Image, ImageOps
from transformers import AutoImageProcessor, pipeline

view = AutoImageProcessor.from_pretrained("{model}", backend="pil")
classifier = pipeline("image-classification", "{model}", image_processor=view)
{stated}
{open_code(transform)}

def classify(path):
    """{answer_text(thresholds)}"""
{answer}


print(classify("photo.jpg"))
'''
    return Snippet("transformers", "pip install transformers timm torchvision", code)


def javascript_snippet(transform: EvalTransform, repo: str) -> Snippet:
    """Return a program for transformers.js in Node that opens a repository or the local folder."""
    wide = ""
    if transform.grey_range:
        low, high = transform.grey_range
        wide = JS_RANGE.format(low=low, high=high).rstrip()
    local = """
import path from "node:path";
import { env, pipeline, RawImage } from "@huggingface/transformers";
import sharp from "sharp";

env.allowRemoteModels = false;
env.localModelPath = path.dirname(process.cwd());
const model = path.basename(process.cwd());
"""
    remote = f"""
import {{ pipeline, RawImage }} from "@huggingface/transformers";
import sharp from "sharp";

const model = "{repo}";
"""
    code = f"""
{(remote if repo else local).strip()}
// With dtype q8, the model is a quarter of the size and its predictions differ slightly.
const classifier = await pipeline("image-classification", model, {{ dtype: "fp32" }});

// Open an image as 8-bit RGB, rotated according to EXIF and composited on white.
async function openRgb(file) {{{JS_CMYK.rstrip()}{wide}
  const upright = sharp(file, {{ ignoreIcc: true }}).rotate().flatten({{ background: "white" }});
  const rgb = upright.toColourspace("srgb").removeAlpha().raw();
  const {{ data, info }} = await rgb.toBuffer({{ resolveWithObject: true }});
  return new RawImage(new Uint8ClampedArray(data), info.width, info.height, info.channels);
}}

const [best] = await classifier(await openRgb("photo.jpg"), {{ top_k: 1 }});
console.log(JSON.stringify([best.label, best.score]));
"""
    return Snippet("transformers.js", "npm install @huggingface/transformers", code, "js")


class GraphInput(NamedTuple):
    """Kind of input that a graph accepts."""

    takes_bytes: bool = False
    """Whether the graph accepts bytes and normalises them itself."""
    any_size: bool = False
    """Whether the graph accepts images of any size and resizes them itself."""


def onnxruntime_snippet(
    transform: EvalTransform, takes: GraphInput, thresholds: Sequence[float] = ()
) -> Snippet:
    """Return a program for onnxruntime."""
    name = "image" if takes.any_size else "pixels"
    load = """
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
labels = json.loads(session.get_modelmeta().custom_metadata_map["vitft"])["classes"]
"""
    call = f'session.run(["logits"], {{"{name}": view(open_rgb(path))}})[0][0]'
    return Snippet(
        "onnxruntime",
        "pip install onnxruntime numpy pillow",
        graph_program(transform, takes, load, call, thresholds),
    )


def openvino_snippet(
    transform: EvalTransform, takes: GraphInput, thresholds: Sequence[float] = ()
) -> Snippet:
    """Return a program that runs the model with OpenVINO in float32."""
    load = """
import openvino

core = openvino.Core()
model = core.read_model("model.onnx")
labels = json.loads(model.get_rt_info(["framework", "vitft"]).astype(str))["classes"]
# Without the hint, some processors compute in 16 bits, which is faster but less exact.
compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
"""
    call = "compiled(view(open_rgb(path)))[0][0]"
    return Snippet(
        "OpenVINO",
        "pip install openvino numpy pillow",
        graph_program(transform, takes, load, call, thresholds),
    )


def torch_snippet(
    transform: EvalTransform, takes: GraphInput, thresholds: Sequence[float] = ()
) -> Snippet:
    """Return an example program that loads and runs a model exported with torch.export."""
    load = """
import torch

files = {"vitft.json": ""}
program = torch.export.load("model.pt2", extra_files=files).module()
labels = json.loads(files["vitft.json"])["classes"]
"""
    call = "program(torch.from_numpy(view(open_rgb(path))))[0].detach().numpy()"
    return Snippet(
        "PyTorch",
        "pip install torch numpy pillow",
        graph_program(transform, takes, load, call, thresholds),
    )


def graph_program(
    transform: EvalTransform, takes: GraphInput, load: str, call: str, thresholds: Sequence[float]
) -> str:
    """Return a program that loads a graph and calls it with views made by Pillow and NumPy."""
    answer = NUMPY_ANSWER
    if thresholds:
        answer = given_labels("(1 / (1 + np.exp(-logits))).tolist()", thresholds)
    library, rest = load.strip().split("\n\n", 1)
    standard, others = "import json\n", f"import numpy as np\n{library}\n"
    if library < "import numpy":
        others = f"{library}\nimport numpy as np\n"
    return f'''
{standard}
{others}from PIL import Image, ImageOps

{rest}

{open_code(transform)}

{view_code(transform, takes)}

def classify(path):
    """{answer_text(thresholds)}"""
    logits = {call}
{answer}


print(classify("photo.jpg"))
'''


def view_code(transform: EvalTransform, takes: GraphInput) -> str:
    """Return the code of the function `view`, which converts an RGB image to the graph's input."""
    if takes.any_size:
        body = "return np.asarray(image)[None]  # (1, height, width, 3)"
        return function("view", "image", "Convert an RGB image to the graph's input.", body)
    height, width = transform.image_size
    grey = transform.channels == 1
    colour = '.convert("RGB")' if grey else ""
    lines = ['image = image.convert("L")'] * grey + [
        *resize_lines(transform),
        *frame_lines(transform),
    ]
    if takes.takes_bytes:
        lines.append(f"return np.asarray(image{colour})[None]")
        text = f"Convert an RGB image to the graph's input, uint8 (1, {height}, {width}, 3)."
        return function("view", "image", text, "\n".join(lines))
    lines += [
        "pixels = np.asarray(image, np.float32)"
        + "[:, :, None]" * grey
        + " / 255  # (height, width, channels)",
        f"pixels = (pixels - np.float32({list(transform.mean)})) / np.float32("
        f"{list(transform.std)})",
        "return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])",
    ]
    text = (
        "Convert an RGB image to the graph's input, "
        f"float32 (1, {transform.channels}, {height}, {width})."
    )
    return function("view", "image", text, "\n".join(lines))


def resize_lines(transform: EvalTransform) -> list[str]:
    """Return the lines that resize `image` to the size that `EvalTransform.resized` returns."""
    wide, tall = transform.resized(1, 1)  # for a square image
    resample = f"Image.Resampling.{transform.interpolation.upper()}"
    height, width = transform.image_size
    if transform.fit == "squash":
        return [f"image = image.resize(({wide}, {tall}), {resample})"]
    if transform.fit == "pad":
        tall, wide = (math.floor(side / transform.crop) for side in (height, width))
        return [
            f"ratio = max(image.height / {tall}, image.width / {wide})",
            "size = max(1, round(image.width / ratio)), max(1, round(image.height / ratio))",
            f"image = image.resize(size, {resample})",
        ]
    if height == width:
        return [
            "short = min(image.size)",
            f"size = {tall} * image.width // short, {tall} * image.height // short",
            f"image = image.resize(size, {resample})",
        ]
    tall, wide = (int(side / transform.crop) for side in (height, width))
    return [
        f"ratio = min(image.height / {tall}, image.width / {wide})",
        f"size = max({wide}, round(image.width / ratio)), max({tall}, round(image.height / ratio))",
        f"image = image.resize(size, {resample})",
    ]


def frame_lines(transform: EvalTransform) -> list[str]:
    """Return the lines that crop or pad the resized `image`, as `EvalTransform.framed` does."""
    height, width = transform.image_size
    margins = (
        f"left, top = round((image.width - {width}) / 2), round((image.height - {height}) / 2)"
    )
    if transform.fit != "pad":
        return [margins, f"image = image.crop((left, top, left + {width}, top + {height}))"]
    colour = transform.border if transform.channels == 3 else transform.border[0]
    return [
        margins,
        f"left = -left if image.width > {width} else ({width} - image.width) // 2",
        f"top = -top if image.height > {height} else ({height} - image.height) // 2",
        f"padded = Image.new(image.mode, ({width}, {height}), {colour})",
        "padded.paste(image, (left, top))",
        "image = padded",
    ]


def function(name: str, argument: str, text: str, body: str) -> str:
    """Return the code of a function with one argument, given its docstring and body."""
    indented = textwrap.indent(body, "    ")
    return f'def {name}({argument}):\n    """{text}"""\n{indented}\n'


def in_grey(transform: EvalTransform) -> str:
    """Return the code that converts the result of `open_rgb` to grey, or "" for an RGB model."""
    return '.convert("L")' if transform.channels == 1 else ""


GRAPH_SNIPPETS: Mapping[
    str, tuple[Callable[[EvalTransform, GraphInput, Sequence[float]], Snippet], ...]
] = {
    "onnx": (onnxruntime_snippet, openvino_snippet),
    "int8": (onnxruntime_snippet, openvino_snippet),
    "torch-export": (torch_snippet,),
}
"""Functions that return the programs for each format that contains the computation graph."""
