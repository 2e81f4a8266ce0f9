"""Parts of the benchmarks that run other tools: a timm model with given weights, folders, the Trainer."""

from pathlib import Path
from typing import Any

TRAINER_OPTIONS: dict[str, Any] = {
    "remove_unused_columns": False,
    "report_to": [],
    "use_cpu": True,
    "disable_tqdm": True,
}
"""Arguments of transformers' TrainingArguments: a model of its own, on the CPU, without output."""


def load_backbone(model: Any, weights: Path) -> Any:
    """Load all of a timm ViT but its head from a file with timm's names; return the model."""
    from safetensors.torch import load_file

    state = {k: v for k, v in load_file(weights).items() if not k.startswith("head.")}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected, unexpected
    assert all(name.startswith("head.") for name in missing), missing
    return model


def image_folders(data: Path, train_view: list[Any], val_view: list[Any]) -> dict[str, Any]:
    """Return data/train and data/val as torchvision's folders, as tensors from -1 to 1."""
    from torchvision import datasets, transforms

    rest = [transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.5] * 3)]
    return {
        part: datasets.ImageFolder(str(data / part), transforms.Compose([*view, *rest]))
        for part, view in (("train", train_view), ("val", val_view))
    }


def trainer_model(vit: Any) -> Any:
    """Give timm's ViT the calling convention of transformers' Trainer, so that all load the same weights."""
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vit = vit

        def forward(self, pixel_values: Any, labels: Any) -> Any:
            logits = self.vit(pixel_values)
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    return Model()


def collate(examples: list[Any]) -> dict[str, Any]:
    """Join images and labels into the batch that `trainer_model` takes."""
    import torch

    return {
        "pixel_values": torch.stack([e[0] for e in examples]),
        "labels": torch.tensor([e[1] for e in examples]),
    }


def trainer_accuracy(output: Any) -> dict[str, float]:
    """Return the accuracy of the Trainer's predictions."""
    return {"accuracy": float((output.predictions.argmax(1) == output.label_ids).mean())}


def freeze_all_but_head(model: Any) -> Any:
    """Let only the head of a timm ViT train; return the model."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("head."))
    return model
