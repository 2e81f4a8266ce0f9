"""Write the inputs and logits of a run's validation images, to check a conversion against.

python reference.py RUN reference.npz [NUMBER OF IMAGES]

Needs vitft; the other scripts in this folder do not. For a run whose head reads several blocks,
the formats of timm and transformers have other logits; give such an export as RUN to check it.
"""

import sys

import numpy as np

from vitft.export.formats.base import module_logits, normalised_input
from vitft.export.trained import load_trained


def main(run: str, out: str, count: str = "64") -> None:
    """Write `out` with pixels (n, channels, S, S), logits (n, classes) and labels (n,)."""
    trained = load_trained(run)
    samples = [*trained.comparison_images(int(count))]
    pixels = np.stack([normalised_input(trained.card.transform, each.image) for each in samples])
    logits = np.concatenate([module_logits(trained.model)(each[None]) for each in pixels])
    labels = np.array([each.label for each in samples])  # -1 for noise
    np.savez_compressed(out, pixels=pixels, logits=logits, labels=labels)
    print(f"{len(samples)} images -> {out}")


if __name__ == "__main__":
    if not 3 <= len(sys.argv) <= 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
