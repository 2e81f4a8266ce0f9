"""A head from class names has the zero-shot scores of transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tests.contract.built.towers import tower
from tests.contract.rows import draw
from vitft import finetune, load_pretrained, zeroshot

transformers = pytest.importorskip("transformers", reason="transformers is an extra")

NAMES, PROMPT = ["red_fox", "owl", "cat"], "A photo of {} ."


@pytest.mark.parametrize("kind", ["CLIP", "Siglip"])
@torch.no_grad()
def test_a_head_from_names_has_the_zero_shot_scores_of_transformers(
    kind: str, tmp_path: Path
) -> None:
    theirs = tower(tmp_path / "w", kind)
    for i in range(5):
        draw(tmp_path / "new" / f"{i}.png")

    path = zeroshot(
        tmp_path / "new", classes=NAMES if kind == "CLIP" else ", ".join(NAMES),
        weights=tmp_path / "w", prompts=[PROMPT] if kind == "CLIP" else PROMPT,
        out=tmp_path / "out", cache="none", device="cpu",
    )  # fmt: skip

    ours, report = load_pretrained(path)
    files = sorted((tmp_path / "new").iterdir())
    pixels = torch.stack([report.transform(Image.open(file)) for file in files])
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "w")
    texts = [f"a photo of {name} ." for name in ("cat", "owl", "red fox")]
    ids = words(texts, padding="max_length", max_length=12, return_tensors="pt")["input_ids"]
    embedding = theirs.vision_model(pixels).pooler_output
    if kind == "CLIP":
        embedding = theirs.visual_projection(embedding)
    length, bias = embedding.norm(dim=1), ours.head.bias
    scores = (ours(pixels) - bias) * length.median() / length[:, None] + bias
    # Without a mask: the conversion of SigLIP says that its text tower was trained without one
    expected = theirs(pixel_values=pixels, input_ids=ids).logits_per_image
    assert report.classes == ("cat", "owl", "red_fox")
    assert (scores - expected).abs().max() <= 1e-5 * max(1, float(expected.abs().max()))


@torch.no_grad()
def test_a_fitted_head_stays_at_the_prompts_under_a_strong_penalty(tmp_path: Path) -> None:
    tower(tmp_path / "w", "CLIP")
    for i in range(20):
        draw(tmp_path / "data" / ("cat", "owl")[i % 2] / f"{i}.png")
    kind: dict[str, Any] = {"cache": "none", "device": "cpu"}
    data, weights = tmp_path / "data", tmp_path / "w"
    path = zeroshot(data, classes=["owl", "cat"], weights=weights, out=tmp_path / "m", **kind)
    prompts = load_pretrained(path)[0].head.get_parameter("weight")

    kind |= {"settings": {"optim.l2": 1e6}, "keep_head": True}
    run = finetune(data=data, weights=path, out=tmp_path / "run", **kind).run

    head = load_pretrained(run)[0].head.get_parameter("weight")
    assert torch.cosine_similarity(head.flatten(), prompts.flatten(), dim=0) > 0.9999
