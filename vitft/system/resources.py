"""Bundled files: recipes and weights.

They are at the top of the repository; a wheel has them inside the package.
"""

from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def resource(name: str) -> Path:
    """Return the path of a bundled file or folder, such as `recipes` or `weights/catalog.toml`."""
    packed = PACKAGE / name
    return packed if packed.exists() else PACKAGE.parent / name
