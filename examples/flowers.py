"""The Python API in a dozen lines: draw flowers, fine-tune, predict, extract features, explain.

    python examples/flowers.py OUT

It needs no network and no images and takes half a minute.
"""

import argparse
from pathlib import Path

import vitft
from vitft.data.demo import draw_demo


def main(out: Path) -> None:
    """Write the images, the run and an explanation into the folder `out`."""
    flowers = out / "flowers"
    draw_demo(flowers)

    result = vitft.finetune(data=flowers, weights="demo", out=out / "run", epochs=5, seed=1)
    print(f"accuracy {result.figures['top1']:.1%} on {result.figures['images']} images")

    model = vitft.load(result.run)
    some = sorted(flowers.glob("*/*"))[::40]
    for answer in model.predict(some, top_k=2, threshold=0.5):
        print(answer.path, answer.classes, answer.probabilities, answer.notes)

    features = model.features(some)
    print("features", features.shape)

    model.explain(some[0]).save(out / "explained.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("out", metavar="OUT", type=Path, help="folder for the images and the run")
    main(parser.parse_args().out)
