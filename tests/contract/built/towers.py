"""Whole models of CLIP and SigLIP with random weights, as transformers writes them."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.contract.built.weights import state
from tests.models.test_later_parts import randomised

WORDS = "<pad> <unk> </s> a photo of the . owl cat red fox"
SIZES: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def tower(folder: Path, kind: str) -> Any:
    """Write a model for images of 16 pixels and its tokenizer to a folder; return the model."""
    transformers = pytest.importorskip("transformers", reason="transformers is an extra")
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: i for i, word in enumerate(WORDS.split())}
    text = SIZES | {"hidden_size": 16, "vocab_size": len(words), "max_position_embeddings": 12}
    text |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "projection_size": 32}
    vision = SIZES | {"hidden_size": 32, "image_size": 16, "patch_size": 8}
    config = getattr(transformers, f"{kind}Config")(text_config=text, vision_config=vision)
    torch.manual_seed(0)
    model = randomised(getattr(transformers, f"{kind}Model")(config))
    model.logit_scale.data.fill_(6.0)
    model.save_pretrained(folder)
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", unk_token="<unk>", eos_token="</s>"
    ).save_pretrained(folder)
    return model


def towers(home: Path) -> None:
    """Write siglip, the same in the cache of downloads and without parts, and a pickle, w.pth."""
    tower(home / "siglip", "Siglip")
    cached = home / "hub" / "models--o--siglip"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("a" * 40)
    for name in ("silent", "cut", f"hub/models--o--siglip/snapshots/{'a' * 40}"):
        shutil.copytree(home / "siglip", home / name)
    (home / "silent" / "tokenizer.json").unlink()
    whole = home / "cut" / "config.json"
    whole.write_text(
        whole.read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 3', 1)
    )
    torch.save(state(), home / "w.pth")
