"""A linear head from class names, by the text tower of CLIP or SigLIP.

transformers runs the tokenizer and the text tower once. Importing this module imports neither
transformers nor torch.

Notation: C classes, T prompts for each class, E size of the common embedding, D feature dimensions.

Sources: Radford et al. 2021 (CLIP), 2103.00020, section 3.1.4 on averaged prompts; Zhai et al. 2023
(SigLIP), 2303.15343.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitft.config.schema import require
from vitft.models.card import config_beside
from vitft.models.pretrained.catalog import file_and_part, locate
from vitft.models.pretrained.fetch import fetch, short_message
from vitft.system.errors import WeightsError
from vitft.system.imports import install_command, require_extra

if TYPE_CHECKING:
    from torch import Tensor

PROMPTS = ("a photo of a {}.", "a photo of the {}.", "{}")
_CLASSES = {"clip": "CLIPModel", "siglip": "SiglipModel", "siglip2": "Siglip2Model"}
"""transformers' classes of the supported models, by `model_type`."""
_VOCABULARIES = ("tokenizer.json", "vocab.json", "spiece.model")
_TOKENIZER_FILES = (
    *_VOCABULARIES,
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
_AT_ONCE = 256  # number of prompts


@dataclass(frozen=True, slots=True)
class PromptHead:
    """Head whose scores are the zero-shot scores of images, times the length of their embeddings.

    The zero-shot scores are scale * cos(image, text) + bias, and a linear head cannot divide by the
    length of the image's embedding. This does not change the order of the classes.
    """

    weight: "Tensor"  # (C, D)
    bias: "Tensor"  # (C,), the same for all classes
    projection: "Tensor | None"  # (E, D) to the embedding; None if this is the feature

    def scaled(self, x: "Tensor") -> tuple["Tensor", "Tensor"]:
        """Return weight and bias, divided by the median length for the features x (n, D)."""
        embedding = x if self.projection is None else x @ self.projection.T
        return self.weight / embedding.norm(dim=1).median(), self.bias


def check_names(classes: Sequence[str], prompts: Sequence[str]) -> None:
    """Raise a UsageError unless there are two or more different names, and prompts for them."""
    fix = "separate two or more different names with commas, e.g. --classes rose,tulip"
    require(all(name.strip() for name in classes), "a class name is empty", fix=fix)
    require(len(classes) > 1, f"a classifier needs two classes, not {len(classes)}", fix=fix)
    twice = next((name for name in classes if [*classes].count(name) > 1), "")
    require(not twice, f"the class {twice} is named twice", fix=fix)
    fix = 'write {} where the class name goes, e.g. --prompt "a photo of a {}"'
    require(bool(prompts), "there is no prompt", fix=fix)
    for prompt in prompts:
        require("{}" in prompt, f"the prompt {prompt!r} has no place for a class name", fix=fix)


def text_tower(weights: str | Path) -> tuple[Path, str] | None:
    """Return the folder of weights with a text tower, once fetched, and transformers' class."""
    found = locate(weights)
    if isinstance(found, Path):
        path = file_and_part(found)[0]
    elif found.is_hub_repository:
        path = fetch(found, beside=_TOKENIZER_FILES)[0]
    else:
        return None
    kind = _CLASSES.get(str(config_beside(path).get("model_type")))
    return None if kind is None else (path.parent, kind)


def prompt_head(
    weights: str | Path, classes: Sequence[str], prompts: Sequence[str] = PROMPTS
) -> PromptHead:
    """Return the head for the pooled feature of weights that have a text tower.

    The text of a class is the mean of its normalised prompts. In names, _ stands for a blank.

    Raises:
        WeightsError: The weights have no text tower or tokenizer, or cannot be found or read.
        UsageError: The names or prompts are invalid, or transformers is not installed.
    """
    check_names(classes, prompts)
    if (tower := text_tower(weights)) is None:
        raise WeightsError(
            f"{weights} has no text tower, which class names need",
            fix="use CLIP or SigLIP in the format of transformers, e.g. "
            "--weights hf:google/siglip-base-patch16-224",
        )
    folder, kind = tower
    if not any((folder / name).is_file() for name in _VOCABULARIES):
        raise WeightsError(
            f"{folder} has no tokenizer",
            fix="copy tokenizer.json and tokenizer_config.json from the repository of the weights",
        )
    require_extra("transformers", feature="a head from class names")
    import torch
    import transformers
    from torch.nn import functional as F

    local: dict[str, Any] = {"local_files_only": True}
    transformers.utils.logging.disable_progress_bar()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **local)
        model, found = getattr(transformers, kind).from_pretrained(
            folder, **local, use_safetensors=True, output_loading_info=True, dtype=torch.float32
        )
    except Exception as error:  # transformers raises different errors
        fix = "use a whole repository of CLIP or SigLIP, with its tokenizer"
        if isinstance(error, ImportError):
            fix = install_command(["sentencepiece", "protobuf"])
        problem = f"cannot open the text tower in {folder}: {short_message(error)}"
        raise WeightsError(problem, fix=fix) from error
    finally:
        transformers.utils.logging.enable_progress_bar()
    if missing := sorted(found["missing_keys"]):
        raise WeightsError(
            f"the text tower in {folder} is incomplete: {missing[0]} is missing",
            fix="download the whole repository again",
        )
    # SigLIP 2 was trained on lower-case text. The other tokenizers convert it themselves
    names = [name.replace("_", " ") for name in classes]
    texts = [prompt.replace("{}", name).lower() for name in names for prompt in prompts]
    shape: dict[str, Any] = {  # as in training, whatever the defaults of the tokenizer are
        "padding": "max_length",
        "padding_side": "right",
        "max_length": model.config.text_config.max_position_embeddings,
        "truncation": True,
        "return_attention_mask": False,  # SigLIP reads the padding, too
        "return_tensors": "pt",
    }
    with torch.inference_mode():
        parts = [
            tokenizer(texts[i : i + _AT_ONCE], **shape) for i in range(0, len(texts), _AT_ONCE)
        ]
        ids = torch.cat([part["input_ids"] for part in parts]).unflatten(0, (len(names), -1))
        seen: dict[bytes, str] = {}
        for name, own in zip(classes, ids, strict=True):
            other = seen.setdefault(own.numpy().tobytes(), name)
            problem = f"the tokenizer does not tell {other} from {name}"
            require(other == name, problem, fix="use other words, which the text tower knows")
        found = [model.get_text_features(**part).pooler_output for part in parts]
        each = F.normalize(torch.cat(found), dim=1).unflatten(0, (len(names), len(prompts)))
        text = F.normalize(each.mean(dim=1), dim=1)  # (C, T, E) -> (C, E)
        layer, bias = (getattr(model, n, None) for n in ("visual_projection", "logit_bias"))
        projection = None if layer is None else layer.weight
        weight = model.logit_scale.exp() * (text if projection is None else text @ projection)
        bias = weight.new_zeros(len(names)) if bias is None else bias.expand(len(names))
    return PromptHead(weight.clone(), bias.clone(), projection)
