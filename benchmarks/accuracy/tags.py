"""How many of timm's published plain-ViT weights open in vitft's own model, and why the others do not.

    python -m benchmarks.accuracy.tags            # minutes: builds 180 architectures without memory
    python -m benchmarks.accuracy.tags --names    # also prints the architectures behind each reason

A tag is one name of `timm.list_pretrained()` whose architecture is in timm's vision_transformer.py or
eva.py. It opens if `models.registry` translates the architecture, i.e. every part of the network that timm
builds exists in vitft's own model and the names and shapes of all tensors are the same. No weights are read.
"""

import argparse
from collections import Counter, defaultdict

import timm

from vitft.models.card import timm_modules
from vitft.models.pretrained.catalog import entries_by_name
from vitft.models.registry import translate
from vitft.system.errors import UsageError

FILES = ("vision_transformer", "eva")


def is_counted(architecture: str) -> bool:
    """Return whether an architecture is in one of the `FILES`; timm's own test models are not counted."""
    return timm_modules()[architecture] in FILES and not architecture.startswith("test_")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", action="store_true", help="print the architectures too")
    args = parser.parse_args()
    tags = [n for n in timm.list_pretrained() if is_counted(n.partition(".")[0])]
    architectures = Counter(tag.partition(".")[0] for tag in tags)
    opened, reasons = Counter[str](), defaultdict[str, list[str]](list)
    for name in sorted(architectures):
        try:
            translate(name)
            opened[name] = architectures[name]
        except UsageError as error:
            reasons[error.problem.partition(": ")[2]].append(name)
    count, total = opened.total(), len(tags)
    listed = sum(tag in entries_by_name() for tag in tags)
    print(f"timm {timm.__version__}: {count} of {total} tags open ({count / total:.0%}), "
          f"{len(opened)} of {len(architectures)} architectures; "
          f"{listed} tags are in the catalogue")  # fmt: skip
    if args.names:
        print(f"opened: {' '.join(opened)}")
    for reason, names in sorted(
        reasons.items(), key=lambda row: -sum(architectures[n] for n in row[1])
    ):
        print(f"{sum(architectures[n] for n in names):>4}  {reason}")
        if args.names:
            print(f"      {' '.join(names)}")


if __name__ == "__main__":
    main()
